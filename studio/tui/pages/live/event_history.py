"""What happened in a run before a screen was opened, from its journal.

Reads; changes nothing. Blocks while it does, so it belongs into a thread.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from engines.core.errors import StudioError
from engines.core.events import StepStarted
from engines.core.state.fold import fold
from engines.core.state.run_state import RunState
from engines.record.run_dir import RunDir
from studio.report.training import is_fine_tuning
from studio.tui.pages.live.batch import Batch, current_batch
from studio.tui.pages.live.sentences import event_texts


@dataclass(frozen=True, slots=True)
class EventHistory:
    """What a journal tells of the time before."""

    told: tuple[tuple[float, str], ...]  # seconds since the epoch, and what; oldest first
    batch: Batch | None  # the last one that was begun, with all that came of it


def load_event_history(run: RunDir, most: int = 200) -> EventHistory:
    """The last things that happened, and the rollouts of the last batch."""
    from studio.report.progress import LinePrinter

    out: deque[tuple[float, str]] = deque(maxlen=most)
    state = RunState()
    now = 0.0
    batch: Batch | None = None

    def say(text: str) -> None:
        out.append((now, text))

    lines = LinePrinter(state, say)
    try:
        for entry in run.entries():
            now = entry.at
            fold(state, entry.event)
            if isinstance(entry.event, StepStarted):
                batch = current_batch(state)  # its mappings go on being filled until it is through
            told = event_texts(
                entry.event, trains=state.trains_weights, shown=is_fine_tuning(state)
            )
            if told is None:
                lines(entry.event)
            else:
                for text in told:
                    say(text)
    except StudioError as error:  # a damaged journal: 5 says so, with the move
        say(str(error))
    return EventHistory(tuple(out), batch)
