"""What happened in each step of a run: the second reducer, beside `fold`.

`fold` says where the run stands, and empties a step once it is finished; whoever shows, cites or
computes again a step that is over reads it here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from engines.core import events as ev
from engines.core.types import (
    Decision,
    Lesson,
    Operation,
    ProposalFate,
    Reflection,
    Verdict,
    replace_dropped,
    rollout_id,
)

Revocation = Literal["undone", "decided again", "asked again"]
"""Why a decision does not stand: a person took it back, made another one, or the library moved."""


@dataclass(slots=True)
class RolloutHistory:
    """The latest try of one rollout."""

    finished: ev.RolloutFinished
    verdict: Verdict | None = None  # None: it was not judged yet

    @property
    def id(self) -> str:
        return rollout_id(self.finished.step, self.finished.position, self.finished.index)

    @property
    def reward(self) -> float | None:
        return self.verdict.reward if self.verdict else None


@dataclass(slots=True)
class DecisionHistory:
    """One decision as it was made, and what became of it."""

    decision: Decision
    revoked: Revocation | None = None  # None: it stands


@dataclass(slots=True)
class StepHistory:
    """All that happened in one step, in the order of the journal.

    Step 0 holds what belongs to no step: evaluations before the first, commits after the end.
    """

    step: int
    started: ev.StepStarted | None = None  # None: of step 0
    rollouts: dict[tuple[int, int], RolloutHistory] = field(default_factory=dict)
    reflections: list[Reflection] = field(default_factory=list)  # two of a group tried again
    lesson: Lesson | None = None
    choice: ev.LessonsCompared | None = None  # None: one lesson was drawn
    lesson_settings: Mapping[str, Any] = field(default_factory=dict)  # the lesson was made with
    planned_steps: int = 0  # of the whole run, as planned when the lesson was proposed
    proposed: list[ev.OperationProposed] = field(default_factory=list)
    # About replies of this step, also where a person answered in a later one.
    resubmissions: list[ev.ReplyMended | ev.ReplyDropped] = field(default_factory=list)
    decisions: list[DecisionHistory] = field(default_factory=list)
    committed: ev.LessonCommitted | None = None  # of step 0: the latest one
    evaluations: list[ev.EvaluationFinished] = field(default_factory=list)
    checkpoint: ev.CheckpointSaved | None = None

    @property
    def problems(self) -> tuple[str, ...]:
        return self.started.problems if self.started else ()

    @property
    def trains(self) -> bool:
        """Whether it is no step of an alternating run that learns its library."""
        return self.started is None or self.started.learns != "library"

    @property
    def rewards(self) -> dict[tuple[int, int], float | None]:
        """Of every judged rollout by position and index; None where it has no reward."""
        return {at: one.reward for at, one in self.rollouts.items() if one.verdict is not None}

    @property
    def latest_reflections(self) -> dict[int, Reflection]:
        """The last reflection of each group, in sample order."""
        return {r.position: r for r in sorted(self.reflections, key=lambda r: r.position)}

    @property
    def doubts(self) -> dict[str, str]:
        """Rollout → why the reflector doubts its verdict."""
        found = self.latest_reflections.values()
        return {doubt.rollout: doubt.reason for one in found for doubt in one.doubts}

    @property
    def operations(self) -> tuple[Operation, ...]:
        """Every operation it brought: of its lesson, of resubmitted replies, and people's own."""
        mended = [event for event in self.resubmissions if isinstance(event, ev.ReplyMended)]
        resubmitted = (operation for event in mended for operation in event.operations)
        of_lesson = self.lesson.operations if self.lesson else ()
        return (*of_lesson, *resubmitted, *(event.operation for event in self.proposed))

    @property
    def fates(self) -> tuple[ProposalFate, ...]:
        """Of every proposal, also where a person has mended the reply about it."""
        found = self.lesson.fates if self.lesson else ()
        for event in self.resubmissions:
            if isinstance(event, ev.ReplyMended):
                found = replace_dropped(found, event.fates)
        return found

    def members(self, position: int) -> tuple[RolloutHistory, ...]:
        """The rollouts of one group, in index order."""
        return tuple(self.rollouts[at] for at in sorted(self.rollouts) if at[0] == position)


