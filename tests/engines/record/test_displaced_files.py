"""A file that is taken away or cut while it is being written is noticed at the next append."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from engines.core import events as ev
from engines.core.errors import RecordError
from engines.record.journal import Journal, read_journal
from tests.support.builders import a_run, a_step


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    journal = Journal(tmp_path / "run" / "journal.jsonl")
    journal.append_now(a_run())
    return journal


def events(path: Path) -> list[str]:
    return [type(entry.event).__name__ for entry in read_journal(path)]


def refuse(journal: Journal, cause: str) -> RecordError:
    with pytest.raises(RecordError, match=cause) as first:
        journal.append_now(a_step())
    with pytest.raises(RecordError, match=cause):  # nothing is written behind what was not
        journal.append_now(ev.RunPaused())
    assert first.value.place == str(journal.path)
    journal.close()
    return first.value


def test_a_journal_that_was_removed_is_put_back_whole(journal: Journal) -> None:
    journal.path.unlink()
    assert "put back whole" in refuse(journal, "it was removed").move
    assert events(journal.path) == ["RunStarted", "StepStarted"]


def test_a_journal_that_was_replaced_is_kept_beside(journal: Journal, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copy(journal.path, other)
    other.replace(journal.path)
    kept = journal.path.with_name(f"journal.jsonl.kept-{os.getpid()}")
    assert kept.name in refuse(journal, "another file was put in its place").move
    assert events(journal.path) == ["RunStarted"]
    assert events(kept) == ["RunStarted", "StepStarted"]


def test_a_journal_that_was_cut_is_left_as_it_is(journal: Journal) -> None:
    os.truncate(journal.path, 100)
    told = refuse(journal, r"it was cut meanwhile: 100 bytes instead of \d")
    assert "studio doctor" in told.move
    assert journal.path.stat().st_size == 100


def test_a_second_writer_is_noticed(journal: Journal) -> None:
    with journal.path.open("ab") as file:
        file.write(b"something else\n")
    refuse(journal, "written to by something else")


def test_a_folder_that_was_moved_is_named(journal: Journal) -> None:
    journal.path.parent.rename(journal.path.parent.with_name("moved"))
    refuse(journal, "its folder was removed or moved")
