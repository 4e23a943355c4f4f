"""What a run's journal added up to, kept beside it: at its last roll, and when somebody last read.

`journal-state.json` is the state at the end of the last closed segment: a resume goes on from
there. `index.json` may reach further; a reader goes on behind the last line that it covers. Both
may be thrown away at any time, and are not believed where the journal was cut, replaced or altered,
or where other code wrote them. What stands before is not checked again: `studio doctor` reads it
all, and a resume the growing segment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import orjson

from engines.core.codec import dumps, from_dict
from engines.core.errors import StudioError
from engines.core.events import StepStarted
from engines.core.ids import digest_bytes
from engines.core.state import fold as folding
from engines.core.state.list_row import list_row
from engines.core.state.run_state import RunState
from engines.core.state.snapshot import state_data
from engines.record import lines
from engines.record.appender import write_atomic
from engines.record.journal import Entry, Journal, parse_entry
from engines.record.segments import files
from engines.record.segments.reading import Place, closed_end, read
from engines.secrets.mask import NO_SECRETS, Mask

NAME = "index.json"
STATE_NAME = "journal-state.json"
FEW_EVENTS = 50
"""Every reader reads so many again, in a few milliseconds, before one writes down what it read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """How far into which journal an index reaches, and what a list shows of the run."""

    events: int
    segment: int  # of the last line that it covers, as the next five
    number: int
    offset: int
    length: int
    chain: str
    raw: str  # the hash of its bytes
    changed_ns: int  # when the file was changed last, as it ended there
    code: str  # see `code_digest`
    row: Mapping[str, Any]  # see `read_row`

    @property
    def place(self) -> Place:
        line = lines.StoredLine(self.number, self.offset, self.length, self.chain, b"")
        return Place(self.segment, line)

    def covers(self, journal: Path) -> bool:
        """Whether nothing follows the line."""
        is_last = files.read_head(journal).segment == self.segment
        return is_last and journal.stat().st_size == self.offset + self.length

    def is_current(self, journal: Path) -> bool:
        """Whether the line is where it was; with it, since each is chained, all before."""
        path = files.segment_path(journal, self.segment)
        if path is None or self.code != code_digest():
            return False
        if not self.length:  # the end of a closed segment, which the next one names
            after = files.segment_path(journal, self.segment + 1)
            return after is not None and files.read_head(after).after == self.chain
        if self.covers(journal) and journal.stat().st_ctime_ns != self.changed_ns:
            return False  # nothing was added, so something else was changed
        return digest_bytes(_read_bytes(path, self.offset, self.length)) == self.raw


@dataclass(slots=True)
class ReadRun:
    """What a journal adds up to, with the times of its first and last entry."""

    state: RunState = field(default_factory=RunState)
    began: float | None = None
    last: float | None = None

    def take(self, entry: Entry) -> None:
        folding.fold(self.state, entry.event)
        self.began, self.last = self.began or entry.at, entry.at

    @property
    def row(self) -> dict[str, Any]:
        return {**list_row(self.state), "began": self.began, "last": self.last}

    def encode(self) -> bytes:
        return dumps({"state": state_data(self.state), "began": self.began, "last": self.last})


def open_run(
    journal: Path,
    open_journal: Callable[..., Journal] = Journal,
    *,
    tell: Callable[[str], None] = lambda _: None,
    mask: Mask = NO_SECRETS,
) -> tuple[Journal, RunState]:
    """Open the journal of a run whose lock is held, to go on with it, and what it adds up to.

    What its growing segment holds since a step last began stays in `Journal.entries`. `tell` hears
    where closed segments had to be read. Raises as `Journal` does.
    """
    run, after = load_closed(journal, tell)
    opened = open_journal(journal, tell=tell, mask=mask, after=after)
    recent: list[Entry] = []
    for entry in opened.entries:
        run.take(entry)
        if isinstance(entry.event, StepStarted):
            recent.clear()
        recent.append(entry)
    opened.entries = tuple(recent)
    return opened, run.state


def load_closed(
    journal: Path, tell: Callable[[str], None] = lambda _: None
) -> tuple[ReadRun, Place | None]:
    """What the closed segments add up to, and where they end; made anew where it is not kept."""
    head, closed_files = files.read_head(journal), files.segment_paths(journal)[:-1]
    with suppress(StudioError, ValueError, OSError):
        first, body = lines.read(journal.with_name(STATE_NAME), chained=True).lines
        kept, sizes = from_dict(Reach, orjson.loads(first.body)), (f.stat() for f in closed_files)
        is_whole = sum(found.st_size for found in sizes) == head.bytes
        if is_whole and (kept.chain, kept.code) == (head.after, code_digest()):
            return from_dict(ReadRun, orjson.loads(body.body)), closed_end(journal)
    run, end, closed = ReadRun(), None, len(closed_files)
    if closed:
        what = "1 closed part" if closed == 1 else f"{closed} closed parts"
        tell(f"{journal.with_name(STATE_NAME)}: not usable, so {what} of the journal are read")
        read(journal, lambda at, place: run.take(parse_entry(at, place.line)), upto=closed)
        end = closed_end(journal)
        keep_state(journal, run.state, run.last or 0.0)
    return run, end


