"""Pause, step and stop: what a person can ask of a living run.

Calls under way are never cut by a pause, however short; a stop cancels them.
"""

import asyncio
from collections import Counter
from typing import Literal

from engines.core import events
from engines.core import events as ev
from engines.core.state.run_state import RunState, StepState
from engines.core.types import KILLED, Lesson, Reflection, Tell
from engines.pipeline.recorder import Recorder


class RunControl:
    """The brakes of one run, used from its event loop.

    Models are opened with it before there is a journal: `record_with` names the recorder then.
    """

    _recorder: Recorder

    def __init__(self, recorder: Recorder | None = None) -> None:
        if recorder is not None:
            self._recorder = recorder
        self._open = asyncio.Event()
        self._open.set()
        self._calling = asyncio.Event()  # cleared only while the run is paused on the spot
        self._calling.set()
        self._main: asyncio.Task[object] | None = None
        self.stop_reason = ""
        self.stop_request = ""  # id of the request that asked to stop
        self.ending: Literal["stopped", "failed", "budget"] = "stopped"  # what a stop amounts to
        self.stop_after_step = False
        self.ended = False  # True once the run's ending is being recorded: too late to stop

    def record_with(self, recorder: Recorder) -> None:
        """Record what is asked of the run from now on."""
        self._recorder = recorder

    def set_main_task(self, main: asyncio.Task[object]) -> None:
        """Name the task that a stop cancels, also one that came before."""
        self._main = main
        if self.stop_reason and not self.stop_after_step:
            main.cancel()

    async def wait_while_paused(self) -> None:
        """Wait while the run is paused; called before anything new is begun."""
        await self._open.wait()

    async def wait_before_call(self) -> None:
        """Wait while the run is paused on the spot; called before each call of a model."""
        await self._calling.wait()

    async def pause(self, now: bool = False) -> None:
        """Begin nothing new; what is under way ends, with `now` only its model calls."""
        if now:
            self._calling.clear()
        if self._open.is_set():
            self._open.clear()
            await self._recorder.record(events.RunPaused())

    async def resume(self) -> None:
        await self._go_on(None)

    async def step(self) -> None:
        """Go on through the next commit, then pause."""
        await self._go_on(1)

    def stop_soon(self, reason: str, after_step: bool = False) -> None:
        """Stop once whoever asks is answered: stopping closes that very connection."""
        asyncio.get_running_loop().call_soon(self.stop, reason, after_step)

    def stop(self, reason: str, after_step: bool = False) -> None:
        """End the run now, or once the step under way is committed."""
        if self.ended or self.ending != "stopped":
            return
        self.stop_reason, self.stop_request = reason, self._recorder.request
        if after_step:
            self.stop_after_step = True
            self._release_all()
        elif self._main is not None:
            self._main.cancel()

    def give_up(self, how: Literal["failed", "budget"], reason: str) -> None:
        """End the run now, because going on makes no sense or is not allowed.

        The first reason counts: what fails after it fails because of it.
        """
        if self.ended or (self.stop_reason and not self.stop_after_step):
            return
        self.ending, self.stop_reason = how, reason
        self.stop_after_step = False  # the step that was to be the last cannot be finished
        if self._main is not None:
            self._main.cancel()

    async def finish_step(self, step: int) -> bool:
        """Called after each step; True when the run is to end here."""
        hold_after = self._recorder.state.hold_after
        if hold_after is not None and step >= hold_after:
            await self.pause()
        return self.stop_after_step

    async def _go_on(self, steps: int | None) -> None:
        await self._recorder.record(events.RunContinued(steps))
        self._release_all()

    def _release_all(self) -> None:
        self._open.set()
        self._calling.set()


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

    def __init__(self, give_up: Tell = lambda reason: None) -> None:
        """`give_up` ends the run, for the reason it is given."""
        self._give_up = give_up
        self._streaks: Counter[Kind] = Counter()

    def report_success(self, kind: Kind) -> None:
        self._streaks[kind] = 0

    def report_failure(self, kind: Kind, cause: str, under_way: int = 0) -> None:
        """One more failed, after its retries; `under_way` counts others of its kind."""
        self._streaks[kind] += 1
        streak = self._streaks[kind]
        most = IN_A_ROW
        if kind == "consolidation":
            # Where the last tries failed too, its step would be closed with nothing learned.
            before = [self._streaks["rollout"], self._streaks["reflection"]]
            most = 1 if max(before) >= FAILING else LESSONS_IN_A_ROW
        if streak >= most and streak > under_way:
            many = f"last {streak} {kind}s" if streak > 1 else f"calls before and the {kind}"
            self._give_up(f"the {many} failed: {cause}")

    def report_rollout(self, rollout: ev.RolloutFinished, state: RunState) -> None:
        why = rollout.error or "no reason was given"
        if rollout.status != "failed":
            self.report_success("rollout")
        elif not why.startswith(KILLED):  # that says nothing of the model
            practice = (one for one in state.live.tries.values() if one)
            others = sum(one.key.purpose == "rollout" for one in practice)
            self.report_failure("rollout", why, others)

    def report_verdict(self, judged: ev.RolloutJudged, step: StepState) -> None:
        rollout = step.rollouts.get((judged.position, judged.index))
        verdict = judged.verdict
        if rollout is not None and rollout.status == "failed":
            return  # a rollout that failed has no verdict of its own
        if verdict.reward is not None:
            self.report_success("verdict")
        elif verdict.error is not None and not verdict.error.startswith("masked:"):
            # Where it is masked, only this one answer cannot be compared.
            waiting = step.rollouts_done - len(step.verdicts)
            self.report_failure("verdict", verdict.error, waiting)

    def report_reflection(self, reflection: Reflection, state: RunState) -> None:
        # A reply that could not be understood is one: only calls that failed count.
        losses = reflection.losses
        if reflection.outcome == "used" or any(loss.reply for loss in losses):
            self.report_success("reflection")
        elif reflection.outcome == "failed" and losses:
            waiting = _count_to_reflect(state, reflection.step)
            self.report_failure("reflection", losses[0].reason, waiting)

    def report_lesson(self, lesson: Lesson) -> None:
        if has_failed_call(lesson):
            self.report_failure("consolidation", lesson.losses[0].reason)
        elif lesson.refs:
            self.report_success("consolidation")


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
