"""Run files that are refused, with place, cause and next move."""

from __future__ import annotations

from pathlib import Path

import pytest

from engines.core.errors import ConfigError
from studio.config.loading import load_run
from tests.studio.config.run_files import SMALL, refused, write

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
    "a key with dots in a file": (
        SMALL + "practice.epochs: 3\n",
        [],
        ("mine.yaml:3", '"practice.epochs" is not a setting', "nested"),
    ),
    "a list without its dashes": (
        SMALL + "agent: {tools: {name: python}}\n",
        [],
        ("mine.yaml:3", '"agent.tools": it must be a list', "Set agent.tools."),
    ),
    "unknown override": (
        SMALL,
        ["practice.epoch=3"],
        ("override 'practice.epoch=3'", "not a setting", '"practice.epochs"'),
    ),
    "wrong type": (
        SMALL + "practice:\n  epochs: three\n",
        [],
        ("mine.yaml:4", '"practice.epochs" is "three": it must be a whole number', "Set practice"),
    ),
    "a truth value where a number belongs": (
        SMALL + "practice: {epochs: true}\n",
        [],
        ("mine.yaml:3", '"practice.epochs" is true', "Set practice.epochs"),
    ),
    "out of range": (
        SMALL,
        ["practice.group_size=0"],
        ("override 'practice.group_size=0'", "at least 1", "rollouts of each"),
    ),
    "not finite": (
        SMALL,
        ["practice.temperature=nan"],
        ("override 'practice.temperature=nan'", "practice.temperature", "how much rollouts"),
    ),
    "one of several words": (
        SMALL + "practice: {sampling: sometimes}\n",
        [],
        ("mine.yaml:3", "'uniform' or 'learnable'", "fewer rollouts"),
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
        ("mine.yaml:4", '"agent.instructions" cannot be resolved', "Correct"),
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
        ("eval/nested.yaml:2", '"agents/gone" is not found', "agents/wrong"),
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
        ("override 'verifier=…'", '"verifier" is empty', "math, text or judge"),
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
    "start": (SMALL, ["library.start=x@-y"], ("override", "does not fit", "NAME@V")),
    "a start whose name no library can have": (
        SMALL,
        [f"library.start={'x' * 121}@1"],
        ("override", "does not fit", "NAME@V"),
    ),
    "a name that is a path": (SMALL, ["exp_id=../x"], ("override", "does not fit", "letters")),
    "a field that cannot be mapped": (
        SMALL,
        ["data.fields={anwser: a}"],
        ("override 'data.fields=…'", '"anwser" cannot be mapped', "data.fields"),
    ),
    "a tool's key that only servers have": (
        SMALL + "agent: {tools: [{name: python, only: [x]}]}\n",
        [],
        ("mine.yaml:3", "only", "Leave it out"),
    ),
    "a variable that a try sets itself": (
        SMALL + "agent: {command: [python], pass_env: [OPENAI_API_KEY]}\n",
        [],
        ("mine.yaml:3", "pass_env", "Take OPENAI_API_KEY out"),
    ),
    "an answer file in another folder": (
        SMALL + "agent: {command: [python], answer_from: 'file:../a'}\n",
        [],
        ("mine.yaml:3", "answer_from", "file:NAME"),
    ),
    "hosts without the network": (
        SMALL + "agent: {command: [python], allow_hosts: [a.com], network: none}\n",
        [],
        ("mine.yaml:3", "allow_hosts", "Set both, or neither"),
    ),
    "an address for a host": (
        SMALL + "agent: {command: [python], allow_hosts: ['http://a.com']}\n",
        [],
        ("mine.yaml:3", "allow_hosts", "*.example.com"),
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
    with pytest.raises(ConfigError, match=r'Did you mean ".*mine\.yaml"'):
        load_run(str(tmp_path / "mien.yaml"), [], tmp_path, {})
    with pytest.raises(ConfigError, match=r"Presets: api, both-tiny, command, demo, grpo-"):
        load_run("zzzzz", [], tmp_path, {})


def test_an_unknown_section_of_an_override_is_blamed_on_the_override(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_run("rehearsal", ["practise.epochs=3"], tmp_path, {})
    assert str(caught.value).startswith("override 'practise.epochs=3': \"practise\"")


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
