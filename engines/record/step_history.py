"""The history of a run, read from its journal once and then only as far as it has grown."""

from __future__ import annotations

from engines.core.state.step_history import RunHistory, fold_history
from engines.record import lines
from engines.record.journal import parse_entry
from engines.record.run_dir import RunDir


class HistoryReader:
    """Keeps the history of one run up to date, also while another process writes it."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._last: lines.StoredLine | None = None
        self._history = RunHistory()

    def read(self) -> RunHistory:
        """The history so far; the same object as before, unless the journal was cut meanwhile."""
        journal = self._run.journal
        if self._last is not None and not lines.is_unchanged(journal, self._last):
            self._last, self._history = None, RunHistory()  # a repair cut it: begin again
        for line in lines.read(journal, chained=True, after=self._last).lines:
            fold_history(self._history, parse_entry(journal, line).event)
            self._last = line
        return self._history


def read_history(run: RunDir) -> RunHistory:
    """What happened in each step of a run so far; see `HistoryReader.read` for errors."""
    return HistoryReader(run).read()
