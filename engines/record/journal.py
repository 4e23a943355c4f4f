"""Append-only journal of a run or a library: an event is on disk when `append` returns.

Each line is chained to the one before. The files of a run's journal are closed segments,
`journal-000001.jsonl` …, and the one that grows: `journal.jsonl` is always the last; a short run's
is the only one. A later one begins with a head, which names the last checksum of the one before: so
the chain runs through all of them. What the growing one does not count as closed is none of its
journal, such as what a kill left of a roll.
"""

import os
import re
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Literal

import orjson

from engines.core.codec import dumps
from engines.core.errors import DamagedError, RecordError
from engines.core.events import DurableEvent, event_from_dict
from engines.core.frozen import frozen
from engines.record import appender, lines
from engines.secrets.mask import NO_SECRETS, Mask

FORMAT = 11
"""Of every line of a journal, heads included; another one is refused by its number."""
BYTES = 1_000_000
"""A growing segment is closed at the end of a step that made it longer: read in 0.1 seconds."""
_MARK = b'{"v":%d,"segment":' % FORMAT
_HEAD_BYTES = 400
HEAD_BYTES = 160
"""Of an entry, in which its kind and its step stand."""


@frozen
class Entry:
    """One event as it stands in a journal. `at` is seconds since the epoch."""

    seq: int
    at: float
    event: Any  # a DurableEvent
    request: str = ""  # id of the request that caused it; "" of what nobody asked for


def parse_entry(path: Path, line: lines.StoredLine) -> Entry:
    """What a whole line of a journal says.

    Raises RecordError: it is of another format, or says nothing this release knows.
    """
    place = f"{path}:{line.number}"
    move = "Use the release that wrote it, or begin anew beside it; nothing was changed."
    data = orjson.loads(line.body)
    if (version := data.get("v")) != FORMAT:
        raise RecordError(
            place, f"this journal has format {version}, this studio reads format {FORMAT}.", move
        )
    try:
        return Entry(data["seq"], data["at"], _parse_event(data), data.get("request", ""))
    except (KeyError, ValueError) as error:
        raise RecordError(
            place, f"this line is whole but cannot be read ({error}).", move
        ) from error


def _parse_event(envelope: Mapping[str, Any]) -> Any:
    """Raises ValueError: it is no event."""
    own = ("v", "seq", "at", "request")
    return event_from_dict({key: value for key, value in envelope.items() if key not in own})


@frozen
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
        appender.sync_folder(journal.parent)
        raw, checksum = lines.encode(dumps({"v": FORMAT, **asdict(head)}))
        appender.write_atomic(journal, raw)
    except (OSError, RecordError):
        return ""
    return checksum


@frozen
class Place:
    """A line and the segment that it stands in."""

    segment: int
    line: lines.StoredLine


Take = Callable[[Path, Place], None]
"""Is called with each line but heads, and the file that it stands in."""


@frozen
class End:
    """How the last file that was read ends, and its last line, also where that is its head."""

    contents: lines.Contents
    last: Place | None  # None: there is no line
    is_closed: bool  # another file follows


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
    last = after
    number = first if after is None else after.segment
    while True:
        growing = read_head(journal).segment
        is_closed = number < growing
        path = closed_path(journal, number) if is_closed else journal
        try:
            contents, last = _read_segment(path, number, take, last)
        except DamagedError:
            if not is_closed and read_head(journal).segment != growing:
                continue  # it was closed meanwhile: another file has its name
            raise
        if not is_closed and read_head(journal).segment != growing:
            continue  # what of it came since is in the closed one
        if is_closed and (not contents.end or contents.torn or contents.newline_missing):
            raise _segment_error(path, (last.line.number if last else 0) + 1)
        if not is_closed or number == upto:
            return End(contents, last, is_closed)
        number += 1


def read_undamaged(journal: Path, take: Take) -> tuple[Place | None, DamagedError | None]:
    """Return the last entry before any damage, and what follows it; None: all is whole."""
    last: Place | None = None

    def note(path: Path, place: Place) -> None:
        nonlocal last
        last = place
        take(path, place)

    try:
        read(journal, note)
    except DamagedError as error:
        return last, error
    return last, None


def _read_segment(
    path: Path, number: int, take: Take, last: Place | None
) -> tuple[lines.Contents, Place | None]:
    """Read one file behind the last line that is known; returns how it ends, and its last line."""

    def visit(line: lines.StoredLine) -> None:
        nonlocal last
        is_head = line.number == 1 and number > 1
        if line.number == 1 and _segment_of(line.body) != number:
            raise _segment_error(path, 1)
        if is_head and last is not None and parse_head(line.body).after != last.line.digest:
            raise _segment_error(path, 1)
        place = Place(number, line)
        if not is_head:
            take(path, place)
        last = place

    begun = last.line if last is not None and last.segment == number else None
    contents = lines.read(path, chained=True, visit=visit, after=begun)
    return contents, last


