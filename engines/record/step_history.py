"""The history of a run, read from its journal once and then only as far as it has grown."""

import re
from pathlib import Path

from engines.core.state.fold import fold_history
from engines.core.state.run_state import RunHistory, StepHistory
from engines.record.journal import HEAD_BYTES, parse_entry
from engines.record.run_dir import RunDir
from engines.record.segments import Place, find_segment, is_unchanged, read

_LATER = rb'"kind":"(?:Operations?Decided|DecisionUndone|LessonReturned|Reply\w+)"'
"""What may be about a step although it happened in a later one."""


class HistoryReader:
    """Keeps the history of one run up to date, also while another process writes it.

    With a `step` only of that one, as it went until it was over; the settings of the run are not
    told then. `later`: also what became of it in later steps, for which all of them are looked at.
    """

    def __init__(self, run: RunDir, step: int | None = None, *, later: bool = False) -> None:
        self._journal, self._step, self._later = run.journal, step, later
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


def read_history(run: RunDir) -> RunHistory:
    """What happened in each step of a run so far; see `HistoryReader.read` for errors."""
    return HistoryReader(run).read()


def read_step(run: RunDir, step: int) -> StepHistory:
    """What happened in one step of a run, and became of it; nothing where it has not begun."""
    found = HistoryReader(run, step, later=True).read().steps
    return found.get(step) or StepHistory(step)
