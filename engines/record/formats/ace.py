"""ACE playbook: sections of lines `[slug-00001] helpful=5 harmful=0 :: text`.

Its next id is the highest number behind a hyphen, so `E7` is written as `E-00007`.
"""

from __future__ import annotations

import re
from pathlib import Path

from engines.core.errors import DataError
from engines.core.library import Library
from engines.core.state.use_counts import NO_USES
from engines.record.formats.card import Card
from engines.record.formats.entries import (
    ForeignEntry,
    ForeignLibrary,
    Placed,
    check_entries,
    read_text,
)

MOVE = "Give a playbook of lines `[slug-00001] helpful=5 harmful=0 :: text`."
ENTRY = re.compile(r"\[([^\]]*)\]\s*((?:[a-z_]+=\S+\s+)+):: ?(.*)")
_COUNTS = re.compile(r"(?=.*\bhelpful=\d+\b)(?=.*\bharmful=\d+\b)")


def write(library: Library, card: Card) -> bytes:
    lines = ["## EXPERIENCES"]
    for one in library.experiences:
        uses = library.uses.get(one.id, NO_USES)
        lines.append(f"[{_to_ace(one.id)}] helpful={uses.used} harmful={uses.misled} :: {one.text}")
    text = "\n".join([*lines, "", "## EVALUATION", *card.lines()])
    return f"{text}\n".encode("utf-8", "replace")


def read(path: Path) -> ForeignLibrary:
    text, left = read_text(path, MOVE), 0
    lines: list[tuple[int, str, str]] = []
    section = ""
    for number, line in enumerate(map(str.strip, text.split("\n")), 1):
        if line.startswith("#"):
            section = line.lstrip("#").strip()
        elif line.startswith("["):
            lines.append((number, section, line))
        else:
            left += bool(line) and section != "EVALUATION"
    entries = check_entries(path, _entries(path, lines), MOVE)
    losses = (f"{left} line{'s' * (left != 1)} of text that is no entry",) if left else ()
    return ForeignLibrary("ace", path.stem, entries, losses)


def _entries(path: Path, lines: list[tuple[int, str, str]]) -> Placed:
    for number, section, line in lines:
        match = ENTRY.fullmatch(line)
        if match is None or not _COUNTS.match(match[2]):
            raise DataError(f"{path}:{number}", "it is no line of a playbook.", MOVE)
        if not match[1]:
            raise DataError(f"{path}:{number}", "its id is empty.", MOVE)
        note = " ".join(match[2].split())
        yield f":{number}", ForeignEntry(_from_ace(match[1]), match[3], section, note)


def _to_ace(name: str) -> str:
    number = name[1:]
    return f"E-{number:0>5}" if name[0] == "E" and number.isascii() and number.isdigit() else name


def _from_ace(name: str) -> str:
    return re.sub(r"^E-0*(\d+)$", r"E\1", name)
