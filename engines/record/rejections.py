"""The rejections of a run against those that its library remembers.

Owns finding what either of the two tells and the other does not, after one of them was cut.
Reads; `engines.record.repair` mends.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from engines.core import events as ev
from engines.core.library import Library
from engines.core.state.fold import fold_library
from engines.core.state.run_state import RunState
from engines.core.types import GATE, Decision, Operation
from engines.record.journal import entry_of
from engines.record.lines import Line

Rejections = tuple[tuple[Operation, Decision], ...]


@dataclass(slots=True)
class Told:
    """What a run's journal tells: every decision, and the rejections that were committed.

    Commits of older journals do not say that the library remembers, and are left out.
    """

    decided: set[tuple[str, float]] = field(default_factory=set)  # operation id, at
    committed: list[tuple[int, Rejections]] = field(default_factory=list)  # with their step

    def take(self, before: RunState, event: ev.DurableEvent) -> None:
        """Take an event in; `before` is the state that it comes upon."""
        if isinstance(event, ev.OperationDecided):
            self.decided.add((event.decision.operation_id, event.decision.at))
        elif isinstance(event, ev.LessonCommitted) and event.remembered is not None:
            settled = {outcome.operation_id for outcome in event.outcomes}
            rejected = tuple(
                (operation, decision)
                for operation, decision in before.reviewed
                if operation.id in settled
                and decision.action == "reject"
                and decision.reviewer != GATE
            )
            if rejected:
                self.committed.append((event.step, rejected))


def forgotten(
    run: str, told: Told, library: Iterable[ev.DurableEvent]
) -> list[tuple[int, Rejections]]:
    """Rejections that a run committed and that no line of its library tells of, by step."""
    known: set[tuple[str, str, float]] = set()
    for event in library:
        match event:
            case ev.LibraryCreated():
                known |= {(c.run, c.operation_id, c.at) for c in event.curated}
            case ev.LibraryCurated() | ev.LibraryCommitted():
                known |= {(event.run, op.id, decision.at) for op, decision in event.reviewed}
    missing = [
        (step, tuple(pair for pair in pairs if (run, pair[0].id, pair[1].at) not in known))
        for step, pairs in told.committed
    ]
    return [(step, pairs) for step, pairs in missing if pairs]


@dataclass(frozen=True, slots=True)
class Ahead:
    """The first line of rejections that its run does not tell of.

    `alone`: nothing but more of this run's, untold as well, stands on it.
    """

    line: Line
    event: ev.LibraryCurated
    alone: bool


def ahead(
    run: str, since: int | None, told: Told, path: Path, found: Iterable[Line]
) -> Ahead | None:
    """Look for rejections that the library took from steps the run knows nothing of any more.

    Args:
        run: the run-id.
        since: what the library remembered as the run began; what came before may be of a
            removed run of that id. None: not known, and nothing is found.
        told: what the run's journal tells.
        path: the library's journal.
        found: its lines.
    """
    library: Library | None = None
    first: tuple[Line, ev.LibraryCurated] | None = None
    alone = True
    for line in found:
        event = entry_of(path, line).event
        before = library.remembered if library is not None else 0
        library = fold_library(library, event)
        own = since is not None and before >= since and getattr(event, "run", None) == run
        reviewed = event.reviewed if isinstance(event, ev.LibraryCurated) else ()
        untold = any((op.id, decision.at) not in told.decided for op, decision in reviewed)
        if first is not None:
            alone = alone and own and (untold or isinstance(event, ev.LibraryCommitted))
        elif own and untold and isinstance(event, ev.LibraryCurated):
            first = (line, event)
    return None if first is None else Ahead(*first, alone)
