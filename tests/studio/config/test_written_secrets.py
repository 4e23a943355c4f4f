"""Secrets of run files: never written, never shown, read back from the environment."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from studio.config.loading import load_run
from studio.config.run_yaml import dump_run_yaml, fingerprint
from studio.config.settings.agent import MountedExperience
from studio.config.settings.run import RunConfig
from studio.secrets.run_files import is_secret
from tests.studio.config.run_files import SMALL, loaded, refused, write

SECRET = """
policy:
  model: openai:m
  api_key: ${oc.env:MY_KEY}
  headers: {Authorization: 'Bearer ${oc.env:MY_KEY}', X-Title: studio}
  extra_body: {user_token: '${oc.env:MY_KEY}', top_k: 5}
agent: {instructions: "Keep \\\\${this} and\\n${oc.env:PLAIN}."}
reflector: {temperature: 0.5}
judge: ${policy}
data: {practice: sums}
"""


def test_the_resolved_file_holds_names_of_secrets_and_loads_to_an_equal_run(
    tmp_path: Path,
) -> None:
    environ = {"MY_KEY": "sk-very-secret", "PLAIN": "a plain word", "OPENAI_BASE_URL": "http://e/1"}
    config = loaded(tmp_path, SECRET, environ=environ).config
    text = dump_run_yaml(config)
    assert "sk-very-secret" not in text + repr(config)
    assert text.count("${oc.env:MY_KEY}") == 9  # three places in each of the three roles
    assert "a plain word" in text and "PLAIN" not in text
    assert config.agent.instructions == "Keep ${this} and\na plain word."
    again = load_run(str(write(tmp_path, text, "run/run.yaml")), [], tmp_path / "w", environ)
    assert again.config == config
    assert dump_run_yaml(again.config) == text
    changed = load_run(
        str(tmp_path / "run/run.yaml"), [], tmp_path / "w", {**environ, "MY_KEY": "sk-2"}
    ).config
    assert changed.policy.api_key and changed.policy.api_key.get_secret_value() == "sk-2"


def test_a_key_spelled_out_is_masked_and_asked_for_again(tmp_path: Path) -> None:
    literal = SMALL + "judge: {model: 'openai:m', api_key: sk-1, base_url: 'http://u:pw@h/v1'}\n"
    config = loaded(tmp_path, literal, "judge.headers.X-Api-Key=sk-2").config
    text = dump_run_yaml(config)
    assert not any(secret in text for secret in ("sk-1", "sk-2", "pw@"))
    error = refused(tmp_path, text)
    assert "masked" in error.cause
    healed = ["judge.api_key=k", "judge.base_url=http://h/v1", "judge.headers.X-Api-Key=k"]
    assert loaded(tmp_path, text, *healed).config.judge is not None


@pytest.mark.parametrize(
    "override", ["policy.api_key=sk-123,x", "policy.api_key=[sk-123]", "policy.api_key=sk-123'"]
)
def test_a_refused_key_is_not_repeated(tmp_path: Path, override: str) -> None:
    assert "sk-123" not in str(refused(tmp_path, SMALL, override))


@pytest.fixture(scope="module")
def small_config(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    return loaded(tmp_path_factory.mktemp("small"), SMALL).config


PIECES = ("a", "b", "${", "$", "{", "}", "\\", ":", ".", " ", "\n", "'")
TEXT = st.lists(st.sampled_from(PIECES), min_size=1, max_size=20).map("".join)


# Every example composes a file, which takes a while, so that it holds several texts.
@settings(max_examples=8, deadline=None)
@given(st.lists(TEXT, min_size=5, max_size=5, unique=True))
def test_any_text_survives_being_written_and_read(
    small_config: RunConfig, tmp_path_factory: pytest.TempPathFactory, texts: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("round")
    brought = tuple(MountedExperience(id=f"E{n}", text=text) for n, text in enumerate(texts))
    changes = {"instructions": texts[0], "experiences": brought}
    agent = small_config.agent.model_copy(update=changes)
    written = dump_run_yaml(small_config.model_copy(update={"agent": agent}))
    found = loaded(folder, written).config.agent
    assert (found.instructions, found.experiences) == (texts[0], brought)


def test_a_fingerprint_holds_no_secret(tmp_path: Path) -> None:
    text = "policy: {model: 'openai:m', extra_body: {api_key: sk-1}}\ndata: {practice: s}\n"
    assert "sk-1" not in str(fingerprint(loaded(tmp_path, text).config))


def test_literal_secrets_are_masked_wherever_they_stand(tmp_path: Path) -> None:
    text = SMALL.replace(
        "policy: rehearsal",
        "policy:\n  model: openai:m\n  headers: {X-Session: HUNTER2, User-Agent: me}\n"
        "  extra_body: {accessToken: CAMEL, author: Ada}",
    )
    dumped = dump_run_yaml(loaded(tmp_path, text).config)
    assert "HUNTER2" not in dumped and "CAMEL" not in dumped
    assert "User-Agent: me" in dumped and "author: Ada" in dumped


@pytest.mark.parametrize("url", ["http://h/v1?key=abc", "http://me:abc@h/v1"])
def test_an_address_that_holds_a_secret_is_masked(tmp_path: Path, url: str) -> None:
    policy = f"policy={{model: openai:m, base_url: '{url}'}}"
    assert "abc" not in dump_run_yaml(loaded(tmp_path, SMALL, policy).config)


def test_an_address_without_its_scheme_is_refused(tmp_path: Path) -> None:
    error = refused(tmp_path, SMALL, "policy={model: openai:m, base_url: '127.0.0.1:9'}")
    assert "http://" in error.cause


def test_values_of_the_environment_in_requests_are_never_written(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "policy:\n  model: openai:m\n  extra_body:\n"
        "    'x.effort': ${oc.env:EFFORT}\n    deep: [{q: '${oc.env:EFFORT}'}]\n"
        "    mine: ${oc.env:MY_TOKEN}\ndata: {practice: arithmetic}\n"
    )
    found = []
    for effort, token in (("low", "t1"), ("high", "t1"), ("high", "t2")):
        environ = {"EFFORT": effort, "MY_TOKEN": token, "OPENAI_API_KEY": "k"}
        found.append(fingerprint(load_run(str(file), [], tmp_path / "p", environ).config))
    low, high, rotated = (f["policy.extra_body"] for f in found)
    assert low != high
    assert high == rotated  # a key may be another one
    assert "low" not in str(low)
    assert low["mine"] == "${oc.env:MY_TOKEN}"
    assert low["x.effort"].startswith("${oc.env:EFFORT} #")


def test_names_in_a_schema_are_the_users_own_words_and_no_secrets() -> None:
    request = ("policy", "extra_body")
    schema = (*request, "response_format", "json_schema", "schema", "properties")
    for key, value in (
        ((*schema, "token", "type"), "string"),
        ((*schema, "password", "description"), "column"),
        ((*request, "tools", "0", "function", "parameters", "properties", "key", "type"), "string"),
        ((*request, "chat_template_kwargs", "image_token"), "<image>"),
        ((*request, "thinking_token"), "<think>"),
        ((*request, "metadata", "key"), "nightly"),
        (("verifier", "first_pass"), 0.5),
        (("verifier", "pass"), 1),
        (("data", "fields", "key"), "question"),
    ):
        assert not is_secret(key, value), key
    for key, value in (
        ((*request, "auth", "value"), "plainword"),
        ((*request, "password"), 123456),
        ((*request, "thinking_token"), "a1b2c3d4e5"),
        ((*request, "hf_token"), "a1b2c3d4e5"),
        ((*request, "key"), "plainword"),
    ):
        assert is_secret(key, value), key


def test_a_word_under_a_usual_name_is_left_out_of_settings_and_of_no_text(tmp_path: Path) -> None:
    override = "policy.extra_body={key: column, password: plainword, tokens: [a1b2c3d4]}"
    found = loaded(tmp_path, SMALL, override)
    assert "column" not in dump_run_yaml(found.config)
    assert {"plainword", "a1b2c3d4"} <= found.secrets
    assert "column" not in found.secrets
