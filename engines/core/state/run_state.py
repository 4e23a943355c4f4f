"""What a run's journal adds up to, as values that `engines.core.state.fold` fills.

`RunState` empties a step once it is finished; whoever shows, cites or computes again a step that is
over reads `RunHistory`.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from engines.core import events as ev
from engines.core import library_notes
from engines.core.codec import JsonMapping, question_of
from engines.core.events import EvaluationFinished
from engines.core.frozen import frozen
from engines.core.library import OperationOutcome
from engines.core.types import (
    NO_USAGE,
    Decision,
    GroupOutcome,
    Learns,
    Lesson,
    LostWork,
    Names,
    Operation,
    ProposalFate,
    Reflection,
    UnparsedReply,
    Usage,
    Verdict,
    replace_dropped,
    rollout_id,
)

Stage = Literal["rollouts", "judging", "reading", "consolidation", "gate", "review", "evaluation"]
"""Where money goes: "reading" is of groups, summaries included, "gate" the trying of operations,
"review" the lint of edits."""

Status = Literal["new", "running", "paused", "reviewing", "held", "stopped", "failed", "finished"]


@dataclass(slots=True)
class Rewards:
    """Known rewards as sum and number, so that means can be pooled."""

    total: float = 0.0
    n: int = 0

    @property
    def mean(self) -> float | None:
        return self.total / self.n if self.n else None

    def add(self, other: "Rewards") -> None:
        self.total += other.total
        self.n += other.n


@dataclass(slots=True)
class StepState:
    """One step. The detailed part is emptied when the step is finished."""

    epoch: int
    step: int
    problems: Names
    library_version: int
    notes: library_notes.NotesMark = library_notes.NO_MARK  # of the library as it began
    tries: tuple[int, ...] = ()  # see `StepStarted`
    rewards: Rewards = field(default_factory=Rewards)
    groups: Counter[GroupOutcome] = field(default_factory=Counter)
    rollouts_done: int = 0
    failed: int = 0
    turns: int = 0  # of all rollouts, like the calls
    tool_calls: int = 0
    failed_calls: int = 0
    unjudged: int = 0
    doubts: int = 0  # verdicts that the reflector found to contradict their attempt
    operations: int = 0
    outcomes: tuple[OperationOutcome, ...] = ()
    usage: Usage = NO_USAGE
    committed: bool = False
    committed_version: int | None = None
    notes_after: library_notes.NotesMark = (
        library_notes.NO_MARK
    )  # of the library once it was committed
    finished: bool = False
    symptoms: Counter[str] = field(default_factory=Counter)  # see `count_symptoms`; once finished
    rollouts: dict[tuple[int, int], ev.RolloutFinished] = field(default_factory=dict)
    verdicts: dict[tuple[int, int], Verdict] = field(default_factory=dict)
    reflections: dict[int, Reflection] = field(default_factory=dict)
    lesson: Lesson | None = None
    choice: ev.LessonsCompared | None = None  # None: one lesson was drawn
    policy_version: int = 0  # as it began
    learns: Learns = ""

    @property
    def applied_update(self) -> bool:
        """Return whether its commit made its weight update the current weights."""
        return any(outcome.kind == "weights" and outcome.applied for outcome in self.outcomes)


@dataclass(slots=True)
class ReviewerStats:
    """How one reviewer decided, counted over decisions that were committed."""

    approved: int = 0
    edited: int = 0
    rejected: int = 0
    flagged: int = 0  # of the approved and edited ones
    times_s: list[float] = field(default_factory=list)  # of decisions that somebody measured

    @property
    def n(self) -> int:
        return self.approved + self.edited + self.rejected

    @property
    def accept_rate(self) -> float | None:
        """Approved or edited, of all; None of nothing."""
        return (self.approved + self.edited) / self.n if self.n else None

    @property
    def median_s(self) -> float | None:
        """A cup of coffee between two decisions does not move it, as it does the mean."""
        from statistics import median  # brings half the mathematics of the library along

        return median(self.times_s) if self.times_s else None

    @property
    def mean_s(self) -> float | None:
        return sum(self.times_s) / len(self.times_s) if self.times_s else None


@dataclass(slots=True)
class Live:
    """What goes on right now, as transient events tell it: nobody writes it down."""

    # Rollouts under way, of practice and of evaluations, by `try_id`. None: the beginning of this
    # one was not seen.
    tries: dict[str, ev.RolloutStarted | None] = field(default_factory=dict)
    stage: ev.StageEntered | None = None  # that the batch is in; None once its end was recorded
    evaluation: ev.EvaluationProgressed | None = None  # that is under way, how far it is
    rewards: dict[str, float | None] = field(default_factory=dict)  # of its rollouts that ended
    nodes: ev.NodesChanged | None = None  # of a cluster
    placed: dict[str, ev.RolloutPlaced] = field(default_factory=dict)  # rollouts under way there

    @property
    def stage_name(self) -> str:
        return self.stage.stage if self.stage is not None else ""

    def name_tries(self, names: Iterable[str], step: StepState | None) -> None:
        """Take a run's word on which rollouts of the step are under way; some may have ended."""
        ended = {rollout_id(step.step, *place) for place in step.rollouts} if step else set()
        self.tries = dict.fromkeys(name for name in names if name not in ended)

    def end_try(self, name: str) -> None:
        self.tries.pop(name, None)
        self.placed.pop(name, None)


