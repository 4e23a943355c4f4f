"""A living run whose journal is taken away stops, names it, and goes on when it is resumed."""

from __future__ import annotations

from pathlib import Path

from engines.record.run_dir import Workspace
from tests.support.processes import SMALL, running, studio


def test_a_run_whose_journal_is_removed_stops_by_name_and_loses_nothing(tmp_path: Path) -> None:
    with running(tmp_path, "rehearsal", *SMALL) as process:
        process.until("RolloutFinished", 3)
        journal = Workspace(tmp_path).run("rehearsal").journal
        journal.unlink()
        assert process.end() == 2
        assert process.child.stderr is not None
        seen = [event for event in process.events if event["kind"] == "RolloutFinished"]
    resumed = studio(tmp_path, "headless", "--resume", "rehearsal", "--json")
    assert resumed.returncode == 0
    kept = [type(entry.event).__name__ for entry in Workspace(tmp_path).run("rehearsal").entries()]
    assert kept.count("RolloutFinished") >= len(seen)
    assert kept.count("RunStarted") == kept.count("RunEnded") == 1
