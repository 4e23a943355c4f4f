"""How long steps take and a run has left, in seconds of any monotonic clock."""

from __future__ import annotations

import statistics

from engines.core import events as ev
from engines.core.state.run_state import RunState

_LEAST_STEP_S = 1.0


class StepClock:
    """Times the steps whose beginning it sees; a person's time to decide is not the run's."""

    def __init__(self) -> None:
        self.began: float | None = None  # of the work under way; None while a person decides
        self._whole = False  # the step under way was seen from its beginning
        self._worked_s = 0.0
        self._steps_s: list[float] = []

    def add_event(self, event: ev.DurableEvent | ev.TransientEvent, now: float) -> None:
        match event:
            case ev.StepStarted():
                self.began, self._worked_s, self._whole = now, 0.0, True
            case ev.StageEntered(stage="review"):  # the clock stops until the commit
                if self.began is not None:
                    self._worked_s += now - self.began
                self.began = None
            case ev.LessonCommitted():
                self.began = now
            case ev.StepFinished() if self.began is not None:
                if self._whole:
                    self._steps_s.append(self._worked_s + now - self.began)
                self.began, self._whole = None, False

    def remaining_s(self, state: RunState) -> tuple[float, float] | None:
        """Seconds left, from and to: the median step's, or the range until three are known."""
        if not self._steps_s or state.started is None or state.ending:
            return None
        steps = state.started.steps_per_epoch * state.epochs - state.steps_finished
        if len(self._steps_s) >= 3:
            typical = statistics.median(self._steps_s[-20:])
            return typical * steps, typical * steps
        return min(self._steps_s) * steps, max(self._steps_s) * steps

    def remaining_text(self, state: RunState) -> str:
        """The same in words: `12m 30s`, `2m 00s to 5m 10s`, `< 1 min`; "" where nobody knows."""
        left = self.remaining_s(state)
        # Of steps that take no time it cannot be said how long the next one takes.
        if left is None or min(self._steps_s[-20:]) < _LEAST_STEP_S:
            return ""
        low, high = left
        if high < 60:
            return "< 1 min"
        if low == high:
            return duration_text(high)
        return f"{duration_text(low) if low >= 60 else '< 1 min'} to {duration_text(high)}"


def duration_text(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes}m {rest:02d}s" if minutes < 60 else f"{minutes // 60}h {minutes % 60:02d}m"
