"""What every format is read into and written from, and the file that it is read from.

Owns what an id and a text may be, and that each refusal names the place inside the file.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from engines.core.codec import JsonMapping, JsonObject
from engines.core.errors import DataError
from engines.core.frozen import frozen
from engines.core.library import Library
from engines.core.text.sanitize import one_line
from engines.core.types import Names, Problem
from engines.record import seal, yaml_text

MOST_BYTES = 16 << 20
LONGEST_TEXT = 100_000  # characters
_ID = re.compile(r"[^\W_][\w.-]{0,99}")
_TITLE = re.compile(r"library ([^\W_][\w.-]{0,99})@(\d{1,18})\b")
_MOVE = "Correct the file, give another, or name its format; `studio guide libraries` shows each."


@frozen
class ForeignEntry:
    """One experience of a file. `note` is what the format says of it in words."""

    id: str  # as the file has it; "" where it has none
    text: str
    section: str = ""  # of ACE and kayba
    note: str = ""
    pinned: bool = False


@frozen
class ForeignLibrary:
    """What a file holds. `losses` are its parts that cannot be taken, each in words."""

    format: str
    name: str
    entries: tuple[ForeignEntry, ...]
    losses: Names = ()
    exported: tuple[str, int | None] | None = None  # the library and version it says it is of


Placed = Iterable[tuple[str, ForeignEntry]]
"""Entries, each with its place behind the path: `:3` for a line, `: skills.E1` for a value."""


@frozen
class Source:
    """A file that is read as a format; "" where none is known yet."""

    path: Path
    format: str = ""

    def error(self, cause: str, inside: str = "", move: str = _MOVE) -> DataError:
        return DataError(f"{self.path}{one_line(inside)}", cause, move)

    def text(self) -> str:
        """All of it with plain line ends."""
        if self.path.exists() and not self.path.is_file():  # a pipe might never end
            raise self.error("it is no file.")
        try:
            with self.path.open("rb") as file:
                data = file.read(MOST_BYTES + 1)
        except OSError as error:
            raise self.error(f"it cannot be read ({error.strerror}).") from error
        if len(data) > MOST_BYTES:
            raise self.error(f"it is larger than {MOST_BYTES >> 20} MB.")
        seal.refuse_altered(self.path, data)
        if not (text := self.decode(data)).strip():
            raise self.error("it is empty.")
        return text.replace("\r\n", "\n")

    def first_line(self, begins: str) -> str:
        """The first line that begins so, or ""."""
        return next((line for line in self.text().split("\n") if line.startswith(begins)), "")

    def decode(self, data: bytes) -> str:
        try:
            return data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise self.error(f"it is no UTF-8 text (byte {error.start}).") from error

    def json(self) -> JsonObject:
        """Its object; a key that stands there twice would hide an entry, and is refused."""
        return self._parse(lambda text: json.loads(text, object_pairs_hook=self._unique_keys))

    def yaml(self, text: str | None = None) -> JsonObject:
        return self._parse(yaml_text.load_yaml, text)

    def _parse(self, load: Callable[[str], object], text: str | None = None) -> JsonObject:
        try:
            return self.mapping(load(self.text() if text is None else text))
        except RecursionError as error:
            raise self.error("it nests too deep.") from error
        except (yaml.YAMLError, ValueError, TypeError) as error:
            raise self.error(f"it cannot be parsed: {' '.join(str(error).split())}.") from error

    def mapping(self, value: object, inside: str = "") -> JsonObject:
        if isinstance(value, dict):
            return value
        raise self.error(f"it is no object, but of type {type(value).__name__}.", inside)

    def string(self, value: object, inside: str) -> str:
        if not isinstance(value, str):
            raise self.error(f"it is no text, but of type {type(value).__name__}.", inside)
        if re.search("[\ud800-\udfff]", value):  # JSON can write one, UTF-8 cannot
            raise self.error("it holds half of a surrogate pair.", inside)
        return value

    def library(
        self,
        found: Placed,
        losses: Iterable[str] = (),
        name: object = None,
        card: object = None,
    ) -> ForeignLibrary:
        """The checked entries. Raises DataError: an id or text is none, or an id is there twice.

        `card` is where an export of ours says what it is of: text, or values; `name` is else meant.
        """
        exported = _exported(card)
        name = exported[0] if exported else name
        called = name if isinstance(name, str) and _ID.fullmatch(name) else self.path.stem
        entries = tuple(self._check(found))
        return ForeignLibrary(self.format, called, entries, tuple(losses), exported)

    def _check(self, found: Placed) -> Iterable[ForeignEntry]:
        places: dict[str, str] = {}
        for inside, entry in found:
            name, text = entry.id, one_line(entry.text[: LONGEST_TEXT + 1])
            if name and not _ID.fullmatch(name):
                raise self.error(
                    f"{name[:60]!r} is no id: at most 100 letters, digits, '.', '_' or '-'.", inside
                )
            if name in places:
                raise self.error(
                    f"the id {name} stands there twice, first at {self.path}{places[name]}.", inside
                )
            if len(entry.text) > LONGEST_TEXT:
                raise self.error(f"its text is longer than {LONGEST_TEXT:,} characters.", inside)
            if not text:
                raise self.error("its text is empty.", inside)
            if name:
                places[name] = inside
            section, note = one_line(entry.section), one_line(entry.note)
            yield replace(entry, text=text, section=section, note=note)

    def _unique_keys(self, pairs: Sequence[tuple[str, Any]]) -> JsonObject:
        if len(found := dict(pairs)) < len(pairs):
            twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
            raise self.error(f"the key {twice[:60]!r} stands there twice.")
        return found


def _exported(card: object) -> tuple[str, int | None] | None:
    if isinstance(card, str) and (found := _TITLE.search(card)):
        return found[1], int(found[2])
    name, version = map(card.get, ("library", "version")) if isinstance(card, dict) else (None,) * 2
    if not isinstance(name, str) or not _ID.fullmatch(name):
        return None
    return name, version if isinstance(version, int) else None


def dump_json(data: object) -> bytes:
    text = json.dumps(data, ensure_ascii=False, indent=2)
    return f"{text}\n".encode("utf-8", "replace")


def count_lines(lines: Iterable[str], what: str) -> Names:
    """`("3 lines that …",)`, of those with anything on them; () where there is none."""
    n = sum(bool(line.strip()) for line in lines)
    return (f"{n} line{'s' * (n != 1)} {what}",) if n else ()


@frozen
class Result:
    """One held-out set, measured with this version in front of every prompt."""

    text: str
    data: JsonMapping  # the same as JSON values
    benchmark: JsonMapping | None = None  # against no experience, as a skill holds it


@frozen
class Card:
    """A version of a library with what is known of it."""

    library: Library
    results: tuple[Result, ...] = ()
    instructions: str = ""  # of the agent that practised with it
    evals: tuple[Problem, ...] = ()  # that a skill takes along

    @property
    def title(self) -> str:
        """What it is of, by which an import knows it again."""
        about = self.library
        return f"library {about.name}@{about.version}, content {about.content_hash}"

    def lines(self, *, worths: bool = True) -> list[str]:
        """All of it in words, a fact a line; without `worths` nothing of single experiences."""
        lines = [self.title, *(result.text for result in self.results)]
        if not self.results:
            lines.append("never measured on held-out problems")
        if worths:
            lines += [f"{name} {text}" for name, text in self.worths().items()]
        return lines

    def worths(self) -> dict[str, str]:
        """What experiences were measured to be worth, and their uses, where either is known."""
        about, found = self.library, {}
        for name in (e.id for e in about.experiences):
            effect, uses = about.notes.effects.get(name), about.notes.uses.get(name)
            parts = [f"worth {effect.worth}"] if effect else []
            if parts := parts + ([f"attempts: {uses.text}"] if uses else []):
                found[name] = "; ".join(parts)
        return found

    def data(self) -> JsonObject:
        about = {"library": self.library.name, "version": self.library.version}
        results = [dict(result.data) for result in self.results]
        return {**about, "results": results, "worth": self.worths()}
