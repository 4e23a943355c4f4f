"""What each command says to do next: one line on stderr that is true, and none with --json."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from engines.core import events as ev
from engines.core.state.fold import fold_events
from engines.core.state.run_state import RunState
from studio.facts.next_command import command_after_run
from studio.render.lines import tell_next
from tests.support.builders import a_lesson, a_run, a_step, an_operation
from tests.support.demo_run import demo_workspace
from tests.support.run_studio import Result, studio

QUICK = ("evaluation.limit=4", "--library", "demo")


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    shutil.copytree(demo_workspace().path, tmp_path / "practice")
    return tmp_path / "practice"


def next_words(found: Result, workspace: Path) -> list[str]:
    """The command of the last line, without the workspace that it names."""
    last = found.stderr.splitlines()[-1]
    start = f"next: studio --workspace {shlex.quote(str(workspace))} "
    assert last.startswith(start), found.stderr
    return shlex.split(last.removeprefix(start))


@pytest.mark.parametrize(
    ("words", "then"),
    [
        (("library", "edit", "demo", "E1", "--text", "Say more."), "diff demo@2 demo@3"),
        (("library", "revert", "demo@0"), "diff demo@2 demo@3"),
        (("diff", "demo@0", "demo@2"), "library history demo"),
        (("data", "add", "arithmetic-demo.jsonl", "--name", "mine"), "data preview mine"),
        (("eval", "rehearsal", *QUICK, "--baseline", "none"), "library history demo"),
        (("try", "rehearsal", "seed=2"), "headless rehearsal seed=2"),
        (("review", "demo"), "review demo"),
        (("headless", "--resume", "demo"), "review demo"),
    ],
)
def test_a_command_ends_with_one_that_can_be_typed_as_it_stands(
    words: Sequence[str], then: str, workspace: Path
) -> None:
    bundled = Path(__file__).parents[3] / "sample_data"
    found = studio(*words, workspace=workspace, cwd=bundled)
    moved = next_words(found, workspace)
    assert " ".join(moved) == then
    if moved[0] in ("diff", "library", "data"):  # those that neither ask nor practise
        assert studio(*moved, workspace=workspace).code == 0


def test_a_measurement_without_a_baseline_is_told_how_to_get_one(workspace: Path) -> None:
    found = studio("eval", "rehearsal", *QUICK, workspace=workspace)
    assert found.stderr.splitlines()[-1].startswith("next: the same with --baseline none")
    quiet = studio("eval", "rehearsal", *QUICK, "--json", workspace=workspace)
    assert "next:" not in quiet.stderr + quiet.stdout


def finished(**more: object) -> RunState:
    state = fold_events([a_run(), a_step(), ev.RunEnded("finished")])
    for name, value in more.items():
        setattr(state, name, value)
    return state


def test_what_waits_goes_before_what_came_of_a_run() -> None:
    assert command_after_run(RunState()) == ""
    assert command_after_run(finished()) == "studio runs show exp"
    assert command_after_run(finished(library_version=3)) == "studio diff exp@epoch:0 exp@epoch:1"
    saved = ev.CheckpointSaved(1, "checkpoints/step-0001", 1, "d")
    trained = finished(checkpoints=[saved], training={1: {}})
    assert command_after_run(trained) == "studio export exp --merged --to exp-model"
    stopped = finished(status="stopped", ending="stopped", library_version=3)
    assert command_after_run(stopped) == "studio headless --resume exp"
    waiting = fold_events([a_run(), a_step(), ev.LessonProposed(1, a_lesson(an_operation()))])
    assert command_after_run(waiting) == "studio review exp"
    budget = finished(status="stopped", ending="budget", reason="budget.tokens=9: 8 spent")
    assert command_after_run(budget) == "studio headless --resume exp budget.tokens=…"


def test_the_workspace_is_named_where_it_is_not_the_usual_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    tell_next("studio demo", Path("practice"))
    tell_next("", Path("elsewhere"))
    tell_next("studio demo", Path("my work"))
    assert capsys.readouterr() == (
        "",
        "next: studio demo\nnext: studio --workspace 'my work' demo\n",
    )
