"""A plain prompt: the guidance alone; and experiences as they stand in prompts of any kind.

Text of ours is read line by line. Of others' every `[G0]. text` line is an experience; where there
is none, every item of a list; where there is no list, every paragraph that is no heading.
"""

from __future__ import annotations

import re
from pathlib import Path

from engines.core.library import Library, guidance_text
from engines.record.formats.card import Card
from engines.record.formats.entries import ForeignEntry, ForeignLibrary, check_entries, read_text

MOVE = "Give a prompt with a list of experiences, as text or Markdown."
_HEAD = guidance_text([("E1", "x")]).removesuffix("[E1] x")
_OURS = re.compile(r"\[([^\]\s]+)\] (.+)")
_NAMED = re.compile(r"\s*(?:[-*+] )?\[([^\W_][\w.-]*\d)\]\.?\s+(\S.*)")
_ITEM = re.compile(r"\s*(?:[-*+•]|\d+[.)])\s+(\S.*)")
_HEADING = re.compile(r"\s*(#{1,6}\s|<!--|---+\s*$|```)")

_Found = list[tuple[str, ForeignEntry]]


def write(library: Library, card: Card) -> bytes:
    """No card: whatever stands there, a model reads."""
    return f"{library.guidance()}\n".encode()


def read(path: Path) -> ForeignLibrary:
    found, losses = read_lines(read_text(path, MOVE), number=1)
    return ForeignLibrary("prompt", path.stem, check_entries(path, found, MOVE), losses)


def read_lines(text: str, number: int | None = None) -> tuple[_Found, tuple[str, ...]]:
    """Experiences with their places, and what is left out. `number`: of the first line."""
    before, head, behind = text.partition(_HEAD)
    if head:
        numbered = None if number is None else number + (before + head).count("\n")
        ours, left = _read_ours(behind.split("\n"), numbered)
        return ours, _losses([*before.split("\n"), *left])
    lines = text.split("\n")
    for pattern in (_NAMED, _ITEM):
        if any(pattern.match(line) for line in lines):
            return _read_items(lines, pattern, number)
    return _read_paragraphs(lines, number)


def _read_ours(lines: list[str], number: int | None) -> tuple[_Found, list[str]]:
    found: _Found = []
    for at, line in enumerate(lines):
        if (match := _OURS.fullmatch(line)) is None:
            return found, lines[at:]
        found.append((_place(number, at), ForeignEntry(match[1], match[2])))
    return found, []


def _read_items(
    lines: list[str], pattern: re.Pattern[str], number: int | None
) -> tuple[_Found, tuple[str, ...]]:
    """Items of a list; a line that goes on below one belongs to it."""
    found: list[tuple[int, str, list[str]]] = []
    left, is_inside = [], False
    for at, line in enumerate(lines):
        if (match := pattern.match(line)) is not None:
            found.append((at, match[1] if pattern is _NAMED else "", [match[match.re.groups]]))
            is_inside = True
        elif is_inside and line.strip() and not _HEADING.match(line):
            found[-1][2].append(line)
        else:
            is_inside = False
            left.append(line)
    entries = [
        (_place(number, at), ForeignEntry(name, " ".join(parts))) for at, name, parts in found
    ]
    return entries, _losses(left)


def _read_paragraphs(lines: list[str], number: int | None) -> tuple[_Found, tuple[str, ...]]:
    found: list[tuple[int, list[str]]] = []
    left, is_inside = [], False
    for at, line in enumerate(lines):
        if not line.strip() or _HEADING.match(line):
            is_inside = False
            left.append(line)
        elif is_inside:
            found[-1][1].append(line)
        else:
            is_inside = True
            found.append((at, [line]))
    return [(_place(number, at), ForeignEntry("", " ".join(p))) for at, p in found], _losses(left)


def _place(number: int | None, at: int) -> str:
    return "" if number is None else f":{number + at}"


def _losses(left: list[str]) -> tuple[str, ...]:
    n = sum(bool(line.strip()) and not line.startswith("<!--") for line in left)
    return (f"{n} line{'s' * (n != 1)} of text that is no experience",) if n else ()
