"""AGENTS.md: a section of its own between two markers, one for each library.

Everything outside the markers is somebody else's, and stays byte for byte.
"""

from __future__ import annotations

import re
from pathlib import Path

from engines.core.errors import DataError
from engines.core.library import Library
from engines.record.formats.card import Card
from engines.record.formats.entries import ForeignLibrary, check_entries, read_text
from engines.record.formats.prompt import read_lines

MOVE = "Give an AGENTS.md with a section of a library, or with a list."
_SECTION = re.compile(
    r"^<!-- practice-studio:begin (\S+) -->\n(.*?)^<!-- practice-studio:end \1 -->$", re.M | re.S
)
_MARKER = re.compile(r"^<!-- practice-studio:(?:begin|end) (\S+) -->\r?$", re.M)


def write(library: Library, card: Card) -> bytes:
    """The section alone."""
    # What closes a comment or begins one must not stand inside a comment.
    comments = "".join(f"<!-- {line.replace('--', '- -')} -->\n" for line in card.lines())
    begin, end = (f"<!-- practice-studio:{what} {library.name} -->" for what in ("begin", "end"))
    return f"{begin}\n{library.guidance()}\n\n{comments}{end}\n".encode("utf-8", "replace")


def merge(path: Path, present: bytes, section: bytes) -> bytes:
    """A file with the section in the place of the one before, or behind all else."""
    begin, end = section.split(b"\n", 1)[0], section.rstrip(b"\n").rsplit(b"\n", 1)[1]
    lines = present.split(b"\n")
    marks = [[at for at, one in enumerate(lines) if one.rstrip(b"\r") == m] for m in (begin, end)]
    match marks:
        case [[], []]:
            gap = b"" if not present else b"\n" if present.endswith(b"\n") else b"\n\n"
            return present + gap + section
        case [[first], [last]] if first < last:
            rest = lines[last + 1 :]
            return b"\n".join([*lines[:first], section.rstrip(b"\n"), *rest])
    name = begin.decode().split()[2]
    cause = f"its markers of library {name} do not stand there in a pair."
    raise DataError(str(path), cause, "Take what is left of them out, then export again.")


def has_markers(text: str) -> bool:
    return _MARKER.search(text) is not None


def read(path: Path) -> ForeignLibrary:
    text = read_text(path, MOVE)
    sections = list(_SECTION.finditer(text))
    if not sections:
        if marker := _MARKER.search(text):
            cause = f"its markers of library {marker[1]} do not stand there in a pair."
            raise DataError(str(path), cause, "Mend them, or take them out.")
        found, losses = read_lines(text, number=1)
        return ForeignLibrary("agents", path.stem, check_entries(path, found, MOVE), losses)
    first, *others = sections
    found, losses = read_lines(first[2], number=text.count("\n", 0, first.start(2)) + 1)
    rest = _SECTION.sub("", text)
    n = sum(bool(line.strip()) for line in rest.split("\n"))
    losses += (f"{n} lines outside of the section",) if n else ()
    losses += tuple(f"the section of library {one[1]}: export each to a file" for one in others)
    return ForeignLibrary("agents", first[1], check_entries(path, found, MOVE), losses)