@dataclass(slots=True)
class RunState:
    """The whole of a run as far as its journal goes."""

    started: ev.RunStarted | None = None
    status: Status = "new"
    ending: str = ""  # how the last process let go of it; "" while one goes on
    reason: str = ""
    epochs: int = 0
    reviewer: str = ""
    settings: JsonMapping = field(default_factory=dict)  # as last accepted
    pid: int | None = None
    steps: dict[int, StepState] = field(default_factory=dict)
    step: int = 0
    library_version: int = 0
    base_version: int = 0  # of the library that the standing decisions are about
    content_hash: str = ""
    policy_version: int = 0
    # Those that no commit has dealt with: the lesson's, and deferred ones of earlier steps.
    operations: dict[str, Operation] = field(default_factory=dict)
    own: set[str] = field(default_factory=set)  # ids of all that persons proposed so far
    deferred: set[str] = field(default_factory=set)
    decisions: dict[str, Decision] = field(default_factory=dict)  # standing, as last made
    effects: list[ev.EffectMeasured] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)  # why an operation was last put off
    flagged_stale: int | None = None  # version the head had moved to, while the lesson waits
    events: int = 0  # taken in so far: how far into the journal this state reaches
    losses: list[LostWork] = field(default_factory=list)
    lost: Counter[str] = field(default_factory=Counter)
    repairs: dict[str, UnparsedReply] = field(default_factory=dict)  # waiting, in sample order
    repaired: dict[str, str] = field(default_factory=dict)  # id → "mended by ann"
    withheld: int = 0  # ideas not proposed again, since they had been rejected
    curation: dict[str, ReviewerStats] = field(default_factory=dict)  # by reviewer
    evaluations: list[ev.EvaluationFinished] = field(default_factory=list)
    shown: list[ev.HeldOutShown] = field(default_factory=list)
    shown_questions: set[str] = field(default_factory=set)  # held-out ones that the reflector saw
    cells: list[ev.CellMeasured] = field(default_factory=list)
    # By problem: how often in a row all of its tries were right; -1 where all failed the last time.
    streaks: dict[str, int] = field(default_factory=dict)
    usage: Usage = NO_USAGE
    spent_on: dict[Stage, Usage] = field(default_factory=dict)  # what `usage` is made of
    paid: Usage | None = None  # what the records added up to when a process last let go of it
    doubts: dict[str, str] = field(default_factory=dict)  # rollout → why its verdict is doubted
    remarks: Names = ()  # see `RunEnded.remarks`; of all processes, each once
    hold_after: int | None = None  # the step after which a stepped run holds
    # Of a run that trains weights: what it runs on, each step's computed update, what became
    # of it, the checkpoints in order, and the steps that were taken back to earlier weights.
    engine_facts: JsonMapping = field(default_factory=dict)
    agent_facts: JsonMapping = field(default_factory=dict)
    training: dict[int, Mapping[str, float]] = field(default_factory=dict)
    checkpoints: list[ev.CheckpointSaved] = field(default_factory=list)
    rolled_back: dict[int, int] = field(default_factory=dict)  # step → step gone back to
    live: Live = field(default_factory=Live, compare=False, repr=False)  # no part of the journal

    @property
    def current(self) -> StepState | None:
        """The step under way, None between steps."""
        step = self.steps.get(self.step)
        return None if step is None or step.finished else step

    @property
    def curates(self) -> str:
        """What a curation run asks about, "import of FILE"; "" of a run that practises."""
        return str(self.settings.get("curates", ""))

    @property
    def cassette(self) -> str:
        """The file that replies were played from; "" where models were asked."""
        return str(self.settings.get("cassette", ""))

    @property
    def proposed(self) -> int:
        """How many operations persons have put into its queue so far."""
        return len(self.own)

    @property
    def under_review(self) -> bool:
        """Whether a lesson waits to be decided and committed."""
        step = self.current
        return step is not None and step.lesson is not None and not step.committed

    @property
    def working_status(self) -> Status:
        """The status of a run that neither pauses nor has ended."""
        return "reviewing" if self.under_review else "running"

    @property
    def steps_finished(self) -> int:
        return self.step if self.current is None else self.step - 1

    @property
    def undecided_operations(self) -> tuple[Operation, ...]:
        """Operations of the lesson under review that block its commit."""
        waiting = self.operations.keys() - self.decisions.keys() - self.deferred
        return tuple(op for op in self.operations.values() if op.id in waiting)

    @property
    def open_operations(self) -> tuple[Operation, ...]:
        """Every operation a person can still decide: undecided or deferred."""
        decided = {key for key, made in self.decisions.items() if made.action != "defer"}
        return tuple(op for op in self.operations.values() if op.id not in decided)

    @property
    def put_off_operations(self) -> tuple[Operation, ...]:
        """Those of the open ones that a person left for later, now or in an earlier step."""
        later = self.deferred - self.own
        return tuple(op for op in self.open_operations if op.id in self.decisions or op.id in later)

    def is_put_off_already(self, decision: Decision) -> bool:
        """Whether it puts off what an earlier step has put off for the same reason."""
        known = decision.operation_id in self.deferred and decision.action == "defer"
        return known and self.notes.get(decision.operation_id, "") == decision.reason

    def is_withdrawn_by_undo(self, operation_id: str, decision: Decision) -> bool:
        """Whether it goes with its decision: one key proposes a pin and approves it."""
        op = self.operations.get(operation_id)
        is_pin = op is not None and op.kind in ("pin", "unpin") and op.id in self.own
        return is_pin and decision.action == "approve"

    def drafted_pin(self, target: str) -> str:
        """The pin or unpin of an experience that the next commit makes, or ""."""
        made = (name for name, at in self.decisions.items() if self.is_withdrawn_by_undo(name, at))
        return next((name for name in made if self.operations[name].target == target), "")

    @property
    def reviewed_operations(self) -> tuple[tuple[Operation, Decision], ...]:
        """Standing decisions that a commit would apply, in journal order."""
        decisions = self.decisions.items()
        made = ((self.operations.get(k), d) for k, d in decisions if d.action != "defer")
        return tuple((op, decision) for op, decision in made if op and op.kind != "weights")

    @property
    def trains_weights(self) -> bool:
        """Whether the run updates weights, in all of its steps or in some."""
        return bool(self.engine_facts or self.training)

    @property
    def alternates(self) -> bool:
        """Whether some steps learn a library and others weights."""
        step = next(reversed(self.steps.values()), None)
        return step is not None and step.learns != ""

    @property
    def step_trains(self) -> bool:
        """Whether the latest step updates weights."""
        return self.trains_at(self.step)

    def trains_at(self, number: int) -> bool:
        """Whether a step updates weights."""
        step = self.steps.get(number)
        return self.trains_weights and (step is None or step.learns != "library")

    @property
    def total_usage(self) -> Usage:
        """All that was paid: by the records of a run that has ended, else by its events.

        Events know nothing of what is under way, and count a reply again that a new try
        reuses; so while a run goes on this is the greater of both.
        """
        counted = self.usage
        if self.paid is None or (not self.ending and counted.calls >= self.paid.calls):
            return counted
        return self.paid

    @property
    def best_step(self) -> int | None:
        """See `engines.core.state.run_state.best_step`."""
        return best_step(self.evaluations)

    def effect_of(self, operation_id: str) -> ev.EffectMeasured | None:
        """What was last measured of an operation, alone or with others."""
        found = (one for one in reversed(self.effects) if operation_id in one.operations)
        return next(found, None)

    def group_sizes(self, step: StepState) -> tuple[int, ...]:
        """The tries of each problem of a step, in sample order."""
        size = self.started.group_size if self.started is not None else 0
        return step.tries or (size,) * len(step.problems)

    def rewards_by_epoch(self) -> dict[int, Rewards]:
        """Known practice rewards of each epoch that has rollouts, pooled over its steps."""
        pooled: dict[int, Rewards] = {}
        for step in self.steps.values():
            if not step.rollouts_done and not step.rewards.n:
                continue  # it was begun, and cut before anything was tried
            pooled.setdefault(step.epoch, Rewards()).add(step.rewards)
        return pooled

    def group_outcomes(self) -> Counter[GroupOutcome]:
        pooled: Counter[GroupOutcome] = Counter()
        for step in self.steps.values():
            pooled.update(step.groups)
        return +pooled  # a group that was mended leaves a 0 behind


