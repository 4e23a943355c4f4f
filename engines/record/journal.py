"""Append-only journal of a run or a library.

Owns durability and order: an event is on disk when `append` returns, and each line is
chained to the one before. Does not interpret events; `engines.core.state` does.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from engines.core.codec import dumps
from engines.core.errors import DamagedError
from engines.core.events import DurableEvent, event_from_dict, event_to_dict
from engines.record import lines
from engines.record.appender import Appender

FORMAT = 1
"""Version of the line and event format; journals of another one are refused."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One event as it stands in a journal. `at` is seconds since the epoch."""

    seq: int
    at: float
    event: Any  # a DurableEvent


class Journal:
    """An open journal, ready to append. One process at a time holds it (see `lock`)."""

    def __init__(
        self,
        path: Path,
        *,
        clock: Callable[[], float] = time.time,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Open, check and mend.

        Args:
            path: the file; it is created when missing.
            clock: gives the time stamp of an entry.
            tell: is told what was cut from a torn end.

        Raises:
            DamagedError: a complete line fails its check.
            RecordError: the file cannot be opened.
        """
        self.path = path
        self._clock = clock
        contents = lines.read(path, chained=True)
        if contents.torn:
            os.truncate(path, contents.end)
            tell(
                f"{path}: cut {len(contents.torn)} bytes of a last line that was being "
                "written when the process ended"
            )
        elif contents.newline_missing:
            os.truncate(path, contents.end - 1)
            with path.open("ab") as file:
                file.write(b"\n")
            tell(f"{path}: put back the newline of its last line")
        self.entries: tuple[Entry, ...] = tuple(_entry(path, line) for line in contents.lines)
        self._chain = contents.lines[-1].digest if contents.lines else ""
        self._seq = len(contents.lines)
        self._file = Appender(path)

    def taken(self) -> tuple[Entry, ...]:
        """The entries found at opening, let go of: a long run's need not stay in memory."""
        entries, self.entries = self.entries, ()
        return entries

    async def append(self, event: DurableEvent) -> None:
        """Return once the event is on disk.

        Raises:
            RecordError: it could not be written.
        """
        await self._file.append(self._line(event))

    def append_now(self, event: DurableEvent) -> None:
        """The same, without an event loop."""
        self._file.append_now(self._line(event))

    async def aclose(self) -> None:
        await self._file.settle()
        self._file.close()

    def close(self) -> None:
        self._file.close()

    def _line(self, event: DurableEvent) -> bytes:
        self._seq += 1
        envelope = {"v": FORMAT, "seq": self._seq, "at": self._clock(), **event_to_dict(event)}
        raw, self._chain = lines.encode(dumps(envelope), self._chain)
        return raw


def read_journal(path: Path) -> Iterator[Entry]:
    """The entries of a journal that another process may be writing; a torn end is left out.

    Raises:
        DamagedError: a complete line fails its check.
    """
    for line in lines.read(path, chained=True).lines:
        yield _entry(path, line)


def _entry(path: Path, line: lines.Line) -> Entry:
    data = orjson.loads(line.body)
    version = data.pop("v", None)
    if version != FORMAT:
        raise DamagedError(
            f"{path}:{line.number}",
            f"this journal has format {version}, this studio reads format {FORMAT}.",
            "Use the release that wrote it.",
        )
    seq, at = data.pop("seq"), data.pop("at")
    try:
        return Entry(seq, at, event_from_dict(data))
    except ValueError as error:
        raise DamagedError(
            f"{path}:{line.number}",
            f"this line is whole but cannot be read ({error}).",
            "Use the release that wrote it.",
        ) from error
