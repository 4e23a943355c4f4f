"""ACE playbook: sections of lines `[slug-00001] helpful=5 harmful=0 :: text`.

Its next id is the highest number behind a hyphen, so `E7` is written as `E-00007`.
"""

from __future__ import annotations

import re
from pathlib import Path

from engines.core.state.use_counts import NO_USES
from engines.record.formats.card import Card
from engines.record.formats.source import (
    ForeignEntry,
    ForeignLibrary,
    Placed,
    Source,
    count_lines,
)

MOVE = "Give a playbook of lines `[slug-00001] helpful=5 harmful=0 :: text`."
ENTRY = re.compile(r"\[([^\]]*)\]\s*(helpful=\d+\s+harmful=\d+(?:\s+\w+=\S+)*)\s*::\s*(.*)")
_CARD = "EVALUATION"


def write(card: Card) -> bytes:
    lines = ["## EXPERIENCES"]
    for one in card.library.experiences:
        uses = card.library.uses.get(one.id, NO_USES)
        name = re.sub(r"^E([1-9]\d*)$", lambda match: f"E-{match[1]:0>5}", one.id)
        lines.append(f"[{name}] helpful={uses.used} harmful={uses.misled} :: {one.text}")
    return "\n".join([*lines, "", f"## {_CARD}", *card.lines(), ""]).encode("utf-8", "replace")


def read(path: Path) -> ForeignLibrary:
    source, section = Source(path, MOVE), ""
    found: list[tuple[int, str, str]] = []
    left = []
    for number, line in enumerate(map(str.strip, source.text().split("\n")), 1):
        if line.startswith("#"):
            section = line.lstrip("#").strip()
        elif line.startswith("[") and section != _CARD:
            found.append((number, section, line))
        elif section != _CARD:
            left.append(line)
    losses = count_lines(left, "of text that is no entry")
    return source.library("ace", _entries(source, found), losses)


def _entries(source: Source, lines: list[tuple[int, str, str]]) -> Placed:
    for number, section, line in lines:
        match = ENTRY.fullmatch(line)
        if match is None or not match[1]:
            cause = "its id is empty." if match else "it is no line of a playbook."
            raise source.error(cause, f":{number}")
        name = re.sub(r"^E-0*(\d+)$", r"E\1", match[1])
        yield f":{number}", ForeignEntry(name, match[3], section, match[2])
