"""An evaluation under way, as the live page shows it: its tries, and how long it takes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from engines.core import events as ev
from engines.core.types import try_id
from studio.tui.pages.live.batch import RolloutStatus, reward_state, reward_text

MOST_SHOWN = 12
"""Tries that have a pane; the others are only counted."""


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
        self._began: float | None = None  # when its first try began, if that was seen

    def clear(self) -> None:
        self.progress, self._began = None, None
        self.tries.clear()

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
                self._end(event)
            case ev.EvaluationProgressed() | ev.EvaluationFinished() | ev.StepStarted():
                self.clear()
            case ev.RolloutStarted(key=key) if key.purpose == "evaluation" and self.progress:
                one = RolloutStatus(try_id(key), key.position, key.index, "streaming")
                self._show(HeldOutTry(event.problem, one))

    def find(self, name: str) -> HeldOutTry | None:
        return next((one for one in self.tries if one.shown.id == name), None)

    def timing_text(self, now: float) -> str:
        """`, 12 s, about 20 s left`, as far as it is known."""
        from studio.report.step_clock import duration_text

        if self.progress is None or self._began is None or (took := now - self._began) < 1.0:
            return ""
        text = f", {duration_text(took)}"
        if done := self.progress.done:
            text += f", about {duration_text((self.progress.total - done) * took / done)} left"
        return text

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
