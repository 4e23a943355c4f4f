"""What is wrong with a run."""

from __future__ import annotations

from collections.abc import Iterator

from engines.core import events as ev
from engines.core.errors import RecordError
from engines.core.state.fold import fold
from engines.core.state.run_state import RunState
from engines.core.types import RecordRef
from engines.record.journal import Entry
from engines.record.repair.files import examine, file_troubles, read_entry
from engines.record.repair.history import library_mismatches
from engines.record.repair.replies import note_shown, reference_troubles, shown_troubles
from engines.record.repair.trouble import Trouble
from engines.record.run_dir import RunDir, Workspace


def run_troubles(run: RunDir, workspace: Workspace) -> Iterator[Trouble]:
    """What is wrong with a run: its journal and records, alone, together, and with its library."""
    yield from file_troubles(run.journal, chained=True, folder=run.path)
    for path in sorted(run.records.glob("*.jsonl")):
        try:
            yield from file_troubles(path, chained=False, folder=run.path)
        except RecordError as error:  # a folder, say: there is more to look at
            yield Trouble(error.place, error.cause, error.move)
    found = examine(run.journal, chained=True)
    entries: list[Entry] = []
    for line in found.lines:
        entry = read_entry(run.journal, line)
        if isinstance(entry, Trouble):
            yield entry
            return
        entries.append(entry)
    if found.error is not None:
        return
    state = RunState()
    steps: list[tuple[int, ev.DurableEvent]] = []  # the step under way, by line
    shown: dict[str, list[RecordRef]] = {}  # what no resume reads again, by file
    for at, entry in enumerate(entries):
        if isinstance(entry.event, ev.StepStarted):
            note_shown(shown, steps)
        steps.append((at, entry.event))
        fold(state, entry.event)
    now = state.current
    if now is None or now.lesson is not None or now.committed:
        note_shown(shown, steps)  # nothing reads the replies of the newest step again
    yield from reference_troubles(run, steps, found.lines)
    yield from shown_troubles(run, shown)
    if state.started is not None:
        yield from library_mismatches(run, workspace, state, entries, found.lines)
