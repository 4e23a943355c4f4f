"""`index.json` beside a run's journal: what it added up to when somebody last read much of it.

A reader goes on behind the last line that the index covers. It may be thrown away at any time, and
is not believed where the journal was cut, replaced or altered, or where other code wrote it.
What stands before that line is not checked again; resuming a run and `studio doctor` read it all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import orjson

from engines.core.codec import dumps, from_dict
from engines.core.errors import StudioError
from engines.core.ids import digest_bytes
from engines.core.state import fold as folding
from engines.core.state.list_row import list_row
from engines.core.state.run_state import RunState
from engines.core.state.snapshot import state_data
from engines.record import lines
from engines.record.appender import write_atomic
from engines.record.journal import parse_entry

NAME = "index.json"
FEW_EVENTS = 50
"""Every reader reads so many again, in a few milliseconds, before one writes down what it read."""
SHARE = 16
"""The index of a run that goes on covers all but this part of its events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """How far into which journal an index reaches, and what a list shows of the run."""

    events: int
    number: int  # of the last line that it covers, as the next four
    offset: int
    length: int
    chain: str
    raw: str  # the hash of its bytes
    changed_ns: int  # when the file was changed last, as it ended there
    code: str  # see `code_digest`
    row: Mapping[str, Any]  # see `read_row`

    @property
    def line(self) -> lines.StoredLine:
        return lines.StoredLine(self.number, self.offset, self.length, self.chain, b"")

    def covers(self, size: int) -> bool:
        return size == self.offset + self.length

    def is_current(self, journal: Path) -> bool:
        """Whether the line is where it was; with it, since each is chained, all before."""
        found = journal.stat()
        if self.covers(found.st_size) and found.st_ctime_ns != self.changed_ns:
            return False  # nothing was added, so something else was changed
        raw = _read_bytes(journal, self.offset, self.length)
        return self.code == code_digest() and digest_bytes(raw) == self.raw


@dataclass(slots=True)
class ReadRun:
    """What a journal adds up to, with the times of its first and last entry."""

    state: RunState = field(default_factory=RunState)
    began: float | None = None
    last: float | None = None

    @property
    def row(self) -> dict[str, Any]:
        return {**list_row(self.state), "began": self.began, "last": self.last}

    def encode(self) -> bytes:
        return dumps({"state": state_data(self.state), "began": self.began, "last": self.last})


def read_run(journal: Path, events: int | None = None, *, anew: bool = False) -> ReadRun:
    """What a journal says, or its first so many events, by its index as far as that reaches.

    `anew`: without one, and nothing is written; it is not to be changed, as the last is kept.

    Raises DamagedError or RecordError as `lines.read` and `parse_entry` do.
    """
    if anew:
        at = journal.stat() if journal.exists() else None
        return _read_anew(journal, events, at and (at.st_ino, at.st_size, at.st_ctime_ns))
    return _read(journal, events, *_load_index(journal, events))


@lru_cache(maxsize=1)
def _read_anew(journal: Path, events: int | None, seen: tuple[int, ...] | None) -> ReadRun:
    """Once for all that a look at a workspace asks of a run, which `seen` tells from others."""
    return _read(journal, events, ReadRun(), None, keep=False)


def _read(
    journal: Path, events: int | None, run: ReadRun, reach: Reach | None, *, keep: bool = True
) -> ReadRun:
    known, last = run.state.events, None

    def take(line: lines.StoredLine) -> None:
        nonlocal last
        if run.state.events == events:
            return
        entry = parse_entry(journal, line)
        folding.fold(run.state, entry.event)
        run.began, run.last, last = run.began or entry.at, entry.at, line

    with suppress(OSError):
        changed_ns = journal.stat().st_ctime_ns
    contents = lines.read(journal, chained=True, visit=take, after=reach.line if reach else None)
    is_much = run.state.events - known > FEW_EVENTS or run.state.ending
    if last is not None and keep and events is None and is_much and not contents.newline_missing:
        _write_index(journal, run, last, changed_ns)
    return run


def read_row(journal: Path, *, anew: bool = False) -> dict[str, Any]:
    """What a list shows of a run, at once where its index covers all of the journal."""
    row = None if anew else indexed_row(journal)
    return read_run(journal, anew=anew).row if row is None else row


def indexed_row(journal: Path) -> dict[str, Any] | None:
    """The row where the index covers all of the journal; else None."""
    with suppress(OSError, ValueError), journal.with_name(NAME).open("rb") as file:
        reach = _current_reach(journal, lines.decode(file.readline()))
        if reach is not None and reach.covers(journal.stat().st_size):
            return dict(reach.row)
    return None


async def refresh_index(journal: Path, events: int, covered: int) -> int:
    """Write the index of a run at work anew if it lags much; returns how much it covers then."""
    if events - covered <= max(FEW_EVENTS, events // SHARE):
        return covered
    with suppress(StudioError):
        await asyncio.to_thread(read_run, journal)
    return events


def is_wrong(journal: Path) -> bool:
    """Whether the index of a journal is damaged, or would be believed and says something else."""
    try:
        head, body = lines.read(journal.with_name(NAME), chained=True).lines
    except (StudioError, ValueError):
        return True
    if (reach := _current_reach(journal, head.body)) is None:
        return False
    events = None if reach.covers(journal.stat().st_size) else reach.events
    right = read_run(journal, events, anew=True)
    return (dumps(reach.row), body.body) != (dumps(right.row), right.encode())


def journal_mark(journal: Path) -> dict[str, Any]:
    """What tells whether something was made from a journal as it is now, and by this code."""
    at = journal.stat()
    return {"bytes": at.st_size, "changed_ns": at.st_ctime_ns, "code": code_digest()}


def _load_index(journal: Path, events: int | None) -> tuple[ReadRun, Reach | None]:
    with suppress(StudioError, ValueError, OSError):
        head, body = lines.read(journal.with_name(NAME), chained=True).lines
        reach = _current_reach(journal, head.body)
        if reach and (events is None or reach.events <= events):
            return from_dict(ReadRun, orjson.loads(body.body)), reach
    return ReadRun(), None


def _current_reach(journal: Path, head: bytes | None) -> Reach | None:
    """Raises ValueError: it is no first line of an index, or one of another release."""
    reach = from_dict(Reach, orjson.loads(head or b""))
    return reach if reach.is_current(journal) else None


def _write_index(journal: Path, run: ReadRun, last: lines.StoredLine, changed_ns: int) -> None:
    """Nobody needs it: where it cannot be written, others read the journal."""
    with suppress(OSError, StudioError, TypeError):  # a full disk; a number too large for JSON
        reach = Reach(
            events=run.state.events,
            number=last.number,
            offset=last.offset,
            length=last.length,
            chain=last.digest,
            changed_ns=changed_ns,
            code=code_digest(),
            raw=digest_bytes(_read_bytes(journal, last.offset, last.length)),
            row=run.row,
        )
        head, chain = lines.encode(dumps(reach))
        write_atomic(journal.with_name(NAME), head + lines.encode(run.encode(), chain)[0])


def _read_bytes(path: Path, offset: int, length: int) -> bytes:
    with path.open("rb", buffering=0) as file:
        file.seek(offset)
        return file.read(length)


@cache
def code_digest() -> str:
    """Of all that makes something of events: what other code made may mean something else."""
    core, here = Path(folding.__file__).parents[1], Path(__file__)
    files = (
        *core.glob("*.py"),
        *core.glob("state/*.py"),
        *here.parent.glob("catalogue/*.py"),
        here,
    )
    return digest_bytes(b"".join(path.read_bytes() for path in sorted(files)))
