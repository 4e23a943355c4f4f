"""An evaluation under way, as the live page shows it: its tries, and how long it takes."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

from engines.core import events as ev
from engines.core.types import try_id
from studio.tui.pages.live.batch import RolloutStatus, reward_state, reward_text

MOST_SHOWN = 12
"""Tries that have a pane; the others are only counted."""
_MEASURED = 64
"""Tries by whose pace the time left is reckoned."""


@dataclass(frozen=True, slots=True)
class HeldOutTry:
    """One try, and the problem it is at."""

    problem: str
    shown: RolloutStatus


class HeldOut:
    """Follows one evaluation. A try that has ended keeps its pane until another begins."""

    def __init__(self) -> None:
        self.progress: ev.EvaluationProgressed | None = None  # None: nothing is measured
        self.tries: list[HeldOutTry] = []  # in the order of their panes
        self._done: deque[tuple[float, int]] = deque(maxlen=_MEASURED)  # when so many were done
        self._began: float | None = None  # when its first try began, if that was seen

    def clear(self) -> None:
        self.progress, self._began = None, None
        self.tries.clear()
        self._done.clear()

    def handle_event(self, event: ev.DurableEvent | ev.TransientEvent, now: float) -> None:
        match event:
            case ev.EvaluationProgressed(done=done) if done < event.total:
                if self.progress is None or (event.data, event.step) != (
                    self.progress.data,
                    self.progress.step,
                ):
                    self.clear()
                    self._began = None if done else now
                self.progress = event
                self._done.append((now, done))
                self._end(event)
            case ev.EvaluationProgressed() | ev.EvaluationFinished() | ev.StepStarted():
                self.clear()
            case ev.RolloutStarted(key=key) if key.purpose == "evaluation" and self.progress:
                one = RolloutStatus(try_id(key), key.position, key.index, "streaming")
                self._show(HeldOutTry(event.problem, one))

    def find(self, name: str) -> HeldOutTry | None:
        return next((one for one in self.tries if one.shown.id == name), None)

    def elapsed_s(self, now: float) -> float | None:
        """Since it began; None where that was not seen."""
        return None if self._began is None else now - self._began

    def remaining_s(self, now: float) -> float | None:
        """About how long it takes yet; None until some tries are through."""
        if self.progress is None or len(self._done) < 2:
            return None
        (since, before), (last, done) = self._done[0], self._done[-1]
        took = max(last - since, now - since if done - before < _MEASURED - 1 else 0.0)
        if done <= before or took < 1.0:
            return None
        return (self.progress.total - done) * took / (done - before)

    def timing_text(self, now: float) -> str:
        """`, 12 s, about 20 s left`, as far as it is known."""
        from studio.report.step_clock import duration_text

        took, left = self.elapsed_s(now), self.remaining_s(now)
        text = f", {duration_text(took)}" if took is not None and took >= 1.0 else ""
        return text + (f", about {duration_text(left)} left" if left is not None else "")

    def _show(self, one: HeldOutTry) -> None:
        """Give it the pane of one that ended, or a new one while there is room."""
        names = [each.shown.id for each in self.tries]
        ended = (at for at, each in enumerate(self.tries) if each.shown.has_ended)
        at = names.index(one.shown.id) if one.shown.id in names else next(ended, len(names))
        if at < MOST_SHOWN:
            self.tries[at : at + 1] = [one]

    def _end(self, event: ev.EvaluationProgressed) -> None:
        if event.key is None or (one := self.find(try_id(event.key))) is None:
            return
        reward = event.reward
        said = "not judged" if reward is None else f"reward {reward_text(reward)}"
        state = "error" if reward is None else reward_state(reward)
        ended = replace(one, shown=replace(one.shown, state=state, said=said))
        self.tries[self.tries.index(one)] = ended
