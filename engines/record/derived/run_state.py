"""What a run's journal and records add up to: its state, its history, what was paid.

Values made from journals and records are kept in `derived/` beside them, by one rule: a file there
that is damaged, old or missing is made again from the journals by whoever needs it. So the folder
may be thrown away at any time, no repair knows it, and where it cannot be written nothing is lost
but time.

The state at the end of the last closed segment is kept, so that a reader or a resume reads the
growing segment alone. Closed segments are not checked again then but for their sizes and the
checksum that the next one names: `studio doctor` reads them all.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from engines import core
from engines.core.codec import JsonObject, digest_bytes, dumps, from_dict, to_dict
from engines.core.errors import RecordError, StudioError
from engines.core.state.fold import fold, fold_history
from engines.core.state.list_row import list_row
from engines.core.state.run_state import Live, RunHistory, RunState, StepHistory
from engines.core.types import NO_USAGE, Tell, Usage
from engines.record import appender, ledger, lines, seal
from engines.record.journal import (
    HEAD_BYTES,
    Entry,
    Journal,
    Place,
    closed_end,
    find_segment,
    is_unchanged,
    parse_entry,
    read,
    read_head,
    segment_paths,
    started_at,
)
from engines.secrets.mask import NO_SECRETS, Mask

FOLDER = "derived"


def derive(path: Path, made_from: Any, make: Callable[[], Any]) -> Any:
    """Return the value that is kept in a file if it was made from the same, else make it again."""
    kept = read_derived(path)
    if kept is not None and kept["made_from"] == made_from:
        return kept["value"]
    value = make()
    keep_derived(path, {"made_from": made_from, "value": value})
    return value


def read_derived(path: Path) -> Any:
    """Return what is kept in a file; None where it is damaged, gone or of other code."""
    kept = seal.read_sealed(path)
    if kept is None or kept["code"] != code_digest():
        return None
    return kept["kept"]


def keep_derived(path: Path, value: object) -> None:
    """Write a value down; it does not matter where that fails."""
    # A full disk, a folder of somebody else's, or a number too large for JSON.
    with suppress(OSError, StudioError, TypeError):
        path.parent.mkdir(mode=0o700, exist_ok=True)
        appender.write_atomic(path, seal.add_seal(dumps({"code": code_digest(), "kept": value})))


def journal_mark(journal: Path) -> JsonObject:
    """Return what tells a journal as it is now from another, or from the same at another time.

    Raises RecordError: it cannot be read.
    """
    try:
        now = journal.stat()
    except PermissionError as error:
        raise lines.unreadable_error(journal, error) from error
    return {"bytes": now.st_size, "changed_ns": now.st_ctime_ns, "code": code_digest()}


@cache
def code_digest() -> str:
    """Return the hash of all code that makes something of events: other code may mean other."""
    folder = Path(core.__file__).parent
    sources = (
        *folder.glob("*.py"),
        *folder.glob("state/*.py"),
        *Path(__file__).parent.glob("*.py"),
    )
    return digest_bytes(b"".join(path.read_bytes() for path in sorted(sources)))


NAME = f"{FOLDER}/state.json"


@dataclass(slots=True)
class ReadRun:
    """What a journal adds up to, with the times of its first and last entry."""

    state: RunState = field(default_factory=RunState)
    began: float | None = None
    last: float | None = None

    def take(self, entry: Entry) -> None:
        fold(self.state, entry.event)
        self.began, self.last = self.began or entry.at, entry.at

    @property
    def row(self) -> JsonObject:
        """What a list shows of the run."""
        return {**list_row(self.state), "began": self.began, "last": self.last}


def open_run(
    journal: Path,
    open_journal: Callable[..., Journal] = Journal,
    *,
    tell: Tell = lambda _: None,
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
        before = run.state.step
        run.take(entry)
        if run.state.step != before:
            recent.clear()
        recent.append(entry)
    opened.entries = tuple(recent)
    return opened, run.state


def load_closed(journal: Path, tell: Tell = lambda _: None) -> tuple[ReadRun, Place | None]:
    """Return what the closed segments add up to, and where they end; nothing where none is.

    Raises DamagedError: one of them is gone, cut or altered.
    """
    closed = segment_paths(journal)[:-1]
    run, end = ReadRun(), closed_end(journal)
    if not closed:
        return run, None
    sizes = [path.stat().st_size if path.exists() else 0 for path in closed]
    if end is not None and sum(sizes) == read_head(journal).bytes:
        kept = read_derived(journal.parent / NAME)
        if kept is not None and kept["after"] == end.line.digest:
            return from_dict(ReadRun, kept["run"]), end
    parts = "1 closed part" if len(closed) == 1 else f"{len(closed)} closed parts"
    tell(f"{journal.parent / NAME}: made again from {parts} of the journal")
    read(journal, lambda path, place: run.take(parse_entry(path, place.line)), upto=len(closed))
    _keep(journal, run)
    return run, closed_end(journal)


def keep_state(journal: Path, state: RunState, last: float) -> None:
    """Keep the state at the end of the last closed segment, whose last entry was at `last`."""
    _keep(journal, ReadRun(state, started_at(journal), last))


def _keep(journal: Path, run: ReadRun) -> None:
    end = closed_end(journal)
    if end is not None:
        kept = replace(run, state=replace(run.state, live=Live()))  # which nobody writes down
        keep_derived(journal.parent / NAME, {"after": end.line.digest, "run": kept})


def read_run(
    journal: Path,
    events: int | None = None,
    *,
    anew: bool = False,
    tell: Tell = lambda _: None,
) -> ReadRun:
    """Return what a journal says, or its first so many events; `anew`: by the journal alone.

    `tell` is told where closed segments had to be read.

    Raises DamagedError or RecordError as `segments.reading.read` and `parse_entry` do.
    """
    run, after = (ReadRun(), None) if anew else load_closed(journal, tell)
    if events is not None and run.state.events > events:
        run, after = ReadRun(), None

    def take(path: Path, place: Place) -> None:
        if run.state.events != events:
            run.take(parse_entry(path, place.line))

    read(journal, take, after)
    return run


_LATER = rb'"kind":"(?:Operations?Decided|DecisionUndone|LessonReturned|Reply\w+)"'
"""What may be about a step although it happened in a later one."""


class HistoryReader:
    """Keeps the history of one run up to date, also while another process writes it.

    With a `step` only of that one, as it went until it was over; the settings of the run are not
    told then. `later`: also what became of it in later steps, for which all of them are looked at.
    """

    def __init__(self, journal: Path, step: int | None = None, *, later: bool = False) -> None:
        self._journal, self._step, self._later = journal, step, later
        about = b"" if step is None else rb'"step":%d\b' % step + (b"|" + _LATER) * later
        self._about = re.compile(about)
        self._last: Place | None = None
        self._history = RunHistory()

    def read(self) -> RunHistory:
        """The history so far; the same object as before, unless the journal was cut meanwhile."""
        if self._last is not None and not is_unchanged(self._journal, self._last):
            self._last, self._history = None, RunHistory()  # a repair cut it: begin again
        first, upto = 1, None
        if self._step is not None:
            first = find_segment(self._journal, "step", self._step - 1) if self._step else 1
            last = None if self._later else find_segment(self._journal, "step", self._step)
            upto = last if self._step else None  # steps stand in one segment, or in two
        read(self._journal, self._take, self._last, first=max(1, first), upto=upto)
        return self._history

    def _take(self, path: Path, place: Place) -> None:
        if self._about.search(place.line.body, 0, HEAD_BYTES):
            entry = parse_entry(path, place.line)
            fold_history(self._history, entry.event, entry.at)
        self._last = place


def read_history(journal: Path) -> RunHistory:
    """What happened in each step of a run so far; see `HistoryReader.read` for errors."""
    return HistoryReader(journal).read()


def read_step(journal: Path, step: int) -> StepHistory:
    """What happened in one step of a run, and became of it; nothing where it has not begun."""
    found = HistoryReader(journal, step, later=True).read().steps
    return found.get(step) or StepHistory(step)


_USAGE = f"{FOLDER}/usage.json"
_Sums = JsonObject
"""Of a file: "mark" tells it from another of that name, "sums" are rows of policy and usage."""


def usage_sums(records: Path) -> Iterator[tuple[str, Usage]]:
    """Policy and usage of every record below a folder, added up as far as a price tells no other.

    Raises DamagedError: a record cannot be read.
    """
    path = records.parent / _USAGE
    before = read_derived(path) or {}
    now: dict[str, _Sums] = {}
    for file in sorted(records.glob("*.jsonl")):
        status = file.stat()
        mark = [status.st_size, status.st_mtime_ns]
        sums = before.get(file.name)
        if sums is None or sums["mark"] != mark:
            sums = {"mark": mark, "sums": _add(file)}
        now[file.name] = sums
    if now != before:
        keep_derived(path, now)
    for sums in now.values():
        for policy, usage in sums["sums"]:
            yield policy, from_dict(Usage, usage)


def keep_usage(records: Path) -> None:
    """Add up what is new, while the run goes on; a damaged record is told of by a resume."""
    with suppress(RecordError):
        next(usage_sums(records), None)


def _add(file: Path) -> list[tuple[str, JsonObject]]:
    sums: dict[tuple[str, bool], Usage] = {}
    for policy, usage in ledger.file_usage(file):
        key = policy, usage.cost_usd is None  # an unknown cost hides none that is known
        sums[key] = sums.get(key, NO_USAGE) + usage
    return [(policy, to_dict(usage)) for (policy, _), usage in sums.items()]