@dataclass(slots=True)
class RunHistory:
    """A run with all its steps."""

    started: ev.RunStarted | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)  # as last accepted
    steps_per_epoch: int = 0
    planned_steps: int = 0
    policy_version: int = 0  # of the weights after its last commit
    trains_weights: bool = False
    steps: dict[int, StepHistory] = field(default_factory=dict)
    # Decisions that nobody has taken back, by operation, committed or not.
    standing: dict[str, DecisionHistory] = field(default_factory=dict)

    @property
    def last_step(self) -> int:
        """The last step that has begun; 0 without any."""
        return max((step for step, one in self.steps.items() if one.started), default=0)

    @property
    def rollouts(self) -> Iterator[RolloutHistory]:
        """Every rollout, step by step, in the order in which they first ended."""
        return (rollout for step in self.steps.values() for rollout in step.rollouts.values())

    @property
    def plans(self) -> dict[int, int]:
        """Steps that the whole run was to have, by the step whose lesson was proposed then.

        Without those of an alternating run that learn its library.
        """
        known = self.steps.items()
        return {step: one.planned_steps for step, one in known if one.lesson and one.trains}


def run_history(events: Iterable[ev.DurableEvent]) -> RunHistory:
    """The history that a run's events give, in one pass."""
    history = RunHistory()
    for event in events:
        fold_history(history, event)
    return history


def fold_history(history: RunHistory, event: ev.DurableEvent) -> None:
    """Take one event of a run's journal in; those that are about no step change nothing."""
    match event:
        case ev.RunStarted():
            history.started, history.settings = event, event.settings
            history.policy_version = event.policy_version
            history.steps_per_epoch = event.steps_per_epoch
            history.planned_steps = event.epochs * event.steps_per_epoch
        case ev.RunResumed():
            history.settings = event.settings or history.settings
            # Accepted changes may have made other batches of the data.
            history.steps_per_epoch = event.steps_per_epoch or history.steps_per_epoch
            history.planned_steps = event.epochs * history.steps_per_epoch
        case ev.EngineOpened():
            history.trains_weights = True
        case ev.ReplyMended() | ev.ReplyDropped():
            # The reply may be of a step that was over long before a person answered.
            of = int(event.repair.removeprefix("s").partition("p")[0])
            _step(history, of).resubmissions.append(event)
        case ev.DecisionUndone():
            _revoke(history, event.operation_id, "undone")
        case ev.LessonReturned():
            for operation_id in event.asked_again:
                _revoke(history, operation_id, "asked again")
        case ev.OperationDecided() | ev.OperationsDecided():
            for decision in event.decisions:
                _revoke(history, decision.operation_id, "decided again")
                made = history.standing[decision.operation_id] = DecisionHistory(decision)
                _step(history, event.step).decisions.append(made)
        case ev.LessonCommitted():
            history.policy_version = event.policy_version
            _step(history, event.step).committed = event
        case ev.LessonsCompared():
            step = _step(history, event.step)
            step.choice = event
            step.reflections = list(event.drafts[event.chosen].reflections) or step.reflections
        case ev.LessonProposed():
            step = _step(history, event.step)
            step.lesson, step.lesson_settings = event.lesson, history.settings
            step.planned_steps = history.planned_steps
            history.trains_weights = history.trains_weights or event.lesson.update is not None
        case ev.StepStarted():
            _step(history, event.step).started = event
        case ev.RolloutFinished():
            # A new try of a failed rollout keeps its place and has no verdict yet.
            place = (event.position, event.index)
            _step(history, event.step).rollouts[place] = RolloutHistory(event)
        case ev.RolloutJudged():
            step = _step(history, event.step)
            if rollout := step.rollouts.get((event.position, event.index)):
                rollout.verdict = event.verdict
        case ev.GroupReflected():
            _step(history, event.step).reflections.append(event.reflection)
        case ev.OperationProposed():
            _step(history, event.step).proposed.append(event)
        case ev.EvaluationFinished():
            _step(history, event.step).evaluations.append(event)
        case ev.CheckpointSaved():
            _step(history, event.step).checkpoint = event


def _step(history: RunHistory, step: int) -> StepHistory:
    return history.steps.setdefault(step, StepHistory(step))


def _revoke(history: RunHistory, operation_id: str, why: Revocation) -> None:
    if made := history.standing.pop(operation_id, None):
        made.revoked = why
