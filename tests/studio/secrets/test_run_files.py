"""What of a run file is a secret, and what of it is stored."""

from __future__ import annotations

from pathlib import Path

import pytest

from engines.core.errors import ConfigError
from engines.core.types import Problem, Rollout, Verdict
from engines.secrets.mask import MASK, PROTOCOL, Mask
from studio.config.loading import LoadedRun, load_run
from studio.config.run_yaml import dump_run_yaml
from studio.run.models import ANSWER_MASKED, MaskedAnswers, masked_answers_warning
from studio.run.new_or_resume import change_text
from studio.secrets.run_files import (
    environment_secrets,
    is_secret,
    mask_override,
    run_file_secrets,
    storable_text,
)
from tests.support.builders import a_problem, a_rollout

URL = ("policy", "base_url")
BODY = ("policy", "extra_body")
DRAWN = "9f8e7d6c5b4a3f2e"


def loaded(folder: Path, policy: str, **environ: str) -> LoadedRun:
    file = folder / "mine.yaml"
    file.write_text(f"policy: {{model: 'openai:m', {policy}}}\ndata: {{practice: sums}}\n")
    return load_run(str(file), [], folder / "workspace", environ, cwd=folder)


@pytest.mark.parametrize(
    "path",
    [
        "access_token", "tokens.0", "api_keys.1", "apiKey", "x-api-key", "key", "pass", "pwd",
        "passphrase", "jwt", "bearer", "pat", "auth.value", "auth.inner.0.value", "sessionToken",
        "credentials.user", "SECRET", "my_secrets",
    ],
)  # fmt: skip
def test_what_stands_below_a_name_of_a_secret_is_one(path: str) -> None:
    assert is_secret((*BODY, *path.split(".")), "words")


@pytest.mark.parametrize(
    "name",
    [
        "max_tokens", "min_tokens", "max_completion_tokens", "prompt_tokens", "stop_token_ids",
        "logit_bias", "guided_json", "include_stop_str_in_output", "skip_special_tokens", "user",
        "prompt_cache_key", "key_concept", "truncate_prompt_tokens", "return_tokens_as_token_ids",
        "eos_token", "pass_k", "author", "monkey", "best_of", "cache_salt",
    ],
)  # fmt: skip
def test_a_usual_field_of_a_request_is_none(name: str) -> None:
    assert not is_secret((*BODY, name), "words")


def test_neither_a_switch_nor_a_placeholder_is_a_secret() -> None:
    assert not is_secret((*BODY, "auth", "enabled"), True)
    assert not is_secret(("policy", "api_key"), "none")


@pytest.mark.parametrize(
    ("key", "text", "stored"),
    [
        (URL, "http://${oc.env:H}/v1?token=lit&sig=a+b", "http://${oc.env:H}/v1?token=***&sig=***"),
        (URL, "http://me:pw@${oc.env:H}/v1", "http://***:***@${oc.env:H}/v1"),
        (URL, "${oc.env:B}?k=x${oc.env:K}", "${oc.env:B}?k=***${oc.env:K}"),
        (URL, "https://${oc.env:H}/?api-version=1", "https://${oc.env:H}/?api-version=1"),
        (("policy", "headers", "X"), "Bearer lit-${oc.env:X}", "Bearer ***${oc.env:X}"),
        ((*BODY, "auth", "value"), "lit${oc.env:X}", "***${oc.env:X}"),
        (("policy", "api_key"), "${oc.env:X,literal}", "${oc.env:X,***}"),
        (("policy", "api_key"), "${oc.env:X,none}", "${oc.env:X,none}"),
        ((*BODY, "note"), "at ${oc.env:X}", "at ${oc.env:X}"),
    ],
)
def test_what_is_spelled_out_beside_a_variable_is_stored_masked(
    key: tuple[str, ...], text: str, stored: str
) -> None:
    assert storable_text(key, text) == stored


def test_a_run_whose_key_is_masked_in_part_asks_for_it_again(tmp_path: Path) -> None:
    url = "base_url: 'http://${oc.env:H}/v1?token=literal-words'"
    text = dump_run_yaml(loaded(tmp_path, url, H="h").config)
    assert "literal-words" not in text and "${oc.env:H}" in text
    (tmp_path / "run.yaml").write_text(text)
    with pytest.raises(ConfigError, match="Set it again"):
        load_run(str(tmp_path / "run.yaml"), [], tmp_path, {"H": "h"}, cwd=tmp_path)


def test_a_placeholder_for_a_key_is_stored_as_it_is(tmp_path: Path) -> None:
    text = dump_run_yaml(loaded(tmp_path, "base_url: 'http://h/v1', api_key: none").config)
    assert "api_key: none" in text


