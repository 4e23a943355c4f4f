"""A library's journal is read once, and then only where it is new or no longer what it was."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from engines.core.errors import ConflictError, DamagedError
from engines.record.libraries import LibraryFolder
from tests.support.builders import an_operation, approved


def a_folder(tmp_path: Path) -> LibraryFolder:
    folder = LibraryFolder(tmp_path / "libraries" / "lib")
    folder.create(None)
    return folder


def commit(folder: LibraryFolder, text: str) -> None:
    with folder.lock_for_commit() as library:
        library.commit(approved(an_operation("add", None, text)))


def texts(folder: LibraryFolder) -> list[str]:
    return [e.text for e in folder.head().experiences]


def test_what_another_process_committed_is_seen_and_built_upon(tmp_path: Path) -> None:
    ours, theirs = a_folder(tmp_path), LibraryFolder(tmp_path / "libraries" / "lib")
    for number in range(3):
        commit(ours, f"Ours {number}.")
        commit(theirs, f"Theirs {number}.")
    wanted = [f"{who} {number}." for number in range(3) for who in ("Ours", "Theirs")]
    assert texts(ours) == texts(theirs) == wanted
    assert texts(LibraryFolder(ours.path)) == wanted, "the file holds the same, chained"


def test_a_journal_that_was_replaced_is_read_anew(tmp_path: Path) -> None:
    folder = a_folder(tmp_path)
    commit(folder, "One.")
    shutil.copy(folder.journal_path, tmp_path / "copy")
    commit(folder, "Two.")
    assert texts(folder) == ["One.", "Two."]
    shutil.copy(tmp_path / "copy", folder.journal_path)
    assert texts(folder) == ["One."]
    commit(folder, "Three.")
    assert texts(folder) == texts(LibraryFolder(folder.path)) == ["One.", "Three."]
    shutil.rmtree(folder.path)
    with pytest.raises(ConflictError):
        folder.head()


def test_damage_to_the_last_line_that_was_read_is_refused(tmp_path: Path) -> None:
    folder = a_folder(tmp_path)
    commit(folder, "One.")
    assert texts(folder) == ["One."]
    data = folder.journal_path.read_bytes()
    folder.journal_path.write_bytes(data.replace(b"One.", b"0ne."))
    with pytest.raises(DamagedError), folder.lock_for_commit():
        pass


IO = Path("/proc/self/io")


@pytest.mark.skipif(not IO.exists(), reason="nothing here counts what a process reads")
def test_a_commit_reads_no_more_of_a_long_journal_than_of_a_short_one(tmp_path: Path) -> None:
    folder = a_folder(tmp_path)

    def read_by(number: int) -> int:
        before = int(IO.read_text().split()[1])
        commit(folder, f"Rule {number:03d}.")
        return int(IO.read_text().split()[1]) - before

    commits = [read_by(number) for number in range(40)]
    assert commits[39] <= commits[5] * 1.02 + 20  # the digits of numbers and offsets grow