MOST_UNJUDGED = 0.1
"""The share of rollouts that may be unjudged in a measurement that competes."""


def best_step(evaluations: Sequence[EvaluationFinished]) -> int | None:
    """The step with the highest mean reward; None where no step has every set measured.

    The mean is that over sets, of each set over the questions that every competing step
    has a known reward for (its own mean where fewer than half are such). Of equals the
    earliest: a shorter library costs less.
    """
    means = _means(comparable_evaluations(evaluations))
    return max(sorted(means), key=lambda step: means[step], default=None)


def comparable_evaluations(
    evaluations: Sequence[EvaluationFinished],
) -> dict[int, dict[str, EvaluationFinished]]:
    """The steps that can be compared with the latest one, each with its sets by name."""
    if not evaluations:
        return {}
    last_step = evaluations[-1].step
    latest = {found.data: found for found in evaluations if found.step == last_step}
    steps: dict[int, dict[str, EvaluationFinished]] = {}
    for found in evaluations:
        if found.data in latest and _is_comparable(found, latest[found.data]):
            steps.setdefault(found.step, {})[found.data] = found
    return {step: found for step, found in steps.items() if found.keys() == latest.keys()}


def _is_comparable(found: EvaluationFinished, latest: EvaluationFinished) -> bool:
    kind = (found.fingerprint, found.problems, found.k)
    if kind != (latest.fingerprint, latest.problems, latest.k) or not found.problems:
        return False
    return found.mean is not None and found.unjudged <= MOST_UNJUDGED * (found.n + found.unjudged)


