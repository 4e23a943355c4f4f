"""The history of a run is read once, and then only as far as its journal has grown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from engines.core import events as ev
from engines.record import lines
from engines.record.derived.run_state import HistoryReader, read_history
from engines.record.journal import Journal
from engines.record.run_dir import RunDir
from tests.support.builders import a_rollout_finished, a_run, a_step


def write(run: RunDir, *events: ev.DurableEvent) -> None:
    journal = Journal(run.journal)
    for event in events:
        journal.append_now(event)
    journal.close()


def test_only_new_lines_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, reader = RunDir(tmp_path), HistoryReader(RunDir(tmp_path).journal)
    assert reader.read().steps == {}, "there is no journal yet"
    write(run, a_run(), a_step())
    assert reader.read().last_step == 1
    write(run, a_rollout_finished(), a_step(2))
    begun: list[int] = []
    read = lines.read

    def watch(
        path: Path,
        *,
        chained: bool,
        visit: Callable[[lines.StoredLine], None],
        after: lines.StoredLine | None,
    ) -> lines.Contents:
        def count(line: lines.StoredLine) -> None:
            begun.append(line.number)
            visit(line)

        return read(path, chained=chained, visit=count, after=after)

    monkeypatch.setattr(lines, "read", watch)
    assert [rollout.id for rollout in reader.read().rollouts] == ["s1p0r0"]
    assert begun == [3, 4]
    reader.read()
    assert begun == [3, 4], "nothing new, nothing read"


def test_a_journal_that_was_cut_is_read_from_its_beginning(tmp_path: Path) -> None:
    run, reader = RunDir(tmp_path), HistoryReader(RunDir(tmp_path).journal)
    write(run, a_run(), a_step())
    before = run.journal.read_bytes()
    write(run, a_rollout_finished())
    assert list(reader.read().rollouts)
    run.journal.write_bytes(before)
    assert not list(reader.read().rollouts)
    assert read_history(run.journal) == reader.read()
