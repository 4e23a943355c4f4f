"""Append-only journal of a run or a library: an event is on disk when `append` returns.

Each line is chained to the one before.
"""

import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import orjson

from engines.core.codec import dumps
from engines.core.errors import RecordError
from engines.core.events import DurableEvent, event_from_dict
from engines.record import lines
from engines.record.appender import Appender
from engines.record.segments import (
    BYTES,
    FORMAT,
    End,
    Head,
    Place,
    begin_next,
    find_segment,
    read,
    read_head,
)
from engines.secrets.mask import NO_SECRETS, Mask

HEAD_BYTES = 160
"""Of an entry, in which its kind and its step stand."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One event as it stands in a journal. `at` is seconds since the epoch."""

    seq: int
    at: float
    event: Any  # a DurableEvent
    request: str = ""  # id of the request that caused it; "" of what nobody asked for


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
        self._file = Appender(path)

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
        self._file, self._head, self._chain = Appender(self.path), following, begun
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


def parse_entry(path: Path, line: lines.StoredLine) -> Entry:
    """What a whole line of a journal says.

    Raises RecordError: it is of another format, or says nothing this release knows.
    """
    place = f"{path}:{line.number}"
    move = "Use the release that wrote it, or begin anew beside it; nothing was changed."
    data = orjson.loads(line.body)
    if (version := data.get("v")) != FORMAT:
        cause = f"this journal has format {version}, this studio reads format {FORMAT}."
        raise RecordError(place, cause, move)
    try:
        return Entry(data["seq"], data["at"], _parse_event(data), data.get("request", ""))
    except (KeyError, ValueError) as error:
        cause = f"this line is whole but cannot be read ({error})."
        raise RecordError(place, cause, move) from error


def _parse_event(envelope: Mapping[str, Any]) -> Any:
    """Raises ValueError: it is no event."""
    own = ("v", "seq", "at", "request")
    return event_from_dict({key: value for key, value in envelope.items() if key not in own})
