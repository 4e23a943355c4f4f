"""The catalogue and the workspace it lists: rebuildable, never the only copy of a fact."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from engines.core import events as ev
from engines.core.errors import ConflictError
from engines.core.types import Usage, Verdict
from engines.record.derived.catalogue import (
    open_catalogue,
    refresh_catalogue,
    run_row,
)
from engines.record.journal import Journal
from engines.record.run_dir import RunDir, Workspace
from tests.engines.record.test_journal import file_size_limit
from tests.support.builders import (
    a_decision,
    a_lesson,
    a_rollout_finished,
    a_run,
    a_step,
    an_operation,
    approved,
)


def a_recorded_run(workspace: Workspace, run: str, *events: ev.DurableEvent, at: float = 5) -> None:
    journal = Journal(workspace.runs_folder / run / "journal.jsonl", clock=lambda: at)
    known = bool(journal.entries)
    for event in (*(() if known else (a_run(run=run, exp_id=run),)), *events):
        journal.append_now(event)
    journal.close()


def test_a_run_row_gives_rates_with_their_n(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    verdicts = (Verdict(1.0), Verdict(0.0), Verdict(None, error="timeout"))
    judged = (ev.RolloutJudged(1, 0, n, verdict) for n, verdict in enumerate(verdicts))
    tried = (a_rollout_finished(0, n) for n in range(3))
    a_recorded_run(workspace, "exp", a_step(), *tried, *judged)
    row = run_row(workspace.run("exp"))
    assert row["rewards"] == {"1": {"mean": 0.5, "n": 2}}
    assert row["curve"] == {"of": "reward", "points": []}  # no step is through
    assert (row["status"], row["steps"], row["losses"], row["began"]) == ("running", 0, 1, 5)
    # 3 rollouts of 3 + 4 tokens
    assert (row["tokens"], row["cost_usd"], row["open"]) == (21, None, 0)


def _put_in_place(new: Path, journal: Path) -> None:
    shutil.copy2(new, journal)


def _rename(new: Path, journal: Path) -> None:
    shutil.copy2(new, new.with_name("moved"))
    new.with_name("moved").replace(journal)


def _regrow(new: Path, journal: Path) -> None:
    raw = new.read_bytes()
    with journal.open("r+b") as file:
        file.truncate(raw.index(b"\n") + 1)
        file.seek(0, 2)
        file.write(raw[file.tell() :])


@pytest.mark.parametrize("replace_by", [_put_in_place, _rename, _regrow])
def test_a_journal_that_another_of_its_length_replaced_is_read_again(
    replace_by: Callable[[Path, Path], None], tmp_path: Path
) -> None:
    workspace, other = Workspace(tmp_path / "here"), Workspace(tmp_path / "backup")
    a_recorded_run(workspace, "exp", ev.RunEnded("finished", "x"))
    a_recorded_run(other, "exp", ev.RunEnded("stopped", "xy"))
    journal, new = workspace.run("exp").journal, other.run("exp").journal
    assert journal.stat().st_size == new.stat().st_size
    times = (journal.stat().st_atime_ns, journal.stat().st_mtime_ns)
    assert refresh_catalogue(workspace)[0]["status"] == "finished"
    replace_by(new, journal)
    os.utime(journal, ns=times)  # as with a clock that was set back
    assert refresh_catalogue(workspace)[0]["status"] == "stopped"
    assert workspace.run("exp").state().reason == "xy"


def test_a_copied_run_folder_goes_under_its_own_name(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    a_recorded_run(workspace, "exp", ev.RunEnded("finished"))
    refresh_catalogue(workspace)
    shutil.copytree(workspace.runs_folder / "exp", workspace.runs_folder / "copy")
    a_recorded_run(workspace, "copy", ev.RunResumed(1, 1, "wait", {}))
    assert [(row["run"], row["status"]) for row in refresh_catalogue(workspace)] == [
        ("copy", "running"),
        ("exp", "finished"),
    ]


def test_rows_older_than_their_journal_are_made_again(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    a_recorded_run(workspace, "exp")
    assert [row["status"] for row in refresh_catalogue(workspace)] == ["running"]
    a_recorded_run(workspace, "exp", ev.RunEnded("finished"))
    assert [row["status"] for row in refresh_catalogue(workspace)] == ["finished"]


def test_runs_are_listed_oldest_first_and_removed_ones_leave(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    a_recorded_run(workspace, "zeta", at=1)
    a_recorded_run(workspace, "alpha", at=2)
    assert [row["run"] for row in refresh_catalogue(workspace)] == ["zeta", "alpha"]
    (workspace.runs_folder / "zeta" / "journal.jsonl").unlink()
    assert [row["run"] for row in refresh_catalogue(workspace)] == ["alpha"]
    with open_catalogue(workspace) as database:
        assert [row["run"] for row in database.table("runs")] == ["alpha"]


def test_a_library_and_its_live_experiences_are_noted_once(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    folder = workspace.library("lib")
    folder.create(None)
    one, two = (an_operation(id=name, evidence=("s1p0r1",)) for name in ("op1.1", "op1.2"))
    for step, reviewed in enumerate(
        (approved(one, two), approved(an_operation("delete", "E1", id="op2.1"))), 1
    ):
        with folder.lock_for_commit() as library:
            library.commit(reviewed, run="exp", step=step)
        refresh_catalogue(workspace)
    with open_catalogue(workspace) as database:
        (row,) = database.table("libraries").all()
        assert (row["library"], row["version"], row["experiences"]) == ("lib", 2, 1)
        (experience,) = database.table("experiences").all()
    assert (experience["id"], experience["run"], experience["operation"]) == (
        "E2",
        "exp",
        "op1.2",
    )
    assert (experience["reviewer"], experience["evidence"]) == ("person", ["s1p0r1"])


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"runs": {"1": '])
def test_a_lost_or_damaged_catalogue_is_rebuilt_from_the_journals(
    tmp_path: Path, damage: bytes
) -> None:
    workspace = Workspace(tmp_path)
    a_recorded_run(workspace, "exp")
    workspace.library("lib").create(None)
    before = refresh_catalogue(workspace)
    workspace.catalogue.write_bytes(damage)
    assert refresh_catalogue(workspace) == before
    workspace.catalogue.unlink()
    assert refresh_catalogue(workspace) == before
    with open_catalogue(workspace) as database:
        assert [row["library"] for row in database.table("libraries")] == ["lib"]


def test_stale_temporary_files_are_cleaned_at_opening(tmp_path: Path) -> None:
    stale = tmp_path / ".catalogue.json.1.tmp"
    stale.write_text("half")
    with open_catalogue(Workspace(tmp_path)):
        assert not stale.exists()


def test_a_fresh_run_of_a_name_counts_on_and_the_newest_is_found(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    assert workspace.newest_run("exp") is None
    for run in ("exp", "exp-2", "exp-3"):
        fresh = workspace.new_run_dir("exp")
        assert fresh.run == run
        journal = Journal(fresh.journal)
        journal.append_now(a_run(run=run, exp_id="exp"))
        journal.close()
    newest = workspace.newest_run("exp")
    assert newest is not None and newest.run == "exp-3"


def test_an_experiment_called_like_a_second_run_is_an_experiment_of_its_own(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    a_recorded_run(workspace, "exp")
    a_recorded_run(workspace, "exp-2")  # of the experiment "exp-2"
    newest = workspace.newest_run("exp")
    assert newest == RunDir(workspace.runs_folder / "exp")
    assert workspace.newest_run("exp-2") == RunDir(workspace.runs_folder / "exp-2")
    assert workspace.new_run_dir("exp").run == "exp-3"  # and its folder is not taken over


def test_an_unknown_run_is_told_with_those_there_are(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    with pytest.raises(ConflictError, match="none yet"):
        workspace.run("exp")
    a_recorded_run(workspace, "other")
    with pytest.raises(ConflictError, match="There are: other"):
        workspace.run("exp")


def test_the_state_of_a_living_run_is_read_from_its_journal(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    operation = an_operation()
    a_recorded_run(
        workspace,
        "exp",
        a_step(),
        ev.LessonProposed(1, a_lesson(operation)),
        ev.OperationDecided(1, a_decision(operation, "defer")),
    )
    state = workspace.run("exp").state()
    assert state.open_operations == (operation,)


def test_a_catalogue_that_finds_no_room_stays_as_it_was(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    a_recorded_run(workspace, "exp")
    refresh_catalogue(workspace)
    before = workspace.catalogue.read_bytes()
    a_recorded_run(workspace, "exp", ev.RunEnded("finished"))
    with file_size_limit(50):
        assert [row["status"] for row in refresh_catalogue(workspace)] == ["finished"]
    assert workspace.catalogue.read_bytes() == before
    assert [row["status"] for row in refresh_catalogue(workspace)] == ["finished"]


def test_a_catalogue_is_rebuilt_without_what_is_damaged(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    a_recorded_run(workspace, "good")
    a_recorded_run(workspace, "bad", ev.RunPaused())
    journal = workspace.run("bad").journal
    journal.write_bytes(journal.read_bytes().replace(b"RunPaused", b"RunPoused"))
    rows = refresh_catalogue(workspace)
    assert [row["status"] for row in rows if "error" in row] == ["damaged"]
    with open_catalogue(workspace) as database:
        assert [row["run"] for row in database.table("runs")] == ["good"]


def test_a_run_of_an_endpoint_that_was_believed_too_much_can_be_listed(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    absurd = replace(a_rollout_finished(0, 0), usage=Usage(2**62, 2**62, 1))
    again = replace(absurd, index=1)
    a_recorded_run(workspace, "exp", a_step(), absurd, again)
    assert run_row(workspace.run("exp"))["tokens"] == 2**63 - 1
    assert [row["run"] for row in refresh_catalogue(workspace)] == ["exp"]