def keep_state(journal: Path, state: RunState, last: float) -> None:
    """Write down the state at the end of the last closed segment, whose last entry was at `last`.

    Nobody needs it: where it cannot be written, a resume reads all segments.
    """
    if (end := closed_end(journal)) is not None:
        run = ReadRun(state, files.started_at(journal), last)
        _write(journal.with_name(STATE_NAME), run, journal, end, 0)


def read_run(
    journal: Path,
    events: int | None = None,
    *,
    anew: bool = False,
    tell: Callable[[str], None] = lambda _: None,
) -> ReadRun:
    """What a journal says, or its first so many events, by what is kept as far as that reaches.

    `anew`: without that, and nothing is written; it is not to be changed, as the last is kept.
    `tell` is told where closed segments had to be read.

    Raises DamagedError or RecordError as `segments.reading.read` and `parse_entry` do.
    """
    if anew:
        at = journal.stat() if journal.exists() else None
        return _read_anew(journal, events, at and (at.st_ino, at.st_size, at.st_ctime_ns))
    run, after = _load_index(journal, events)
    if after is None and files.read_head(journal).segment > 1:
        closed, end = load_closed(journal, tell)  # kept, so that the next one need not read them
        if events is None or closed.state.events <= events:
            run, after = closed, end
    return _read(journal, events, run, after)


@lru_cache(maxsize=1)
def _read_anew(journal: Path, events: int | None, seen: tuple[int, ...] | None) -> ReadRun:
    """Once for all that a look at a workspace asks of a run, which `seen` tells from others."""
    return _read(journal, events, ReadRun(), None, keep=False)


def _read(
    journal: Path, events: int | None, run: ReadRun, after: Place | None, *, keep: bool = True
) -> ReadRun:
    known, last = run.state.events, None

    def take(path: Path, place: Place) -> None:
        nonlocal last
        if run.state.events != events:
            run.take(parse_entry(path, place.line))
            last = place

    with suppress(OSError):
        changed_ns = journal.stat().st_ctime_ns
    contents = read(journal, take, after).contents
    is_much = run.state.events - known > FEW_EVENTS or run.state.ending
    if last is not None and keep and events is None and is_much and not contents.newline_missing:
        _write(journal.with_name(NAME), run, journal, last, changed_ns)
    return run


def read_row(journal: Path, *, anew: bool = False) -> dict[str, Any]:
    """What a list shows of a run, at once where its index covers all of the journal."""
    row = None if anew else indexed_row(journal)
    return read_run(journal, anew=anew).row if row is None else row


def indexed_row(journal: Path) -> dict[str, Any] | None:
    """The row where the index covers all of the journal; else None."""
    with suppress(OSError, ValueError), journal.with_name(NAME).open("rb") as file:
        reach = _current_reach(journal, lines.decode(file.readline()))
        if reach is not None and reach.covers(journal):
            return dict(reach.row)
    return None


def is_wrong(journal: Path, name: str = NAME) -> bool:
    """Whether what is kept of a journal is damaged, or would be believed and is something else."""
    try:
        head, body = lines.read(journal.with_name(name), chained=True).lines
    except (StudioError, ValueError):
        return True
    if (reach := _current_reach(journal, head.body)) is None:
        return False
    events = None if reach.covers(journal) else reach.events
    right = read_run(journal, events, anew=True)
    return (dumps(reach.row), body.body) != (dumps(right.row), right.encode())


def journal_mark(journal: Path) -> dict[str, Any]:
    """What tells whether something was made from a journal as it is now, and by this code.

    Raises RecordError: it cannot be read.
    """
    try:
        at = journal.stat()
    except PermissionError as error:
        raise lines.unreadable_error(journal, error) from error
    return {"bytes": at.st_size, "changed_ns": at.st_ctime_ns, "code": code_digest()}


def _load_index(journal: Path, events: int | None) -> tuple[ReadRun, Place | None]:
    """By that of the two files which reaches further, and not too far."""
    for name in (NAME, STATE_NAME):
        with suppress(StudioError, ValueError, OSError):
            head, body = lines.read(journal.with_name(name), chained=True).lines
            reach = _current_reach(journal, head.body)
            if reach and (events is None or reach.events <= events):
                return from_dict(ReadRun, orjson.loads(body.body)), reach.place
    return ReadRun(), None


def _current_reach(journal: Path, head: bytes | None) -> Reach | None:
    """Raises ValueError: it is no first line of an index, or one of another release."""
    reach = from_dict(Reach, orjson.loads(head or b""))
    return reach if reach.is_current(journal) else None


def _write(path: Path, run: ReadRun, journal: Path, last: Place, changed_ns: int) -> None:
    """Nobody needs it: where it cannot be written, others read the journal."""
    with suppress(OSError, StudioError, TypeError):  # a full disk; a number too large for JSON
        line, at = last.line, files.segment_path(journal, last.segment)
        reach = Reach(
            events=run.state.events,
            segment=last.segment,
            number=line.number,
            offset=line.offset,
            length=line.length,
            chain=line.digest,
            changed_ns=changed_ns,
            code=code_digest(),
            raw=digest_bytes(_read_bytes(at or journal, line.offset, line.length)),
            row=run.row,
        )
        head, chain = lines.encode(dumps(reach))
        write_atomic(path, head + lines.encode(run.encode(), chain)[0])


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
