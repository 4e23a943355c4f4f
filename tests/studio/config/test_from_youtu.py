"""`studio headless --from-youtu DIR --config-name NAME`."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.support.run_studio import Result, studio
from tests.support.youtu_checkout import ENV, checkout

OFFLINE = "policy=rehearsal"  # the scripted stand-in, instead of the config's endpoint


def by_config(workspace: Path, *more: str, name: str = "math_reasoning") -> Result:
    home = workspace.parent / "youtu"
    if not home.exists():
        checkout(home)
    return studio(
        "headless", "--from-youtu", str(home), "--config-name", name, *more, workspace=workspace
    )


def test_a_config_is_practised_as_it_stands_and_what_it_lacks_here_is_told(
    workspace: Path,
) -> None:
    done = by_config(workspace, OFFLINE)
    assert done.code == 0, done.stderr
    lines = done.stderr.splitlines()
    told = [line for line in lines if "has no counterpart here" in line]
    assert len(told) == 2
    assert told[0].startswith("note: configs/") and "max_turns" in done.stderr
    assert [run.name for run in (workspace / "runs").iterdir()] == ["math_practice"]
    assert ENV["UTU_LLM_API_KEY"] not in done.stdout + done.stderr
    for file in (workspace / "runs").rglob("*.*"):
        if file.is_file():
            assert ENV["UTU_LLM_API_KEY"].encode() not in file.read_bytes()


def test_such_a_run_is_resumed_without_the_checkout(workspace: Path) -> None:
    assert by_config(workspace, OFFLINE).code == 0
    (workspace.parent / "youtu").rename(workspace.parent / "gone")
    text = yaml.safe_load((workspace / "runs/math_practice/run.yaml").read_text())
    assert text["practice"]["group_size"] == 3
    more = studio("headless", "--resume", "math_practice", "practice.epochs=2", workspace=workspace)
    assert more.code == 0, more.stderr
    assert "resumed after step 2" in more.stderr


def test_the_same_words_again_take_the_run_up_and_a_name_makes_another(workspace: Path) -> None:
    assert by_config(workspace, OFFLINE).code == 0
    again = by_config(workspace, "--config-name", "math_reasoning", OFFLINE)
    assert again.code == 0 and "is finished" in again.stderr
    other = by_config(workspace, OFFLINE, "practice.grpo_n=2", "--name", "other")
    assert other.code == 0, other.stderr
    assert (workspace / "runs/other/run.yaml").is_file()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--from-youtu", "youtu"], ("--config-name", "There are: math_reasoning")),
        (["--config-name", "math_reasoning"], ("--config-name", "Give --from-youtu")),
        (["--from-youtu", "nowhere", "--config-name", "x"], ("--from-youtu nowhere", "checkout")),
        (["--from-youtu", "youtu", "--config-name", "math_reason"], ('mean "math_reasoning"',)),
        (
            ["rehearsal", "--from-youtu", "youtu", "--config-name", "math_reasoning"],
            ("--from-youtu", "Leave RUNFILE out"),
        ),
        (
            ["--resume", "x", "--from-youtu", "youtu", "--config-name", "math_reasoning"],
            ("Leave --resume out",),
        ),
        (
            ["--from-youtu", "youtu", "--config-name", "math_reasoning", "practice.grpo=3"],
            ("override 'practice.grpo=3'", "practice.grpo_n"),
        ),
        (
            ["--from-youtu", "youtu", "--config-name", "math_reasoning", "data.practice=AIME24"],
            ("override 'data.practice=AIME24'", "studio data add FILE --name AIME24"),
        ),
        (
            ["--from-youtu", "youtu", "--config-name", "math_reasoning", "verify_filename=no.py"],
            ("no.py",),
        ),
    ],
)
def test_a_mistake_is_exit_2_with_words_and_nothing_is_begun(
    workspace: Path, arguments: list[str], words: tuple[str, ...]
) -> None:
    checkout(workspace.parent / "youtu")
    refused = studio("headless", *arguments, workspace=workspace)
    assert refused.code == 2, refused.stderr
    for word in words:
        assert word in refused.stderr
    assert not (workspace / "runs").exists()


def test_an_eval_config_is_measured_as_it_stands(workspace: Path) -> None:
    home = checkout(workspace.parent / "youtu", {"eval.data.dataset": "arithmetic-heldout"})
    done = studio(
        "eval", "--from-youtu", str(home), "--config-name", "math/math_set",
        OFFLINE, "evaluation.limit=3", workspace=workspace,
    )  # fmt: skip
    assert done.code == 0, done.stderr
    assert "arithmetic-heldout" in done.stdout
    assert "agent.max_turns (" in done.stderr
