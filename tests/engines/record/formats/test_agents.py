"""The section of a library in an AGENTS.md that belongs to somebody else."""

from __future__ import annotations

from pathlib import Path

import pytest

from engines.core.errors import DataError
from engines.record.formats.source import Card
from engines.record.formats.table import read_foreign, write_foreign
from engines.record.run_dir import Workspace
from tests.support.builders import a_library


def export(library_name: str, path: Path, *texts: str) -> bytes:
    write_foreign(
        Card(a_library(*texts, name=library_name)),
        "agents",
        path,
        Workspace(path.parent / "practice"),
    )
    return path.read_bytes()


@pytest.mark.parametrize(
    "present",
    [b"", b"# Rules\n", b"# Rules\r\n\r\n* a\r\n", b"no end", b"\xef\xbb\xbf# R\n\n\n", b"\n\n\n"],
)
def test_all_around_the_section_stays_byte_for_byte(present: bytes, tmp_path: Path) -> None:
    path = tmp_path / "AGENTS.md"
    path.write_bytes(present)
    once = export("one", path, "Carry.")
    assert once.startswith(present)
    assert export("one", path, "Carry.") == once
    path.write_bytes(once + b"tail \r\n end")
    again = export("one", path, "Carry the ten.", "Borrow.")
    assert again.startswith(present) and again.endswith(
        b"<!-- practice-studio:end one -->\ntail \r\n end"
    )
    assert again.count(b"begin one") == 1 and b"Carry.\n" not in again
    assert export("one", path, "Carry.") == once + b"tail \r\n end"


def test_two_libraries_have_sections_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "AGENTS.md"
    export("one", path, "Carry.")
    both = export("two", path, "Borrow.")
    assert export("one", path, "Carry.") == both
    found = read_foreign(path)
    assert (found.name, [e.text for e in found.entries]) == ("one", ["Carry."])
    assert "the section of library two" in found.losses


@pytest.mark.parametrize("cut", [b"begin one", b"end one"])
def test_a_marker_without_its_other_half_is_refused(cut: bytes, tmp_path: Path) -> None:
    path = tmp_path / "AGENTS.md"
    whole = export("one", path, "Carry.")
    lines = [line for line in whole.split(b"\n") if cut not in line]
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(DataError, match="other half"):
        export("one", path, "Carry.")
    with pytest.raises(DataError, match="pairs"):
        read_foreign(path)
    assert path.read_bytes() == b"\n".join(lines)


def test_a_section_that_stands_there_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "AGENTS.md"
    whole = export("one", path, "Carry.")
    path.write_bytes(whole * 2)
    with pytest.raises(DataError, match="twice"):
        export("one", path, "Carry.")


def test_nothing_is_added_to_a_file_of_another_encoding(tmp_path: Path) -> None:
    path = tmp_path / "AGENTS.md"
    path.write_bytes("# Rules\n".encode("utf-16"))
    with pytest.raises(DataError, match="UTF-8"):
        export("one", path, "Carry.")


def test_a_link_stays_a_link_and_the_mode_of_its_file_stays(tmp_path: Path) -> None:
    real, link = tmp_path / "CLAUDE.md", tmp_path / "AGENTS.md"
    real.write_text("# Rules\n")
    real.chmod(0o664)
    link.symlink_to(real.name)
    export("one", link, "Carry.")
    assert link.is_symlink() and real.stat().st_mode & 0o777 == 0o664
    assert "Carry." in real.read_text()