@pytest.mark.parametrize(
    ("name", "value", "remembered"),
    [
        ("MY_TENANT", DRAWN, True),
        ("PATH_TOKEN", "only-words-here", True),
        ("VERSION", "v1beta1", False),
        ("DEPLOYMENT", "gpt-4o-2024-08-06", False),
        ("HOSTNAME_OF_IT", "gateway", False),
    ],
)
def test_a_variable_that_is_a_part_of_an_address_is_a_secret_by_its_name_or_its_looks(
    tmp_path: Path, name: str, value: str, remembered: bool
) -> None:
    run = loaded(tmp_path, f"base_url: 'http://h/${{oc.env:{name}}}/v1'", **{name: value})
    assert (value in run.secrets) == remembered
    stored = tmp_path / "run.yaml"
    stored.write_text(dump_run_yaml(run.config))
    assert (value in run_file_secrets(stored, {name: value})) == remembered


def test_a_query_is_known_as_it_is_written_and_as_it_is_read(tmp_path: Path) -> None:
    run = loaded(tmp_path, "base_url: 'http://h/v1?sig=ab+cd/ef%2Bgh;b=semi-words#frag-words'")
    assert {"ab+cd/ef%2Bgh", "ab cd/ef+gh", "ab+cd/ef+gh", "semi-words"} <= run.secrets
    assert "frag-words" in run.secrets


@pytest.mark.parametrize("value", ["required", "12345678", "true", "correct horse", "Basic"])
def test_a_word_in_the_environment_that_nobody_asked_for_masks_no_text(value: str) -> None:
    assert environment_secrets({"SOME_AUTH": value}) == frozenset()


@pytest.mark.parametrize("value", ["a1b2c3d4", "AbCdEfGhIjKlMnOpQrStUv"])
def test_what_looks_drawn_in_the_environment_is_masked_unasked(value: str) -> None:
    assert environment_secrets({"SOME_TOKEN": value}) == {value}


def test_a_run_says_which_key_is_a_common_word(tmp_path: Path) -> None:
    told = loaded(tmp_path, "base_url: 'http://h/v1', api_key: seventeen").warnings
    assert told == ("policy.api_key is a common word: it is masked wherever it occurs.",)
    assert loaded(tmp_path, "base_url: 'http://h/v1', api_key: none").warnings == ()
    assert loaded(tmp_path, "base_url: 'http://h/v1', api_key: q7Zr9kT2").warnings == ()


@pytest.mark.parametrize("word", sorted(PROTOCOL))
def test_a_word_of_the_protocol_is_masked_in_settings_alone(tmp_path: Path, word: str) -> None:
    run = loaded(tmp_path, f"base_url: 'http://h/v1', api_key: {word}")
    reply = f'{{"{word}": "{word}"}}'
    assert run.mask(reply) == reply
    assert f"api_key: {word}" not in dump_run_yaml(run.config, run.mask)


class Right:
    """A verifier to whom everything is right."""

    async def check(self) -> None:
        """Always of use."""

    async def verify(self, problem: Problem, rollouts: list[Rollout]) -> list[Verdict]:
        return [Verdict(1.0) for _ in rollouts]

    async def aclose(self) -> None:
        """Holds nothing."""


async def test_a_try_whose_expected_answer_is_masked_is_unjudged_and_not_wrong() -> None:
    verifier = MaskedAnswers(Right(), Mask(["seventeen"]))  # type: ignore[arg-type]
    masked, plain = a_problem(answer="seventeen"), a_problem(answer="18")
    (verdict,) = await verifier.verify(masked, [a_rollout()])
    assert (verdict.reward, verdict.error) == (None, ANSWER_MASKED)
    (verdict,) = await verifier.verify(plain, [a_rollout()])
    assert verdict.reward == 1.0
    said = masked_answers_warning([masked, plain], Mask(["seventeen"]))
    assert said is not None and said.startswith("1 expected answer ")
    assert masked_answers_warning([masked, plain], Mask()) is None


def test_a_change_below_the_fields_of_a_request_is_told_by_name() -> None:
    old, new = {"note": "old words", "kept": 1}, {"note": "new words", "kept": 1}
    assert change_text("policy.extra_body", old, new) == "policy.extra_body (in note)"
    assert change_text("seed", 1, 2) == "seed: 1 → 2"
    old, new = ({"name": "function", "file": "mine", "digest": digest} for digest in "ab")
    assert change_text("verifier", old, new) == "verifier: {'digest': 'a'} → {'digest': 'b'}"
    other = old | {"file": "yours", "digest": "c"}
    assert "'file': 'mine'} → {'digest': 'c'" in change_text("verifier", old, other)


@pytest.mark.parametrize(
    "override",
    [
        "policy.extra_body={auth: {value: words}}",
        "policy.extra_body.tokens=[words]",
        "policy={model: m, headers: {X: words}}",
        "policy.extra_body.auth.value=words",
    ],
)
def test_an_override_is_shown_without_what_may_be_a_secret(override: str) -> None:
    assert "words" not in mask_override(override)
    assert mask_override("policy.max_tokens=64") == "policy.max_tokens=64"


def test_a_mask_stays_a_mask() -> None:
    assert storable_text(("policy", "api_key"), f"${{oc.env:X,{MASK}}}") == f"${{oc.env:X,{MASK}}}"
