"""Run files: composition, aliases, secrets, refusals."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.core.errors import ConfigError, DataError
from studio.config.aliases import ALIASES
from studio.config.loading import LoadedRun, load_run
from studio.config.run_yaml import dump_run_yaml
from studio.config.settings.fingerprint import RESULT_FIELDS, differences, fingerprint
from studio.config.settings.policy import PolicyConfig
from studio.config.settings.run import RunConfig, every_setting
from studio.presets import list_presets
from studio.secrets.rules import is_secret

SMALL = "policy: rehearsal\ndata: {practice: sums}\n"


def write(folder: Path, text: str, name: str = "mine.yaml") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def loaded(
    folder: Path, text: str, *overrides: str, environ: Mapping[str, str] | None = None
) -> LoadedRun:
    path = write(folder, text)
    return load_run(str(path), overrides, folder / "workspace", environ or {}, cwd=folder)


def refused(
    folder: Path, text: str, *overrides: str, environ: Mapping[str, str] | None = None
) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        loaded(folder, text, *overrides, environ=environ)
    return caught.value


# Composition


def test_layered_files_compose_with_packages_across_folders(tmp_path: Path) -> None:
    write(
        tmp_path,
        "name: solver\ninstructions: Think first.\n",
        "agents/practice/math.yaml",
    )
    write(
        tmp_path / "workspace/configs",
        "# @package _global_\n"
        "defaults:\n  - /agents/practice/math@agent\n  - _self_\n"
        "data: held-out\npass_k: 4\n",
        "eval/math.yaml",
    )
    path = write(
        tmp_path,
        "# @package _global_\n"
        "defaults:\n  - /eval/math@evaluation\n  - _self_\n"
        "exp_id: math_practice\npolicy: rehearsal\n"
        "practice:\n  epochs: 2\n  grpo_n: 7\n  do_eval: true\n"
        "data:\n  practice_dataset_name: sums\n",
        "practice/math.yaml",
    )
    run = load_run(str(path), ["practice.batch_size=9"], tmp_path / "workspace", {}, tmp_path)
    config = run.config
    assert (config.exp_id, config.data.practice) == ("math_practice", "sums")
    assert (config.agent.name, config.agent.instructions) == ("solver", "Think first.")
    assert (config.practice.epochs, config.practice.group_size) == (2, 7)
    assert config.practice.batch_size == 9
    assert (config.evaluation.data, config.evaluation.k) == (("held-out",), 4)
    assert config.evaluation.do_eval
    assert run.place("practice.epochs") == f"{path}:8"
    assert run.place("practice.batch_size") == "override 'practice.batch_size=9'"
    assert run.place("agent.instructions") == f"{tmp_path}/agents/practice/math.yaml:2"
    assert run.place("evaluation.k") == f"{tmp_path}/workspace/configs/eval/math.yaml:6"


def test_a_run_file_can_begin_with_a_preset(tmp_path: Path) -> None:
    run = loaded(tmp_path, "defaults: [rehearsal, _self_]\npractice: {batch_size: 3}\n").config
    preset = load_run("rehearsal", [], tmp_path / "workspace", {}, cwd=tmp_path).config
    practice = replace(preset.practice, batch_size=3)
    assert preset.practice != practice
    assert (run.policy, run.data, run.practice) == (preset.policy, preset.data, practice)


def test_the_file_itself_wins_over_what_it_mounts_before_self(tmp_path: Path) -> None:
    write(tmp_path, "name: a\ninstructions: Think.\n", "agents/a.yaml")
    text = "defaults:\n  - /agents/a@agent\n  - _self_\nagent: {instructions: Write.}\n" + SMALL
    agent = loaded(tmp_path, text).config.agent
    assert (agent.name, agent.instructions) == ("a", "Write.")


def test_groups_beside_the_file_go_before_the_workspace(tmp_path: Path) -> None:
    write(tmp_path, "name: beside\n", "agents/a.yaml")
    write(tmp_path, "name: workspace\n", "workspace/configs/agents/a.yaml")
    text = "defaults:\n  - /agents/a@agent\n  - _self_\n" + SMALL
    assert loaded(tmp_path, text).config.agent.name == "beside"


def test_an_override_can_choose_another_file_of_a_group(tmp_path: Path) -> None:
    write(tmp_path, "name: first\n", "agents/a.yaml")
    write(tmp_path, "name: second\n", "agents/b.yaml")
    text = "defaults:\n  - agents@agent: a\n  - _self_\n" + SMALL
    assert loaded(tmp_path, text).config.agent.name == "first"
    assert loaded(tmp_path, text, "agents@agent=b").config.agent.name == "second"


def test_an_enhanced_agent_mounts_with_its_experiences_and_model(tmp_path: Path) -> None:
    write(
        tmp_path,
        "name: practised\nexperiences:\n  - {id: E1, text: 'Carry: add the carry.'}\n"
        "model: {model: 'openai:m', api_key: '${oc.env:AGENT_KEY}'}\n",
        "agent.yaml",
    )
    text = "defaults:\n  - /agent@agent\n  - _self_\ndata: {practice: sums}\n"
    config = loaded(tmp_path, text, environ={"AGENT_KEY": "sk-1"}).config
    assert [(e.id, e.text) for e in config.agent.experiences] == [("E1", "Carry: add the carry.")]
    assert config.policy.model == "openai:m"
    assert config.policy.api_key and config.policy.api_key.get_secret_value() == "sk-1"
    assert "sk-1" not in dump_run_yaml(config)
    other = loaded(tmp_path, text + "policy: rehearsal\n", environ={"AGENT_KEY": "sk-1"}).config
    assert other.policy.model == "rehearsal"


def test_an_override_may_set_what_the_file_does_not_mention(tmp_path: Path) -> None:
    config = loaded(tmp_path, SMALL, "practice.library_limit=null", "seed=4").config
    assert config.practice.library_limit is None
    assert config.seed == 4


def test_overriding_one_key_of_a_plain_model_name_keeps_the_name(tmp_path: Path) -> None:
    config = loaded(tmp_path, SMALL, "policy.max_tokens=9", "verifier.mode=choice").config
    assert (config.policy.model, config.policy.max_tokens) == ("rehearsal", 9)
    late = loaded(tmp_path, SMALL, "policy=openai:m", "policy.base_url=http://h:1/v1").config
    assert (late.policy.model, late.policy.base_url) == ("openai:m", "http://h:1/v1")


def test_folders_with_unusual_names_are_searched(tmp_path: Path) -> None:
    odd = tmp_path / 'a, b [c] "d"'
    write(odd / "workspace/configs", "name: found\n", "agents/a.yaml")
    text = "defaults:\n  - /agents/a@agent\n  - _self_\n" + SMALL
    assert loaded(odd, text).config.agent.name == "found"


# Values


def test_defaults_are_those_of_the_practice_this_descends_from(tmp_path: Path) -> None:
    config = loaded(tmp_path, SMALL).config
    practice = config.practice
    assert (practice.epochs, practice.batch_size, practice.group_size) == (5, 32, 3)
    assert (practice.concurrency, practice.temperature, practice.task_timeout_s) == (64, 0.7, 3600)
    assert (practice.restart_step, practice.experiences_per_query) == (None, 1)
    assert (config.evaluation.do_eval, config.evaluation.strategy) == (False, "epoch")
    assert config.exp_id == "mine"


ALIAS_VALUES = {
    "evaluation.agent": ("{name: x}", "x"),
    "agent.agent": ("{name: x}", "x"),
    "data.practice_dataset_name": ("other", "other"),
    "data.rollout_data_truncate": ("7", 7),
    "data.shuffle_data": ("false", False),
    "practice.rollout_data_truncate": ("7", 7),
    "practice.shuffle_data": ("false", False),
    "practice.grpo_n": ("7", 7),
    "practice.rollout_concurrency": ("7", 7),
    "practice.rollout_temperature": ("0.1", 0.1),
    "practice.task_timeout": ("7", 7.0),
    "practice.num_experiences_per_query": ("7", 7),
    "practice.do_eval": ("false", False),
    "practice.eval_strategy": ("steps", "steps"),
    "practice.eval_steps": ("7", 7),
    "practice.eval_data": ("[a, b]", ("a", "b")),
    "practice.eval_data_truncate": ("7", 7),
    "evaluation.pass_k": ("7", 7),
    "evaluation.verify_filename": ("math.py", "math.py"),
    "evaluation.verify_func_name": ("f", "f"),
    "verifier.verify_filename": ("math.py", "math.py"),
    "verifier.verify_func_name": ("f", "f"),
    "verify_filename": ("math.py", "math.py"),
    "verify_func_name": ("f", "f"),
    "evaluation.judge_model": ("{model: rehearsal}", PolicyConfig(model="rehearsal")),
    "judge_model": ("{model: rehearsal}", PolicyConfig(model="rehearsal")),
    "evaluation.judge_concurrency": ("7", 7),
    "judge_concurrency": ("7", 7),
}


def value_at(config: RunConfig, name: str) -> object:
    value: object = config
    for part in name.split("."):
        value = getattr(value, part)
    return value


def nested(name: str, text: str) -> str:
    """`a.b` and `x` as YAML lines of their own, two spaces a level."""
    parts = name.split(".")
    lines = [f"{'  ' * depth}{part}:" for depth, part in enumerate(parts)]
    return "\n".join([*lines[:-1], f"{lines[-1]} {text}", ""])


@pytest.mark.parametrize("alias", ALIASES)
def test_an_alias_sets_our_name_from_file_and_override(tmp_path: Path, alias: str) -> None:
    text, value = ALIAS_VALUES[alias]
    name = ALIASES[alias] + (".name" if ALIASES[alias] == "agent" else "")
    base = "policy: rehearsal\n"
    if name != "data.practice":
        base += "" if alias.startswith("data.") else "data: {practice: sums}\n"
    needed = ["data.practice=sums"] if alias.startswith("data.") and name != "data.practice" else []
    from_file = loaded(tmp_path, base + nested(alias, text), *needed)
    from_override = loaded(tmp_path, base, f"{alias}={text.replace(': ', ':')}", *needed)
    assert value_at(from_file.config, name) == value_at(from_override.config, name) == value
    assert from_file.place(name).startswith(str(tmp_path / "mine.yaml:"))
    assert from_override.place(name).startswith(f"override '{alias}=")


def test_an_override_beats_the_file_in_either_spelling(tmp_path: Path) -> None:
    ours, theirs = SMALL + "practice: {group_size: 3}\n", SMALL + "practice: {grpo_n: 3}\n"
    assert loaded(tmp_path, ours, "practice.grpo_n=5").config.practice.group_size == 5
    assert loaded(tmp_path, theirs, "practice.group_size=5").config.practice.group_size == 5


def test_environment_variables_are_read_from_what_is_given(tmp_path: Path) -> None:
    text = (
        "policy:\n  model: ${oc.env:MODEL}\n  base_url: ${oc.env:URL,http://h/v1}\n"
        "data: {practice: sums}\nseed: ${oc.decode:${oc.env:SEED}}\n"
    )
    config = loaded(tmp_path, text, environ={"MODEL": "openai:m", "SEED": "12"}).config
    assert (config.policy.model, config.policy.base_url) == ("openai:m", "http://h/v1")
    assert config.seed == 12


def test_an_openai_role_takes_url_and_key_from_the_usual_variables(tmp_path: Path) -> None:
    environ = {"OPENAI_API_KEY": "sk-env", "OPENAI_BASE_URL": "http://env/v1"}
    text = (
        "policy: openai:m\nreflector: rehearsal\ndata: {practice: sums}\n"
        "judge: {model: 'openai:j', base_url: 'http://own/v1', api_key: '${oc.env:OWN}'}\n"
    )
    config = loaded(tmp_path, text, environ={**environ, "OWN": "sk-own"}).config
    assert config.policy.base_url == "http://env/v1"
    assert config.policy.api_key and config.policy.api_key.get_secret_value() == "sk-env"
    assert config.reflector and config.reflector.api_key is None
    assert config.judge and config.judge.base_url == "http://own/v1"
    assert config.judge.api_key and config.judge.api_key.get_secret_value() == "sk-own"
    assert loaded(tmp_path, text, environ={"OWN": "x"}).config.policy.api_key is None


def test_reflector_and_judge_default_to_the_policy_at_their_own_temperature(
    tmp_path: Path,
) -> None:
    text = "policy: {model: 'openai:m', temperature: 0.9, max_tokens: 50}\ndata: {practice: s}\n"
    config = loaded(tmp_path, text).config
    assert config.practice.temperature == 0.9
    roles = {name: config.role(name) for name in ("policy", "reflector", "judge")}
    assert {role.model for role in roles.values()} == {"openai:m"}
    assert [role.temperature for role in roles.values()] == [0.9, 0.3, 0.0]
    partial = loaded(tmp_path, text + "reflector: {max_tokens: 99}\n").config.role("reflector")
    assert (partial.model, partial.max_tokens, partial.temperature) == ("openai:m", 99, 0.3)
    rollouts = loaded(tmp_path, text, "practice.temperature=0.2").config.role("policy")
    assert rollouts.temperature == 0.2


def test_a_verifier_is_a_name_or_a_name_with_its_settings(tmp_path: Path) -> None:
    assert loaded(tmp_path, SMALL).config.verifier.spec == {"name": "math"}
    text = SMALL + "verifier: {name: text, mode: choice}\n"
    assert loaded(tmp_path, text).config.verifier.spec == {"name": "text", "mode": "choice"}


def test_data_beside_the_file_is_pinned_and_data_of_the_workspace_is_named(
    tmp_path: Path,
) -> None:
    row = '{"question": "q", "answer": "1"}\n'
    beside = write(tmp_path, row, "sums.jsonl")
    write(tmp_path, row, "workspace/datasets/known.jsonl")
    run = loaded(
        tmp_path, SMALL, "evaluation.data=[known,./sums.jsonl]", "policy=replay:sums.jsonl"
    )
    assert run.config.data.practice == str(beside)
    assert run.config.evaluation.data == ("known", str(beside))
    assert run.config.policy.model == f"replay:{beside}"
    assert run.data_path("known").path == tmp_path / "workspace/datasets/known.jsonl"


def test_data_that_is_nowhere_is_told_with_the_place_that_names_it(tmp_path: Path) -> None:
    run = loaded(tmp_path, SMALL)
    with pytest.raises(DataError) as caught:
        run.data_path(run.config.data.practice)
    assert caught.value.place == f"{tmp_path}/mine.yaml:2"
    assert '"sums"' in caught.value.cause and str(tmp_path) in caught.value.cause


def test_rules_beside_the_file_are_pinned(tmp_path: Path) -> None:
    rules = write(tmp_path, "pass: []\n", "rules.yaml")
    assert loaded(tmp_path, SMALL, "review.by=rules:rules.yaml").config.review.by == (
        f"rules:{rules}"
    )


def test_a_doubtful_evaluation_is_a_warning(tmp_path: Path) -> None:
    text = SMALL + "evaluation: {do_eval: true, data: x, k: 4}\n"
    assert "temperature 0" in loaded(tmp_path, text).warnings[0]


def test_a_group_of_one_is_a_warning(tmp_path: Path) -> None:
    (told,) = loaded(tmp_path, SMALL, "practice.group_size=1").warnings
    assert "a single try shows no contrast" in told
    assert loaded(tmp_path, SMALL, "practice.group_size=2").warnings == ()
    only_evaluates = "policy: rehearsal\npractice: {group_size: 1}\n"
    assert loaded(tmp_path, only_evaluates).warnings == ()


# Refusals: place, cause, next move

BAD = {
    "unknown key": (
        SMALL + "practice:\n  epochs: 2\n  epoch: 3\n",
        [],
        ("mine.yaml:5", '"practice.epoch" is not a setting', '"practice.epochs"'),
    ),
    "unknown key that is an alias misspelt": (
        SMALL + "practice:\n  grpo_m: 3\n",
        [],
        ("mine.yaml:4", '"practice.grpo_m" is not a setting', '"practice.grpo_n"'),
    ),
    "key of another section": (
        SMALL + "epochs: 3\n",
        [],
        ("mine.yaml:3", '"epochs" is not a setting', '"practice.epochs"'),
    ),
    "unknown override": (
        SMALL,
        ["practice.epoch=3"],
        ("override 'practice.epoch=3'", "not a setting", '"practice.epochs"'),
    ),
    "wrong type": (
        SMALL + "practice:\n  epochs: three\n",
        [],
        ("mine.yaml:4", '"practice.epochs" is "three": it must be a valid integer', "Set practice"),
    ),
    "a truth value where a number belongs": (
        SMALL + "practice: {epochs: true}\n",
        [],
        ("mine.yaml:3", '"practice.epochs" is true', "Set practice.epochs"),
    ),
    "out of range": (
        SMALL,
        ["practice.group_size=0"],
        ("override 'practice.group_size=0'", "greater than or equal to 1", "rollouts of each"),
    ),
    "not finite": (
        SMALL,
        ["practice.temperature=nan"],
        ("override 'practice.temperature=nan'", "practice.temperature", "of rollouts"),
    ),
    "one of several words": (
        SMALL + "practice: {summarise: sometimes}\n",
        [],
        ("mine.yaml:3", "'auto', 'always' or 'never'", "summarise rollouts"),
    ),
    "a section that is a text": (
        SMALL,
        ["evaluation=foo"],
        ("override 'evaluation=foo'", "holds settings of its own", "evaluation.do_eval"),
    ),
    "missing policy": ("data: {practice: s}\n", [], ("mine.yaml", '"policy" is missing', "model")),
    "evaluation without data": (
        SMALL + "practice:\n  do_eval: true\n",
        [],
        ("mine.yaml:4", "names no data set", "evaluation.data"),
    ),
    "missing variable": (
        SMALL + "judge:\n  model: openai:m\n  api_key: ${oc.env:NOT_THERE}\n",
        [],
        ("mine.yaml:5", '"judge.api_key" needs the environment variable NOT_THERE', "export"),
    ),
    "interpolation of nothing": (
        SMALL + "agent:\n  instructions: ${no.such}\n",
        [],
        ("mine.yaml:4", '"agent.instructions" cannot be resolved', "Mend"),
    ),
    "a value still to be given": (
        SMALL + "exp_id: ???\n",
        [],
        ("mine.yaml:3", "has no value yet", "Give it one"),
    ),
    "override without a value": (
        SMALL,
        ["practice.epochs"],
        ("override 'practice.epochs'", "does not fit", "Write key=value"),
    ),
    "override with a stray comma": (
        SMALL,
        ["practice.learning_objective=a, b"],
        ("override 'practice.learning_objective=a, b'", "Ambiguous", "quotes"),
    ),
    "unknown group": (
        "defaults:\n  - _self_\n  - /agents/solvr@agent\n" + SMALL,
        [],
        ("mine.yaml:3", '"agents/solvr" is not found. Searched:', '"agents/solver"'),
    ),
    "unknown group inside a group": (
        "defaults:\n  - /eval/nested@evaluation\n  - _self_\n" + SMALL,
        [],
        ("eval/nested.yaml:2", '"agents/gone" is not found', "gone.yaml"),
    ),
    "unknown group in an override": (
        "defaults:\n  - agents@agent: solver\n  - _self_\n" + SMALL,
        ["agents@agent=solvr"],
        ("override 'agents@agent=solvr'", '"agents/solvr" is not found', '"agents/solver"'),
    ),
    "wrong value in a group file": (
        "defaults:\n  - /agents/wrong@agent\n  - _self_\n" + SMALL,
        [],
        ("agents/wrong.yaml:4", '"agent.model.max_tokens" is "many"', "Set agent.model.max_tokens"),
    ),
    "broken YAML": (
        SMALL + "practice:\n epochs: 1\n  batch_size: 2\n",
        [],
        ("mine.yaml:5:", "The YAML is broken", "indentation"),
    ),
    "broken YAML in a group file": (
        "defaults:\n  - /agents/broken@agent\n  - _self_\n" + SMALL,
        [],
        ("agents/broken.yaml:2:1", "The YAML is broken", "indentation"),
    ),
    "a key twice": (SMALL + "seed: 1\nseed: 2\n", [], ("mine.yaml:4:1", "duplicate", "Look")),
    "a list": ("- policy\n", [], ("mine.yaml:1", "holds no keys", "key: value")),
    "alias and name": (
        SMALL + "practice:\n  group_size: 3\n  grpo_n: 4\n",
        [],
        ("mine.yaml:5", '"practice.grpo_n" and "practice.group_size" are two', "Keep"),
    ),
    "alias and name in two overrides": (
        SMALL,
        ["practice.grpo_n=3", "practice.group_size=4"],
        ("override 'practice.grpo_n=3'", "two names", 'Keep "practice.group_size"'),
    ),
    "masked key": (
        "policy: {model: 'openai:m', api_key: '***'}\ndata: {practice: s}\n",
        [],
        ("mine.yaml:1", '"policy.api_key" is masked', "policy.api_key=${oc.env:NAME}"),
    ),
    "a verifier of nothing in an override": (
        SMALL + "verifier: {name: text}\n",
        ["verifier={}"],
        ("override 'verifier={}'", '"verifier" is empty', "math, text or judge"),
    ),
    "an override by name into a list": (
        SMALL + "verifier: [math, judge]\n",
        ["verifier.of.0.weight=3"],
        ("override 'verifier.of.0.weight=3'", "has a list there", "Replace the whole list"),
    ),
    "a verifier of nothing": (
        SMALL + "verifier: {}\n",
        [],
        ("mine.yaml:3", '"verifier" is empty', "math, text or judge"),
    ),
    "a preset below a group": (
        "defaults:\n  - /practice/rehearsal\n  - _self_\n" + SMALL,
        [],
        ("mine.yaml:2", '"practice/rehearsal" is not found', 'Did you mean "rehearsal"?'),
    ),
    "reviewer": (SMALL, ["review.by=me"], ("override 'review.by=me'", "does not fit", "auto")),
    "start": (SMALL, ["library.start=x@y"], ("override", "does not fit", "NAME@V")),
    "a name that is a path": (SMALL, ["exp_id=../x"], ("override", "does not fit", "letters")),
    "a field that cannot be mapped": (
        SMALL,
        ["data.fields={anwser: a}"],
        ("override 'data.fields={anwser: a}'", '"anwser" cannot be mapped', "data.fields"),
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_run_file_is_refused_with_place_cause_and_move(tmp_path: Path, case: str) -> None:
    write(tmp_path, "name: solver\n", "agents/solver.yaml")
    write(
        tmp_path,
        "name: wrong\nmodel:\n  model: rehearsal\n  max_tokens: many\n",
        "agents/wrong.yaml",
    )
    write(tmp_path, "name: [\n", "agents/broken.yaml")
    write(tmp_path, "defaults:\n  - /agents/gone@agent\nk: 1\n", "eval/nested.yaml")
    text, overrides, (place, cause, move) = BAD[case]
    error = refused(tmp_path, text, *overrides)
    shown = error.place.removeprefix(f"{tmp_path}/")
    assert shown == place or ((place.endswith(":") or place == "override") and place in shown)
    assert cause in error.cause
    assert move in error.move


def test_a_file_that_is_no_yaml_file_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, SMALL, "mine.yml")
    with pytest.raises(ConfigError, match=r"ends in \.yaml"):
        load_run(str(path), [], tmp_path, {})
    path = tmp_path / "latin.yaml"
    path.write_bytes(b"exp_id: caf\xe9\n")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_run(str(path), [], tmp_path, {})


def test_an_unknown_run_file_shows_the_nearest_preset_or_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match='Did you mean "rehearsal"'):
        load_run("rehersal", [], tmp_path, {})
    write(tmp_path, SMALL)
    with pytest.raises(ConfigError, match=r'Did you mean "mine\.yaml"'):
        load_run(str(tmp_path / "mien.yaml"), [], tmp_path, {})
    with pytest.raises(ConfigError, match=r"Presets: api, grpo-"):
        load_run("zzzzz", [], tmp_path, {})


# Writing the resolved file

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


# Every example composes two files, at some milliseconds each.
@settings(max_examples=30, deadline=None)
@given(st.text(alphabet="ab${}\\:. \n'", max_size=30))
def test_any_text_survives_being_written_and_read(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    folder = tmp_path_factory.mktemp("round")
    config = loaded(folder, SMALL).config
    agent = config.agent.model_copy(update={"instructions": text})
    written = dump_run_yaml(config.model_copy(update={"agent": agent}))
    assert loaded(folder, written).config.agent.instructions == text


# Comparing runs


def test_only_what_changes_results_is_in_the_fingerprint(tmp_path: Path) -> None:
    free = ["practice.epochs=9", "practice.concurrency=2", "review.by=auto", "policy.max_retries=0"]
    before = fingerprint(loaded(tmp_path, SMALL).config, "d1")
    assert tuple(before) == RESULT_FIELDS
    assert differences(before, fingerprint(loaded(tmp_path, SMALL, *free).config, "d1")) == ()
    bound = ["practice.group_size=9", "practice.temperature=0.1", "verifier=text"]
    after = fingerprint(loaded(tmp_path, SMALL, *bound).config, "d2")
    assert {name: (old, new) for name, old, new in differences(before, after)} == {
        "policy.temperature": (0.7, 0.1),
        "data.digest": ("d1", "d2"),
        "practice.group_size": (3, 9),
        "verifier": ({"name": "math"}, {"name": "text"}),
    }


def test_a_fingerprint_holds_no_secret(tmp_path: Path) -> None:
    text = "policy: {model: 'openai:m', extra_body: {api_key: sk-1}}\ndata: {practice: s}\n"
    assert "sk-1" not in str(fingerprint(loaded(tmp_path, text).config))


# Presets


@pytest.mark.parametrize("name", [name for name, _ in list_presets()])
def test_every_preset_loads_says_what_it_is_and_can_be_copied(tmp_path: Path, name: str) -> None:
    environ = {"OPENAI_API_KEY": "k"}
    run = load_run(name, [], tmp_path, environ)
    assert run.preset and run.config.exp_id == name
    assert len(dict(list_presets())[name]) > 20
    copy = write(tmp_path, run.path.read_text(encoding="utf-8"))
    assert load_run(str(copy), [], tmp_path, environ).config == run.config


def test_every_setting_says_what_it_is() -> None:
    assert [name for name, meaning in every_setting().items() if not meaning] == []
    ours = {name for name in ALIASES.values() if not name.startswith("verifier.")}  # its own
    assert ours <= set(every_setting())


def test_listing_presets_imports_neither_hydra_nor_pydantic() -> None:
    code = (
        "import sys, studio.presets as p; assert p.list_presets();"
        "print([m for m in ('hydra', 'pydantic', 'omegaconf', 'yaml') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


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


# Verifiers

FUNCTION = "def verify_func(sample, timeout_score=0, **kwargs):\n    return {'reward': 1.0}\n"

VERIFIERS: dict[str, tuple[str, dict[str, object]]] = {
    "a name": ("judge", {"name": "judge"}),
    "a mapping": ("{name: text, mode: choice}", {"name": "text", "mode": "choice"}),
    "settings of the usual one": ("{deadline_s: 1}", {"name": "math", "deadline_s": 1}),
    "a file": (
        "{file: exact.py, function: f}",
        {"name": "function", "file": "exact.py", "function": "f"},
    ),
    "Youtu's names": (
        "{verify_filename: exact.py, verify_func_name: f}",
        {"name": "function", "file": "exact.py", "function": "f"},
    ),
    "a list": (
        "[math, {name: judge, weight: 2, as: style}, {file: exact.py}]",
        {
            "name": "weighted",
            "of": [
                {"name": "math"},
                {"name": "judge", "weight": 2, "as": "style"},
                {"name": "function", "file": "exact.py"},
            ],
        },
    ),
    "a shape of a name": ("{name: step, of: judge}", {"name": "step", "of": "judge"}),
    "a shape of a file": (
        "{name: length_penalty, of: {file: exact.py}, max_length: 9}",
        {
            "name": "length_penalty",
            "of": {"name": "function", "file": "exact.py"},
            "max_length": 9,
        },
    ),
}


@pytest.mark.parametrize("case", VERIFIERS)
def test_every_way_to_write_a_verifier_means_one_and_survives_being_written(
    tmp_path: Path, case: str
) -> None:
    text, spec = VERIFIERS[case]
    run = loaded(tmp_path, f"{SMALL}verifier: {text}\n")
    assert run.config.verifier.spec == spec
    again = loaded(tmp_path, dump_run_yaml(run.config))
    assert again.config == run.config
    override = text.replace(": ", ":")
    if "{" not in text or text[0] == "{":
        assert loaded(tmp_path, SMALL, f"verifier={override}").config.verifier.spec == spec


FILED = "{file: exact.py, function: f, timeout_score: 0}"
MATH = {"name": "math"}

REPLACED: dict[str, tuple[str, list[str], dict[str, object]]] = {
    "a mapping for a file": (
        FILED,
        ["verifier={name:text,mode:choice}"],
        {"name": "text", "mode": "choice"},
    ),
    "a list for a mapping": (
        "{name: text, mode: choice}",
        ["verifier=[{name:math,weight:3}]"],
        {"name": "weighted", "of": [{"name": "math", "weight": 3}]},
    ),
    "a mapping for a list": (
        "[math, text]",
        ["verifier={deadline_s:1}"],
        {**MATH, "deadline_s": 1},
    ),
    "a name for a mapping": ("{name: text, mode: choice}", ["verifier=math"], MATH),
    "a file for a file": (
        FILED,
        ["+verifier={file:mine.py}"],
        {"name": "function", "file": "mine.py"},
    ),
    "a key after the whole": (
        FILED,
        ["verifier=text", "verifier.mode=choice"],
        {"name": "text", "mode": "choice"},
    ),
    "a key before the whole": (
        "math",
        ["verifier.deadline_s=1", "verifier={name:text}"],
        {"name": "text"},
    ),
    "the whole twice": (FILED, ["verifier={name:text,mode:choice}", "verifier={name:math}"], MATH),
}


@pytest.mark.parametrize("case", REPLACED)
def test_an_override_of_the_whole_verifier_leaves_nothing_of_the_file_s(
    tmp_path: Path, case: str
) -> None:
    text, overrides, spec = REPLACED[case]
    run = loaded(tmp_path, f"{SMALL}verifier: {text}\n", *overrides)
    assert run.config.verifier.spec == spec
    assert run.place("verifier").startswith("override '")


def test_an_override_of_the_whole_verifier_beats_youtus_names_in_the_file(tmp_path: Path) -> None:
    text = f"{SMALL}evaluation: {{verify_filename: a.py, verify_func_name: f}}\n"
    spec = loaded(tmp_path, text, "verifier={file:b.py}").config.verifier.spec
    assert spec == {"name": "function", "file": "b.py"}


@pytest.mark.parametrize("above", ["", "evaluation:\n  "])
def test_youtus_verifier_names_stand_at_the_top_or_below_evaluation(
    tmp_path: Path, above: str
) -> None:
    indent = "  " if above else ""
    text = f"{SMALL}{above}verify_filename: a.py\n{indent}verify_func_name: f\n"
    run = loaded(tmp_path, text)
    assert run.config.verifier.spec == {"name": "function", "file": "a.py", "function": "f"}
    assert run.place("verifier.file").endswith(f"mine.yaml:{4 if above else 3}")


def test_entries_of_a_list_keep_their_lines(tmp_path: Path) -> None:
    text = "verifier:\n  - math\n  - name: text\n    mode: exact\n  - file: x.py\n"
    run = loaded(tmp_path, SMALL + text)
    assert run.place("verifier.of.0").endswith("mine.yaml:4")
    assert run.place("verifier.of.1.mode").endswith("mine.yaml:6")
    assert run.place("verifier.of.2.file").endswith("mine.yaml:7")
    run = loaded(tmp_path, SMALL, "verifier=[math,judge]")
    assert run.place("verifier.of.1") == "override 'verifier=[math,judge]'"


def test_a_verifier_file_beside_the_run_file_is_pinned_and_a_workspaces_stays_a_name(
    tmp_path: Path,
) -> None:
    beside = write(tmp_path, FUNCTION, "beside.py")
    write(tmp_path, FUNCTION, "both.py")
    write(tmp_path, FUNCTION, "workspace/verifiers/both.py")
    write(tmp_path, FUNCTION, "workspace/verifiers/own.py")

    def pinned(name: str) -> object:
        config = loaded(tmp_path, f"{SMALL}verifier: {{file: {name}}}\n").config
        return config.verifier.spec["file"]

    assert pinned("beside.py") == pinned("beside") == str(beside.resolve())
    assert pinned("both.py") == str((tmp_path / "both.py").resolve())
    assert pinned("own.py") == "own.py"
    assert pinned("nowhere.py") == "nowhere.py"  # refused when it is opened
    listed = loaded(tmp_path, f"{SMALL}verifier: [math, {{file: beside}}]\n").config
    assert listed.verifier.spec["of"][1]["file"] == str(beside.resolve())


def test_a_verifier_file_of_an_override_beats_a_name_in_the_file(tmp_path: Path) -> None:
    write(tmp_path, FUNCTION, "mine.py")
    run = loaded(tmp_path, SMALL + "verifier: math\n", "verifier.file=mine.py")
    assert run.config.verifier.spec == {"name": "function", "file": str(tmp_path / "mine.py")}


def test_a_roles_own_concurrency_is_not_handed_on_to_other_roles(tmp_path: Path) -> None:
    text = "policy: {model: rehearsal, concurrency: 4}\njudge: {temperature: 0.5}\n"
    config = loaded(tmp_path, text + "data: {practice: sums}\n").config
    assert config.judge is not None
    assert (config.policy.concurrency, config.judge.concurrency) == (4, None)


@pytest.mark.parametrize(
    "written",
    ["[math, {file: mine.py, workers: 2}]", "{name: step, of: {file: mine.py}}"],
)
def test_what_a_verifier_file_holds_belongs_to_the_fingerprint_and_its_folder_does_not(
    tmp_path: Path, written: str
) -> None:
    from engines.record.run_dir import Workspace
    from studio.run.verifier import fingerprint_of

    def verifier(folder: Path, text: str) -> object:
        write(folder, text, "mine.py")
        run = loaded(folder, f"{SMALL}verifier: {written}\n")
        return fingerprint_of(run, Workspace(folder / "workspace"), "d")["verifier"]

    first = verifier(tmp_path / "a", FUNCTION)
    assert first == verifier(tmp_path / "b", FUNCTION)
    assert first != verifier(tmp_path / "a", FUNCTION + "# changed\n")
    assert "'file': 'mine'" in str(first) and "'digest': " in str(first)
    assert str(tmp_path) not in str(first)


def test_a_run_file_on_a_preset_is_named_by_its_own_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("defaults: [rehearsal, _self_]\npractice: {epochs: 1}\n")
    workspace = tmp_path / "p"
    assert load_run(str(file), [], workspace, {}).config.exp_id == "mine"
    assert load_run(str(file), ["exp_id=typed"], workspace, {}).config.exp_id == "typed"
    file.write_text("defaults: [rehearsal, _self_]\nexp_id: written\n")
    assert load_run(str(file), [], workspace, {}).config.exp_id == "written"
    assert load_run("rehearsal", [], workspace, {}).config.exp_id == "rehearsal"


def test_an_unknown_section_of_an_override_is_blamed_on_the_override(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_run("rehearsal", ["practise.epochs=3"], tmp_path, {})
    assert str(caught.value).startswith("override 'practise.epochs=3': \"practise\"")


def test_a_file_that_hides_a_data_set_of_the_workspace_is_told(tmp_path: Path) -> None:
    row = '{"question": "q", "answer": "1"}\n'
    for folder in (tmp_path, tmp_path / "p/datasets"):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "shop.jsonl").write_text(row)
    file = tmp_path / "mine.yaml"
    file.write_text("policy: rehearsal\ndata: {practice: shop}\n")
    told = load_run(str(file), [], tmp_path / "p", {}).warnings
    assert any("not the data set of that name in the workspace" in line for line in told)
    (tmp_path / "shop.jsonl").unlink()
    assert load_run(str(file), [], tmp_path / "p", {}).warnings == ()


def test_values_of_the_environment_in_requests_are_told_apart_and_never_written(
    tmp_path: Path,
) -> None:
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


BOMB = "a0: &a0 [x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9)
)


@pytest.mark.parametrize(
    ("text", "said"), [("a: &a {b: *a}\n", "it holds itself"), (BOMB, "values. Write them out")]
)
def test_aliases_that_unfold_without_end_are_refused(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=said):
        load_run(str(file), [], tmp_path / "p", {})


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
