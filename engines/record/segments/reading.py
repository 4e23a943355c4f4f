"""Reading a journal through all of its segments, also while its run rolls it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from engines.core.errors import DamagedError
from engines.record import lines
from engines.record.segments.files import closed_path, is_head, parse_head, read_head, segment_path


@dataclass(frozen=True, slots=True)
class Place:
    """A line and the segment that it stands in."""

    segment: int
    line: lines.StoredLine


Take = Callable[[Path, Place], None]
"""Is called with each line but heads, and the file that it stands in."""


@dataclass(frozen=True, slots=True)
class End:
    """How the last file that was read ends, and its last line, also where that is its head."""

    contents: lines.Contents
    last: Place | None  # None: there is no line
    is_closed: bool  # another file follows


class _Rolled(Exception):
    """The growing file is another segment than it was a moment ago."""


def read(
    journal: Path,
    take: Take,
    after: Place | None = None,
    *,
    first: int = 1,
    upto: int | None = None,
) -> End:
    """Read and check a journal behind a line that still `is_unchanged`; else from a segment on.

    `upto` is the last segment that is read; None: the growing one. A missing journal is empty.

    Raises DamagedError: a line fails its check, or a segment does not follow from the one before.
    RecordError: a file cannot be opened.
    """
    return _read(_Part(take, after), journal, first, upto)


def read_undamaged(journal: Path, take: Take) -> tuple[Place | None, DamagedError | None]:
    """The last line before any damage, heads included, and what follows it; None: all is whole."""
    part = _Part(take, None)
    try:
        _read(part, journal, 1, None)
    except DamagedError as error:
        return part.last, error
    return part.last, None


class _Part:
    """What a reader has seen, and what must follow from that."""

    def __init__(self, take: Take, last: Place | None) -> None:
        self._take, self.last = take, last
        self.path, self.number = Path(), 1

    def visit(self, line: lines.StoredLine) -> None:
        place = Place(self.number, line)
        if line.number == 1 and self.number != _segment_of(line.body):
            raise _Rolled
        if line.number > 1 or self.number == 1:
            self._take(self.path, place)
        elif self.last is not None and parse_head(line.body).after != self.last.line.digest:
            raise self.damaged_error(1)
        self.last = place

    def damaged_error(self, number: int) -> DamagedError:
        if not self.path.exists():
            cause = "this closed part of the journal is gone."
            return DamagedError(str(self.path), cause, f"{_MOVE} Nothing else brings it back.")
        cause = "the journal does not go on here from the part before: one of them was changed."
        if number > 1:
            cause = "this closed part of the journal was cut."
        return DamagedError(f"{self.path}:{number}", cause, f"{_MOVE} {lines.REPAIR} cuts here.")


def _read(part: _Part, journal: Path, first: int, upto: int | None) -> End:
    after = part.last
    number = first if after is None else after.segment
    while True:
        last = read_head(journal).segment
        closed = number < last
        path = closed_path(journal, number) if closed else journal
        begun = part.last.line if part.last and part.last.segment == number else None
        part.path, part.number = path, number
        try:
            contents = lines.read(path, chained=True, visit=part.visit, after=begun)
        except (DamagedError, _Rolled) as error:
            if not closed and read_head(journal).segment != last:
                continue
            raise part.damaged_error(1) if isinstance(error, _Rolled) else error from error
        if not closed and read_head(journal).segment != last:
            continue  # what of it came since is in the closed one
        if closed and (not contents.end or contents.torn or contents.newline_missing):
            raise part.damaged_error((part.last.line.number if part.last else 0) + 1)
        if not closed or number == upto:
            return End(contents, part.last, closed)
        number += 1


_MOVE = "Restore it from a copy."


def _segment_of(body: bytes) -> int:
    try:
        return parse_head(body).segment if is_head(body) else 1
    except (ValueError, TypeError):
        return 0


def closed_end(journal: Path) -> Place | None:
    """Where the last closed segment ends, by the head of the next; None: none is closed."""
    head = read_head(journal)
    closed = closed_path(journal, head.segment - 1)
    if head.segment == 1 or not closed.exists():
        return None
    return Place(head.segment - 1, lines.StoredLine(0, closed.stat().st_size, 0, head.after, b""))


def is_unchanged(journal: Path, place: Place) -> bool:
    """Whether a line still is where it was read, and with it, since each is chained, all before."""
    path = segment_path(journal, place.segment)
    return path is not None and lines.is_unchanged(path, place.line)
