"""What a run's journal adds up to.

The state at the end of the last closed segment is kept, so that a reader or a resume reads the
growing segment alone. Closed segments are not checked again then but for their sizes and the
checksum that the next one names: `studio doctor` reads them all.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from engines.core.codec import from_dict
from engines.core.state.fold import fold
from engines.core.state.list_row import list_row
from engines.core.state.run_state import Live, RunState
from engines.record.derived.store import FOLDER, keep_derived, read_derived
from engines.record.journal import Entry, Journal, parse_entry
from engines.record.segments import (
    Place,
    closed_end,
    read,
    read_head,
    segment_paths,
    started_at,
)
from engines.secrets.mask import NO_SECRETS, Mask

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
    def row(self) -> dict[str, Any]:
        """What a list shows of the run."""
        return {**list_row(self.state), "began": self.began, "last": self.last}


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
        before = run.state.step
        run.take(entry)
        if run.state.step != before:
            recent.clear()
        recent.append(entry)
    opened.entries = tuple(recent)
    return opened, run.state


def load_closed(
    journal: Path, tell: Callable[[str], None] = lambda _: None
) -> tuple[ReadRun, Place | None]:
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
    tell: Callable[[str], None] = lambda _: None,
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
