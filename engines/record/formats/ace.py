"""ACE playbook: sections of lines `[slug-00001] helpful=5 harmful=0 :: text`.

Its next id is the highest number behind a hyphen, so `E7` is written as `E-00007`.
"""

import re
from pathlib import Path

from engines.core.library_notes import NO_USES
from engines.record.formats.source import Card, ForeignEntry, ForeignLibrary, Source, count_lines

MOVE = "Give a playbook of lines `[slug-00001] helpful=5 harmful=0 :: text`."
ENTRY = re.compile(r"\[([^\]]*)\]\s*(helpful=\d+\s+harmful=\d+(?:\s+\w+=\S+)*)\s*::\s*(.*)")
_CARD = "EVALUATION OF THE LIBRARY"


def write(card: Card) -> bytes:
    lines = ["## EXPERIENCES"]
    for one in card.library.experiences:
        uses = card.library.notes.uses.get(one.id, NO_USES)
        name = re.sub(r"^E([1-9]\d*)$", lambda match: f"E-{match[1]:0>5}", one.id)
        lines.append(f"[{name}] helpful={uses.used} harmful={uses.misled} :: {one.text}")
    lines += ["", f"## {_CARD}", *(f"* {line}" for line in card.lines()), ""]
    return "\n".join(lines).encode("utf-8", "replace")


def read(path: Path) -> ForeignLibrary:
    source, section = Source(path, MOVE), ""
    found, left, card = [], list[str](), ""
    for number, line in enumerate(map(str.strip, source.text().split("\n")), 1):
        match = ENTRY.fullmatch(line)
        if line.startswith("#"):
            section = line.lstrip("#").strip()
        elif match and match[1]:
            name = re.sub(r"^E-0*(\d+)$", r"E\1", match[1])
            found.append((f":{number}", ForeignEntry(name, match[3], section, match[2])))
        elif line.startswith("["):
            cause = "its id is empty." if match else "it is no line of a playbook."
            raise source.error(cause, f":{number}")
        elif section != _CARD:
            left.append(line)
        else:
            card = card or line
    losses = count_lines(left, "of text that is no entry")
    return source.library("ace", found, losses, card=card)
