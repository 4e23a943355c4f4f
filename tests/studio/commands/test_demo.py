"""`studio demo`: what its run brings, and what starting it again does."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from engines.core import events as ev
from engines.core import types as flags
from engines.core.types import Operation
from engines.record.run_dir import RunDir, Workspace
from studio.commands.run import demo_words
from tests.support.demo_run import demo_workspace
from tests.support.run_studio import studio


@pytest.fixture
def run() -> RunDir:
    return demo_workspace().run("demo")


def operations_by_step(run: RunDir) -> dict[int, list[Operation]]:
    events = (entry.event for entry in run.entries())
    return {
        e.lesson.step: list(e.lesson.operations) for e in events if isinstance(e, ev.LessonProposed)
    }


def test_lessons_of_every_kind_arrive_each_with_its_flag(run: RunDir) -> None:
    found = operations_by_step(run)
    assert [(op.kind, op.target, op.flags) for op in found[1]] == [
        ("modify", "E2", ()),
        ("add", None, ()),
        ("delete", "E3", ()),
    ]
    copy, *kept = found[2]
    assert copy.flags[0].name == flags.DUPLICATE and " of E1: " in copy.flags[0].detail
    assert {op.kind for op in kept} == {"keep"}
    (leak,) = found[3]
    assert [flag.name for flag in leak.flags][:2] == [flags.LEAK, flags.LEAK]
    assert "287 apples" in leak.text and "334" in leak.text
    new, opposite = found[4]
    assert (new.kind, new.flags) == ("add", ())
    assert opposite.flags[0].name == flags.DUPLICATE and "never multiply" in opposite.text


def test_a_reply_is_recorded_as_a_failure_that_two_brackets_mend(run: RunDir) -> None:
    state = run.state()
    (reply,) = state.repairs.values()
    assert (reply.id, state.lost) == ("s3p1", {"extraction": 1})
    (row,) = json.loads(reply.reply + "}]")
    assert row["operation"] == "add" and row["experience"].startswith("Last change: ")


def test_held_out_accuracy_rises_when_careless_proposals_are_rejected(run: RunDir) -> None:
    state = run.state()
    before, after = state.evaluations
    assert state.started is not None and state.started.rehearsal
    assert (before.mean, after.mean) == (0.525, 0.925)


def test_a_finished_demo_is_followed_by_a_new_one_and_one_that_was_left_goes_on(
    tmp_path: Path,
) -> None:
    def words(workspace: Workspace) -> list[str]:
        return [word for word in demo_words(workspace) if not word.endswith("demo.yaml")]

    new = ["--restart-step=0", "--"]
    workspace = Workspace(tmp_path / "practice")
    assert words(workspace) == [*new, "library.name=demo"]
    shutil.copytree(demo_workspace().path, workspace.path)
    assert words(workspace) == [*new, "library.name=demo-2"]
    journal = workspace.run("demo").journal
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:-1]))
    assert words(workspace) == ["--resume=demo"]  # its library is not that of the preset
    shutil.rmtree(workspace.path / "runs")  # its library stays
    assert words(workspace) == [*new, "library.name=demo-2"]


def test_without_a_terminal_it_names_the_commands_that_need_none(tmp_path: Path) -> None:
    found = studio("demo", workspace=tmp_path / "practice")
    assert found.code == 2 and "studio headless" in found.stderr
    assert not (tmp_path / "practice").exists()
