"""What happened in each step of a run, as values: `engines.core.state.fold` fills them.

The state of a run empties a step once it is finished; whoever shows, cites or computes again a
step that is over reads it here.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from engines.core import events as ev
from engines.core.library import OperationOutcome
from engines.core.library_notes import Effect
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


@dataclass(frozen=True, slots=True)
class AnsweredReply:
    """What a person made of a reply that could not be understood."""

    repair: str  # id of the `UnparsedReply`
    what: Literal["mended", "dropped"]
    reviewer: str
    reason: str = ""
    operations: tuple[Operation, ...] = ()
    fates: tuple[ProposalFate, ...] = ()


@dataclass(slots=True)
class OperationHistory:
    """An operation of a run, and what became of it so far."""

    operation: Operation
    at: float  # of the last thing that became of it, in seconds since the epoch
    decision: Decision | None = None  # that stands
    effect: Effect | None = None  # as last measured
    outcome: OperationOutcome | None = None  # of its commit


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
    answers: list[AnsweredReply] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)  # also those that were taken back
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
        resubmitted = (op for answer in self.answers for op in answer.operations)
        of_lesson = self.lesson.operations if self.lesson else ()
        return (*of_lesson, *resubmitted, *(event.operation for event in self.proposed))

    @property
    def fates(self) -> tuple[ProposalFate, ...]:
        """Of every proposal, also where a person has mended the reply about it."""
        found = self.lesson.fates if self.lesson else ()
        for answer in self.answers:
            found = replace_dropped(found, answer.fates)
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
    # Every operation that nobody withdrew, in the order of proposal.
    operations: dict[str, OperationHistory] = field(default_factory=dict)
    evaluations: list[tuple[float, ev.EvaluationFinished]] = field(default_factory=list)  # and when

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