def _means(steps: Mapping[int, Mapping[str, EvaluationFinished]]) -> dict[int, float]:
    totals = dict.fromkeys(steps, 0.0)
    for name in next(iter(steps.values()), {}):
        known = {step: means_by_question(found[name]) for step, found in steps.items()}
        common = set.intersection(*(set(means) for means in known.values()))
        for step, means in known.items():
            over = common if 2 * len(common) >= len(means) else set(means)
            # Rounded, so that the order of adding up decides no tie.
            totals[step] += math.fsum(means[question] for question in over) / max(1, len(over))
    return {step: round(total, 9) for step, total in totals.items()}


def means_by_question(found: EvaluationFinished) -> dict[str, float]:
    """Of each question with a known reward; repeats of a question (`x#2`) are one question."""
    tries: dict[str, list[float]] = {}
    for problem, row in zip(found.problems, found.rewards, strict=True):
        known = [reward for reward in row if reward is not None]
        if known:
            tries.setdefault(question_of(problem), []).extend(known)
    return {question: math.fsum(row) / len(row) for question, row in tries.items()}


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


@frozen
class AnsweredReply:
    """What a person made of a reply that could not be understood."""

    repair: str  # id of the `UnparsedReply`
    outcome: Literal["mended", "dropped"]
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
    effect: library_notes.Effect | None = None  # as last measured
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
    lesson_settings: JsonMapping = field(default_factory=dict)  # the lesson was made with
    planned_steps: int = 0  # of the whole run, as planned when the lesson was proposed
    proposed: list[ev.OperationProposed] = field(default_factory=list)
    # About replies of this step, also where a person answered in a later one.
    answers: list[AnsweredReply] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)  # also those that were taken back
    committed: ev.LessonCommitted | None = None  # of step 0: the latest one
    evaluations: list[ev.EvaluationFinished] = field(default_factory=list)
    checkpoint: ev.CheckpointSaved | None = None

    @property
    def problems(self) -> Names:
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
    settings: JsonMapping = field(default_factory=dict)  # as last accepted
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
