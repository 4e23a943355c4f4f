"""The files of a run's journal: closed segments, `journal-000001.jsonl` …, and the one that grows.

`journal.jsonl` is always the last; a short run's is the only one. A later one begins with a head,
which names the last checksum of the one before: so the chain runs through all of them. What the
growing one does not count as closed is none of its journal, such as what a kill left of a roll.
"""

import os
import re
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import orjson

from engines.core.codec import dumps
from engines.core.errors import DamagedError, RecordError
from engines.record import lines
from engines.record.appender import sync_folder, write_atomic

FORMAT = 11
"""Of every line of a journal, heads included; another one is refused by its number."""
BYTES = 1_000_000
"""A growing segment is closed at the end of a step that made it longer: read in 0.1 seconds."""
_MARK = b'{"v":%d,"segment":' % FORMAT
_HEAD_BYTES = 400


@dataclass(frozen=True, slots=True)
class Head:
    """How a segment begins. The first has no such line: it is this one."""

    segment: int = 1
    after: str = ""  # the checksum of the last line before
    events: int = 0  # before it, as the next two
    bytes: int = 0
    step: int = 0  # finished when the one before was closed


def is_head(body: bytes) -> bool:
    return body.startswith(_MARK)


def parse_head(body: bytes) -> Head:
    """Raises ValueError, TypeError: it is none."""
    data = orjson.loads(body)
    del data["v"]
    return Head(**data)


def read_head(path: Path) -> Head:
    """That of one file; of what is damaged or gone the first, whose reader says so."""
    try:
        with path.open("rb", buffering=0) as file:  # a buffer would read more than the head
            raw = file.read(_HEAD_BYTES)
        body = lines.decode(raw[: raw.find(b"\n") + 1])
        return parse_head(body) if body is not None and is_head(body) else Head()
    except (OSError, ValueError, TypeError):
        return Head()


def closed_path(journal: Path, number: int) -> Path:
    return journal.with_name(f"{journal.stem}-{number:06d}{journal.suffix}")


def closed_number(path: Path) -> int:
    """Of a closed segment by its name; 0: it is called otherwise."""
    match = re.fullmatch(r"journal-(\d{6,})\.jsonl", path.name)
    return int(match[1]) if match else 0


def closed_files(folder: Path) -> list[Path]:
    """Files that are called as closed segments are, in their order."""
    found = ((closed_number(path), path) for path in folder.glob("journal-*.jsonl"))
    return [path for number, path in sorted(found) if number]


def segment_path(journal: Path, number: int) -> Path | None:
    """Where a segment stands now; None: the journal has no such one."""
    last = read_head(journal).segment
    return None if number > last else journal if number == last else closed_path(journal, number)


def segment_paths(journal: Path) -> tuple[Path, ...]:
    """All files of a journal, the growing one last."""
    closed = range(1, read_head(journal).segment)
    return (*(closed_path(journal, number) for number in closed), journal)


def find_segment(journal: Path, field: Literal["events", "step"], value: int) -> int:
    """The last segment before which there were at most so many events, or finished steps."""
    paths = segment_paths(journal)
    return bisect_right(paths, value, key=lambda path: getattr(read_head(path), field))


def first_line(journal: Path, most: int = -1) -> bytes:
    """With which a journal begins, cheaply; raises RecordError where it cannot be read."""
    try:
        path = first if (first := closed_path(journal, 1)).exists() else journal
        with path.open("rb") as file:
            return file.readline(most)
    except OSError as error:
        raise lines.unreadable_error(journal, error) from error


def started_at(journal: Path) -> float:
    """The time stamp of the first entry, cheaply; 0.0 without one."""
    match = re.search(rb'"at":([0-9.]+)', first_line(journal, _HEAD_BYTES))
    return float(match[1]) if match else 0.0


def journal_bytes(journal: Path) -> int:
    """Of all its files; raises RecordError where it cannot be read."""
    try:
        return read_head(journal).bytes + journal.stat().st_size
    except PermissionError as error:
        raise lines.unreadable_error(journal, error) from error


def begin_next(journal: Path, head: Head) -> str:
    """Close the growing segment and let the next begin with this head; returns its checksum.

    "": it goes on.

    No moment is without a whole journal: the closed one gets its name beside that which it has,
    until the next takes that. Where the disk has no room or knows no hard links, nothing changes.
    """
    closed = closed_path(journal, head.segment - 1)
    try:
        closed.unlink(missing_ok=True)  # left by a roll that was cut, or no part of this journal
        os.link(journal, closed)
        sync_folder(journal.parent)
        raw, checksum = lines.encode(dumps({"v": FORMAT, **asdict(head)}))
        write_atomic(journal, raw)
    except (OSError, RecordError):
        return ""
    return checksum


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
