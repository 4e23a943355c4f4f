"""Notices that nothing works any more, so that a run ends before it has paid for nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Literal

from engines.core import events as ev
from engines.core.state.run_state import RunState
from engines.core.types import KILLED, Lesson

Kind = Literal["rollout", "verdict", "reflection", "consolidation", "held-out rollout"]

IN_A_ROW = 16
"""Failures without a success between them that mean an outage. Each has had its retries.
Where one in five fails by chance, sixteen in a row come once in 10^11 tries; where all
fail, sixteen are little to have paid. What fails at once is heard of before what works
slowly: so the streak must also be longer than what is under way, which may yet work."""
LESSONS_IN_A_ROW = 3
"""The same of consolidations. There is one a step, and each that fails loses its step."""
FAILING = 3
"""Rollouts or reflections that failed in a row, with which one lost consolidation is enough."""


class Outage:
    """Counts failures as they are reported, and gives up where they do not end."""

    def __init__(self, give_up: Callable[[str], None]) -> None:
        """`give_up` ends the run, for the reason it is given."""
        self._give_up = give_up
        self._streaks: Counter[Kind] = Counter()
        self._under_way: Counter[Kind] = Counter()

    def report_start(self, kind: Kind) -> None:
        """One more is under way, until it is said to have worked, failed or passed."""
        self._under_way[kind] += 1

    def report_success(self, kind: Kind) -> None:
        self.report_neutral(kind)
        self._streaks[kind] = 0

    def report_neutral(self, kind: Kind) -> None:
        """One more ended in a way that says nothing."""
        self._under_way[kind] = max(0, self._under_way[kind] - 1)

    def report_failure(self, kind: Kind, cause: str, under_way: int | None = None) -> None:
        """One more failed, after its retries.

        `under_way` counts others of its kind; None: those that were said to have begun.
        """
        self.report_neutral(kind)
        self._streaks[kind] += 1
        streak = self._streaks[kind]
        most = IN_A_ROW
        if kind == "consolidation":
            # Where the last tries failed too, its step would be closed with nothing learned.
            before = [self._streaks["rollout"], self._streaks["reflection"]]
            most = 1 if max(before) >= FAILING else LESSONS_IN_A_ROW
        others = self._under_way[kind] if under_way is None else under_way
        if streak >= most and streak > others:
            many = f"last {streak} {kind}s" if streak > 1 else f"calls before and the {kind}"
            self._give_up(f"the {many} failed: {cause}")

    def watch(self, state: RunState) -> Callable[[ev.DurableEvent | ev.TransientEvent], None]:
        """A listener that reports what a run's events say; `state` is what they add up to."""

        def on_event(event: ev.DurableEvent | ev.TransientEvent) -> None:
            match event:
                case ev.RolloutStarted(key=key) if key.purpose == "rollout":
                    self.report_start("rollout")
                case ev.RolloutFinished(status="failed", error=str(why)) if why.startswith(KILLED):
                    self.report_neutral("rollout")  # it says nothing of the model
                case ev.RolloutFinished(status="failed"):
                    self.report_failure("rollout", event.error or "no reason was given")
                case ev.RolloutFinished():
                    self.report_success("rollout")
                case ev.RolloutJudged(verdict=verdict):
                    step = state.steps[event.step]
                    rollout = step.rollouts.get((event.position, event.index))
                    if rollout is not None and rollout.status == "failed":
                        pass  # a rollout that failed has no verdict of its own
                    elif verdict.reward is not None:
                        self.report_success("verdict")
                    elif verdict.error is not None and not verdict.error.startswith("masked:"):
                        # Where it is masked, only this one answer cannot be compared.
                        waiting = step.rollouts_done - len(step.verdicts)
                        self.report_failure("verdict", verdict.error, waiting)
                case ev.GroupReflected(reflection=reflection):
                    # A reply that could not be understood is one: only calls that failed count.
                    losses = reflection.losses
                    if reflection.outcome == "used" or any(loss.reply for loss in losses):
                        self.report_success("reflection")
                    elif reflection.outcome == "failed" and losses:
                        waiting = _count_to_reflect(state, event.step)
                        self.report_failure("reflection", losses[0].reason, waiting)
                case ev.LessonProposed(lesson=lesson) if has_failed_call(lesson):
                    self.report_failure("consolidation", lesson.losses[0].reason)
                case ev.LessonProposed(lesson=lesson) if lesson.refs:
                    self.report_success("consolidation")

        return on_event


def has_failed_call(lesson: Lesson) -> bool:
    """Whether the model could not be asked, so that the step's lessons are lost."""
    lost = [loss for loss in lesson.losses if loss.kind == "consolidation"]
    return bool(lost) and not lesson.operations and not any(loss.reply for loss in lost)


def _count_to_reflect(state: RunState, number: int) -> int:
    """Groups that are judged and not reflected on yet, about."""
    step = state.steps[number]
    tries = Counter(position for position, _ in step.verdicts)
    judged = sum(tries[at] >= size for at, size in enumerate(state.group_sizes(step)))
    return max(0, judged - len(step.reflections))
