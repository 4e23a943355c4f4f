"""How fast a run goes, as the screen's own clock sees it: tokens a second, time left.

Owns no clock: every method is told the time, in seconds of any monotonic clock.
"""

from __future__ import annotations

import statistics
from collections import deque

from engines.core import events as ev
from engines.core.run_state import RunState

_WINDOW_S = 10.0


class Tempo:
    """Takes events and pieces of text; answers for the header."""

    def __init__(self) -> None:
        self._began: float | None = None
        self._worked_s = 0.0
        self._steps_s: list[float] = []
        self._chars: deque[tuple[float, int]] = deque()

    def take(self, event: ev.DurableEvent | ev.TransientEvent, now: float) -> None:
        match event:
            case ev.StepStarted():
                self._began, self._worked_s = now, 0.0
            case ev.StageEntered(stage="review") if self._began is not None:
                # A person's time is not the run's: the clock stops until the commit.
                self._worked_s += now - self._began
                self._began = None
            case ev.LessonCommitted():
                self._began = now
            case ev.StepFinished() if self._began is not None:
                self._steps_s.append(self._worked_s + now - self._began)
                self._began = None

    def streamed(self, chars: int, now: float) -> None:
        self._chars.append((now, chars))

    def tokens_per_s(self, now: float) -> float | None:
        """Of the visible text of the last ten seconds, four characters a token; None: none."""
        while self._chars and self._chars[0][0] < now - _WINDOW_S:
            self._chars.popleft()
        total = sum(chars for _, chars in self._chars)
        return total / 4 / _WINDOW_S if total else None

    def left_s(self, state: RunState) -> tuple[float, float] | None:
        """Seconds left, from and to: the median step's, or the range until three are known."""
        if not self._steps_s or state.started is None or state.ending:
            return None
        steps = state.started.steps_per_epoch * state.epochs - state.steps_finished
        if len(self._steps_s) >= 3:
            typical = statistics.median(self._steps_s[-20:])
            return typical * steps, typical * steps
        return min(self._steps_s) * steps, max(self._steps_s) * steps
