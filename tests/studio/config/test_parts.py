"""Agent and eval files as parts of run files, and as run files of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from engines.core.errors import ConfigError
from studio.config.loading import LoadedRun, load_run
from studio.presets import GROUPS, list_presets, preset_path, presets_folder
from tests.support.run_studio import studio
from tests.support.youtu_checkout import write

AGENT = (
    "name: careful\ninstructions: Solve it.\nmodel: rehearsal\nexperiences: [{id: E1, text: a}]\n"
)
THEIRS = """\
# @package _global_
type: simple
agent: {name: careful, instructions: Solve it.}
model:
  model_provider: {type: chat.completions, model: m, base_url: http://h/v1, api_key: k-1}
  model_settings: {temperature: 0.2}
"""
EVAL = "evaluation: {data: arithmetic-heldout, k: 2}\nverifier: text\n"
THEIR_EVAL = "data: {dataset: arithmetic-heldout, type: single}\npass_k: 2\nverify_filename: v.py\n"


def loaded(folder: Path, text: str, *overrides: str) -> LoadedRun:
    return load_run(str(write(folder / "mine.yaml", text)), overrides, folder / "practice", {})


@pytest.mark.parametrize("text", [AGENT, f"agent:\n  {AGENT.replace(chr(10), chr(10) + '  ')}"])
def test_an_agent_file_is_a_run_file_of_its_own(tmp_path: Path, text: str) -> None:
    run = loaded(tmp_path, text, "evaluation.data=arithmetic-heldout").config
    assert (run.agent.name, run.agent.instructions, run.policy.model) == (
        *("careful", "Solve it."),
        "rehearsal",
    )
    assert [experience.text for experience in run.agent.experiences] == ["a"]
    assert run.evaluation.data == ("arithmetic-heldout",)


def test_an_agent_file_as_youtu_writes_it_is_one_too(tmp_path: Path) -> None:
    run = loaded(tmp_path, THEIRS).config
    assert (run.agent.name, run.policy.model, run.policy.temperature) == (
        "careful",
        "openai:m",
        0.2,
    )


def test_a_mistake_in_such_a_file_is_told_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r'mine\.yaml:5: "instruction" is not a setting. .*agent.instructions'
    ):
        loaded(tmp_path, AGENT + "instruction: x\n")
    with pytest.raises(ConfigError, match=r"mine\.yaml:2: .*outside the agent file"):
        loaded(tmp_path, AGENT.replace("Solve it.", "${oc.env:KEY}"))


@pytest.mark.parametrize("text", [EVAL, f"# @package _global_\n{EVAL}", THEIR_EVAL])
def test_an_eval_file_is_a_run_file_of_its_own(tmp_path: Path, text: str) -> None:
    run = loaded(tmp_path, text, "policy=rehearsal").config
    assert (run.evaluation.data, run.evaluation.k) == (("arithmetic-heldout",), 2)
    assert run.verifier.spec["name"] in ("text", "function")


@pytest.mark.parametrize("agent", [AGENT, f"# @package agent\n{AGENT}", THEIRS])
@pytest.mark.parametrize("evaluation", [EVAL, f"# @package _global_\n{EVAL}", THEIR_EVAL])
@pytest.mark.parametrize("at", ["", "deep/er/"])
def test_both_are_mounted_by_their_groups_whatever_package_they_name(
    tmp_path: Path, agent: str, evaluation: str, at: str
) -> None:
    write(tmp_path / f"agents/{at}x.yaml", agent)
    write(tmp_path / f"eval/{at}math.yaml", evaluation)
    groups = [{f"/agents/{at}".rstrip("/"): "x"}, {f"/eval/{at}".rstrip("/"): "math"}, "_self_"]
    k = "pass_k" if evaluation is THEIR_EVAL else "k"
    own = {"defaults": groups, "evaluation": {k: 3}, "data": {"practice": "arithmetic"}}
    run = loaded(tmp_path, yaml.safe_dump(own)).config
    assert (run.agent.name, run.evaluation.data) == ("careful", ("arithmetic-heldout",))
    assert (run.evaluation.k, run.data.practice) == (3, "arithmetic")
    assert run.policy.model in ("rehearsal", "openai:m")


PARTS = sorted(
    str(file.relative_to(presets_folder()).with_suffix(""))
    for group in GROUPS
    for file in (presets_folder() / group).glob("**/*.yaml")
)


@pytest.mark.parametrize("name", PARTS)
def test_every_shipped_part_can_be_measured_or_practised(tmp_path: Path, name: str) -> None:
    more = {"agents": ["evaluation.data=arithmetic-heldout"], "eval": ["policy=rehearsal"]}
    command = "headless" if name.startswith("practice/") else "eval"
    words = [*more.get(name.partition("/")[0], []), "evaluation.limit=2"]
    cut = ["data.truncate=2"] if command == "headless" else []
    done = studio(command, name, *words, *cut, workspace=tmp_path / "practice")
    assert done.code == 0, done.stderr


def test_the_shipped_groups_have_a_base_and_a_practised_variant(tmp_path: Path) -> None:
    groups = "defaults: [/agents/practice: {}, /eval: arithmetic, _self_]\n"
    base, practised = (
        loaded(tmp_path, groups.format(name)).config
        for name in ("arithmetic", "arithmetic-practised")
    )
    assert base.agent.experiences == () != practised.agent.experiences
    assert base.agent.instructions == practised.agent.instructions
    assert base.agent.instructions.endswith("after ####.")
    assert base.evaluation == practised.evaluation and base.evaluation.data


def test_a_part_is_no_preset_of_the_list_and_no_other_folder_is_reached() -> None:
    assert preset_path("practice/arithmetic") is not None
    assert "practice/arithmetic" not in dict(list_presets())
    for name in ("practice/../rehearsal", "accelerate/x", "../presets/rehearsal", "", "practice"):
        assert preset_path(name) is None
