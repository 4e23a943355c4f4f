"""AGENTS.md: a section of its own between two markers, one for each library.

Everything outside the markers is somebody else's, and stays byte for byte.
"""

import re
from pathlib import Path

from engines.core.errors import DataError
from engines.record.formats.prompt import read_lines
from engines.record.formats.source import Card, ForeignLibrary, Source, count_lines

NAMES = ("AGENTS.md", "CLAUDE.md")
MOVE = "Give an AGENTS.md with the section of a library, or with a list."
MARKER = re.compile(r"^<!-- practice-studio:(begin|end) (\S+) -->\r?$", re.M)


def write(card: Card) -> bytes:
    """The section alone."""
    begin, end = (f"<!-- practice-studio:{at} {card.library.name} -->" for at in ("begin", "end"))
    # Two hyphens would end a comment.
    comments = "".join(f"<!-- {re.sub('-{2,}', '-', line)} -->\n" for line in card.lines())
    return f"{begin}\n{card.library.guidance()}\n\n{comments}{end}\n".encode("utf-8", "replace")


def merge(path: Path, section: bytes) -> bytes:
    """The file with the section in the place of the one before, or behind all else."""
    present = path.read_bytes() if path.is_file() else b""
    Source(path, "Make it UTF-8 first, since the section is.").decode(present)
    marks = (section.split(b"\n", 1)[0], section.rstrip(b"\n").rpartition(b"\n")[2])
    lines = present.split(b"\n")
    first, last = ([at for at, one in enumerate(lines) if one.rstrip(b"\r") == m] for m in marks)
    if not first and not last:
        gap = b"\n" * (2 - present.endswith(b"\n")) if present else b""
        return present + gap + section
    if len(first) != 1 or len(last) != 1 or first > last:
        cause = "a marker of this library has lost its other half, or stands there twice."
        move = "Take what is left of its section out, then export again."
        raise DataError(f"{path}:{1 + max(first + last)}", cause, move)
    return b"\n".join([*lines[: first[0]], section.rstrip(b"\n"), *lines[last[0] + 1 :]])


def read(path: Path) -> ForeignLibrary:
    """The first section; where there is none, the list that the file holds."""
    source = Source(path, MOVE)
    text = source.text()
    marks = list(MARKER.finditer(text))
    if not marks:
        return source.library("agents", *read_lines(text))
    kinds, names = ([mark[at] for mark in marks] for at in (1, 2))
    if kinds != ["begin", "end"] * (len(marks) // 2) or names[::2] != names[1::2]:
        raise source.error("its markers do not stand in pairs.", move="Mend them first.")
    begin, end = marks[0].end(), marks[1].start()
    found, losses = read_lines(text[begin:end], text.count("\n", 0, begin) + 1)
    outside = (text[: marks[0].start()] + text[marks[1].end() :]).split("\n")
    losses += count_lines(outside, "outside of that section")
    losses += tuple(f"the section of library {name}" for name in names[2::2])
    version = re.search(r"^<!-- library \S+@(\d{1,18}), content ", text[begin:end], re.M)
    card = {"library": names[0], "version": int(version[1]) if version else None}
    return source.library("agents", found, losses, names[0], card)