def _segment_error(path: Path, number: int) -> DamagedError:
    """A segment that does not follow from the one before, or is not whole at a line."""
    if not path.exists():
        return DamagedError(
            str(path),
            "this closed part of the journal is gone.",
            "Restore it from a copy. Nothing else brings it back.",
        )
    cause = "the journal does not go on here from the part before: one of them was changed."
    if number > 1:
        cause = "this closed part of the journal was cut."
    return DamagedError(
        f"{path}:{number}", cause, f"Restore it from a copy. {lines.REPAIR} cuts here."
    )


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


class Journal:
    """An open journal, ready to append. One process at a time holds it (see `lock`)."""

    def __init__(
        self,
        path: Path,
        *,
        clock: Callable[[], float] = time.time,
        tell: Callable[[str], None] = lambda _: None,
        mask: Mask = NO_SECRETS,
        after: Place | None = None,
        segment_bytes: int = BYTES,
    ) -> None:
        """Open or create, check and mend a journal.

        `tell` is told what was cut from a torn end; what stands before and at line `after` is
        known, None: nothing is. A segment longer than `segment_bytes` is closed by `roll`.

        Raises DamagedError: a complete line fails its check. RecordError: the file cannot be
        opened, or is of another format.
        """
        self.path = path
        self._clock = clock
        self._mask = mask
        self._segment_bytes = segment_bytes
        entries: list[Entry] = []
        end = read(path, lambda at, place: entries.append(parse_entry(at, place.line)), after)
        contents = end.contents
        if contents.torn:
            tell(
                f"{path}: cut {len(contents.torn)} bytes of a last line that was being "
                "written when the process ended"
            )
        elif contents.newline_missing:
            tell(f"{path}: put back the newline of its last line")
        lines.repair_end(path, contents)
        self.entries: tuple[Entry, ...] = tuple(entries)
        self.last = end.last  # as found at opening
        self.at = entries[-1].at if entries else 0.0  # of the last entry
        self._head, line = read_head(path), end.last.line if end.last else None
        self._chain = line.digest if line else ""
        self._seq = self._head.events + (line.number if line else 0) - (self._head.segment > 1)
        self._file = appender.Appender(path)

    async def append(self, event: DurableEvent, request: str = "") -> Entry:
        """Return the entry as it was written, which is without secrets, once it is on disk."""
        raw, entry = self._encode_event(event, request)
        await self._file.append(raw)
        return entry

    def append_now(self, event: DurableEvent) -> Entry:
        """The same, without an event loop."""
        raw, entry = self._encode_event(event)
        self._file.append_now(raw)
        return entry

    async def wait_idle(self) -> None:
        await self._file.wait_idle()

    def roll(self, step: int) -> bool:
        """Close the growing segment after this step if it is long; the next entry begins another.

        Nothing may be being written.
        """
        head, size = self._head, self._file.size
        if size < self._segment_bytes:
            return False
        following = Head(head.segment + 1, self._chain, self._seq, head.bytes + size, step)
        if not (begun := begin_next(self.path, following)):
            return False
        self._file.close()
        self._file, self._head, self._chain = appender.Appender(self.path), following, begun
        return True

    async def aclose(self) -> None:
        await self._file.wait_idle()
        self._file.close()

    def close(self) -> None:
        self._file.close()

    def _encode_event(self, event: DurableEvent, request: str = "") -> tuple[bytes, Entry]:
        self._seq += 1
        at = self._clock()
        # As `event_to_dict`, without encoding it twice.
        own = {field.name: getattr(event, field.name) for field in fields(event)}
        kind = type(event).__name__
        self.at = at
        if request:  # last: readers look for kind and step in the first bytes of a line
            own["request"] = request
        body = dumps({"v": FORMAT, "seq": self._seq, "at": at, "kind": kind, **own})
        masked = self._mask.line(body)
        if masked is not body:
            event = _parse_event(orjson.loads(masked))
        raw, self._chain = lines.encode(masked, self._chain)
        return raw, Entry(self._seq, at, event, request)


def read_journal(
    path: Path, *, since: int = 0, only: re.Pattern[bytes] | None = None
) -> Iterator[Entry]:
    """The entries of a journal that another process may be writing; a torn end is left out.

    Of those behind the first `since` ones, and where something is looked for, `only` those in whose
    first bytes it is found.
    """
    first = find_segment(path, "events", since) if since else 1
    end: End | None = None
    while end is None or end.is_closed:
        found: list[tuple[Path, Place]] = []

        def take(at: Path, place: Place, found: list[tuple[Path, Place]] = found) -> None:
            if only is None or only.search(place.line.body, 0, HEAD_BYTES):
                found.append((at, place))

        after = end.last if end else None
        upto = first if after is None else after.segment + 1
        end = read(path, take, after, first=first, upto=upto)
        for at, place in found:
            if (entry := parse_entry(at, place.line)).seq > since:
                yield entry
