"""What every format is read into, and the check that all of it passes.

Owns what an id and a text may be. Whoever reads a file names the place of each entry.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engines.core.errors import DataError
from engines.core.text.sanitize import one_line

MOST_BYTES = 16 << 20
MOST_ENTRIES = 100_000
LONGEST_TEXT = 100_000  # characters
_ID = re.compile(r"[^\W_][\w.-]{0,99}")


@dataclass(frozen=True, slots=True)
class ForeignEntry:
    """One experience of a file. `note` is what the format says of it in words."""

    id: str  # as the file has it; "" where it has none
    text: str
    section: str = ""  # of ACE and kayba
    note: str = ""
    pinned: bool = False


@dataclass(frozen=True, slots=True)
class ForeignLibrary:
    """What a file holds. `losses` are its parts that cannot be taken, each in words."""

    format: str
    name: str
    entries: tuple[ForeignEntry, ...]
    losses: tuple[str, ...] = ()


Placed = Iterable[tuple[str, ForeignEntry]]
"""Entries, each with its place behind the path: `:3` for a line, `: skills.E1` for a value."""


def check_entries(path: Path, found: Placed, move: str) -> tuple[ForeignEntry, ...]:
    """The entries, each text one line. Raises DataError: an id or text is none, or twice there."""
    places: dict[str, str] = {}
    entries = []
    for inside, entry in found:
        place = f"{path}{inside}"
        if entry.id and not _ID.fullmatch(entry.id):
            cause = f"{shorten(entry.id)} is no id: at most 100 letters, digits, '.', '_' or '-'."
            raise DataError(place, cause, "Correct the id.")
        if entry.id in places:
            cause = f"the id {entry.id} stands there twice, first at {path}{places[entry.id]}."
            raise DataError(place, cause, "Give each experience an id of its own.")
        if entry.id:
            places[entry.id] = inside
        if len(entry.text) > LONGEST_TEXT:
            cause = (
                f"its text is {len(entry.text):,} characters long; {LONGEST_TEXT:,} is the most."
            )
            raise DataError(place, cause, "Shorten it.")
        text = one_line(entry.text)
        if not text:
            raise DataError(place, "its text is empty.", "Write one, or take the entry out.")
        if len(entries) == MOST_ENTRIES:
            raise DataError(str(path), f"it holds more than {MOST_ENTRIES:,} entries.", move)
        entries.append(replace(entry, text=text, section=one_line(entry.section)))
    return tuple(entries)


def shorten(value: object) -> str:
    """A value of a file as a message shows it."""
    text = repr(value) if isinstance(value, str | int | float | None) else _kind(value)
    return one_line(text if len(text) <= 60 else f"{text[:57]}…")


def read_text(path: Path, move: str) -> str:
    """A file as text with plain line ends. Raises DataError: it is too big, or no UTF-8."""
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise DataError(str(path), f"it cannot be read ({error.strerror}).", move) from error
    if len(data) > MOST_BYTES:
        raise DataError(str(path), f"it is larger than {MOST_BYTES >> 20} MB.", move)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(str(path), f"it is no UTF-8 text (byte {error.start}).", move) from error
    if not text.strip():
        raise DataError(str(path), "it is empty.", move)
    return text.replace("\r\n", "\n")


def parse_json(path: Path, text: str, move: str) -> dict[str, Any]:
    """The object that a text holds; a key that stands there twice hides an entry."""

    def refuse_repeats(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
        if twice := [key for key, n in Counter(key for key, _ in pairs).items() if n > 1]:
            raise DataError(str(path), f"the key {shorten(twice[0])} stands there twice.", move)
        return dict(pairs)

    try:
        found = json.loads(text, object_pairs_hook=refuse_repeats)
    except RecursionError as error:
        raise DataError(str(path), "it nests too deep.", move) from error
    except ValueError as error:
        cause = f"it is cut, or no JSON ({error})."
        raise DataError(str(path), cause, move) from error
    return as_object(path, found, "", move)


def as_object(path: Path, value: object, inside: str, move: str) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    raise wrong_kind(path, value, inside, "an object", move)


def as_text(path: Path, value: object, inside: str, move: str) -> str:
    if isinstance(value, str):
        return value
    raise wrong_kind(path, value, inside, "text", move)


def wrong_kind(path: Path, value: object, inside: str, wanted: str, move: str) -> DataError:
    return DataError(f"{path}{inside}", f"it is {_kind(value)}, not {wanted}.", move)


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false"}
    return names.get(type(value), "empty" if value is None else f"the number {str(value)[:20]}")
