"""A plain prompt: the guidance alone; and experiences as they stand in prompts of any kind.

Text of ours is read line by line. Of others' every `[G0]. text` line is an experience; where there
is none, every item of a list; where there is no list, every paragraph that is no heading.
"""

import re
from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path

from engines.core.library import guidance_text
from engines.record.formats.source import Card, ForeignEntry, ForeignLibrary, Source, count_lines

MOVE = "Give a prompt with a list of experiences, as text or Markdown."
HEAD = guidance_text([("E1", "x")]).removesuffix("[E1] x")
_OURS = re.compile(r"\[(?P<id>[^\]\s]+)\] (?P<text>.+)")
_FOREIGN = (
    re.compile(r"\s*(?:[-*+] )?\[(?P<id>[^\W_][\w.-]*\d)\]\.?\s+(?P<text>\S.*)"),
    re.compile(r"\s*(?:[-*+•]|\d+[.)])\s+(?P<text>\S.*)"),
)
_NO_TEXT = re.compile(r"\s*(#{1,6}\s|<!--|---+\s*$|```|$)")

Found = list[tuple[str, ForeignEntry]]


def write(card: Card) -> bytes:
    """No card: whatever stands there, a model reads."""
    return card.library.guidance().encode("utf-8", "replace")


def read(path: Path) -> ForeignLibrary:
    source = Source(path, MOVE)
    return source.library("prompt", *read_lines(source.text()))


def read_texts(texts: Mapping[str, str]) -> tuple[Found, list[str]]:
    """Those of several prompts, each under its place inside a file."""
    found: Found = []
    losses: list[str] = []
    for inside, text in texts.items():
        entries, left = read_lines(text)
        found += [(inside, entry) for _, entry in entries]
        losses += [f"{inside.lstrip(': ')}: {loss}" for loss in left]
    return found, losses


def read_lines(text: str, number: int = 1) -> tuple[Found, tuple[str, ...]]:
    """Experiences, each with its line, and what is left out. `number`: of the first line."""
    before, head, behind = text.partition(HEAD)
    if head:
        number += (before + head).count("\n")
        lines = behind.split("\n")
        ours = list(takewhile(bool, map(_OURS.fullmatch, lines)))
        found = [(f":{number + at}", _entry(m, [])) for at, m in enumerate(ours) if m]
        left = lines[len(ours) :]  # what stands before are instructions
    else:
        found, left = _read_foreign(text.split("\n"), number)
    left = [line for line in left if not line.startswith("<!--")]
    return found, count_lines(left, "of text that is no experience")


def _read_foreign(lines: list[str], number: int) -> tuple[Found, list[str]]:
    """Items, or paragraphs; a line that goes on below one belongs to it."""
    pattern = next((p for p in _FOREIGN if any(map(p.match, lines))), None)
    blocks: list[tuple[int, re.Match[str] | None, list[str]]] = []
    left, is_inside = [], False
    for at, line in enumerate(lines, number):
        match = pattern.match(line) if pattern else None
        if _NO_TEXT.match(line) or not (match or is_inside or pattern is None):
            left.append(line)
            is_inside = False
        elif is_inside and not match:
            blocks[-1][2].append(line)
        else:
            blocks.append((at, match, [] if match else [line]))
            is_inside = True
    return [(f":{at}", _entry(match, more)) for at, match, more in blocks], left


def _entry(match: re.Match[str] | None, more: list[str]) -> ForeignEntry:
    parts = match.groupdict() if match else {}
    return ForeignEntry(parts.get("id", ""), " ".join(filter(None, (parts.get("text"), *more))))
