"""Everything that can happen, as one tagged union; `engines.core.state.fold` says what it means.

Durable events make up the journals of runs and libraries; transient ones only reach whoever is
watching. No event holds a clock time except `Decision.at`: the journal's envelope does. Events of
other files have their names here, too, where readers of a run look for them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from engines.core.codec import JsonMapping, from_dict, to_dict
from engines.core.frozen import frozen
from engines.core.library import Experience, OperationOutcome
from engines.core.library_notes import NO_MARK, Effect, NotesMark, PastDecision, UseCounts
from engines.core.types import (
    NO_USAGE,
    AttemptStatus,
    CallKey,
    Decision,
    GroupOutcome,
    Learns,
    Lesson,
    Names,
    Operation,
    ProposalFate,
    RecordRef,
    Reflection,
    Usage,
    Verdict,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """The first event of a run. `settings` is what may not change without a word."""

    run: str
    exp_id: str
    seed: int
    epochs: int
    steps_per_epoch: int
    group_size: int
    library: str
    library_version: int
    reviewer: str
    rehearsal: bool
    settings: JsonMapping
    forked_from: str | None = None  # run-id whose first `forked_steps` steps are adopted
    forked_steps: int = 0
    policy_version: int = 0  # of the weights that a fork adopted
    prompts: Mapping[str, str] = field(default_factory=dict)  # hash of each prompt file
    notes: NotesMark = NO_MARK  # of its library then
    streaks: Mapping[str, int] = field(default_factory=dict)  # of adopted steps, see `RunState`
    shown_questions: Names = ()  # likewise


@frozen
class RunResumed:
    """A new process took the run up; the settings that a resume may change come with it.

    Tries of the step under way that failed are made again, unless their group was learned from.
    """

    pid: int
    epochs: int
    reviewer: str
    settings: JsonMapping
    steps_per_epoch: int = 0  # 0: as the run began
    prompts: Mapping[str, str] = field(default_factory=dict)  # see `RunStarted`


@frozen
class StepStarted:
    epoch: int
    step: int
    problems: Names  # ids, in sample order
    policy_version: int
    library_version: int
    notes: NotesMark = NO_MARK  # see `LibraryNotes.as_of`
    tries: tuple[int, ...] = ()  # of each problem; (): as many as `RunStarted.group_size`
    learns: Learns = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutFinished:
    """A rollout ended, in whatever way. Its messages are the records in order."""

    step: int
    position: int
    index: int
    seed: int
    status: AttemptStatus
    answer: str | None  # None where it is the text of the last record, as with most agents
    error: str | None
    usage: Usage
    elapsed_s: float
    tail: str = ""  # the last words of the answer, for display
    refs: tuple[RecordRef, ...] = ()
    shown: Names | None = None  # see `Job.shown`
    cited: Names | None = None  # of the experiences shown
    turns: int = 0  # replies of the model
    tool_calls: int = 0
    failed_calls: int = 0  # of those

    @property
    def acts(self) -> bool:
        """Whether it is more than one reply to one question."""
        return self.turns > 1 or self.tool_calls > 0


@frozen
class RolloutJudged:
    step: int
    position: int
    index: int
    verdict: Verdict


@frozen
class GroupReflected:
    """A group is through: how it ended, and what was taken from it."""

    step: int
    position: int
    reflection: Reflection

    @property
    def outcome(self) -> GroupOutcome:
        return self.reflection.outcome


@frozen
class LessonProposed:
    """The whole lesson, before the first question about it is asked."""

    step: int
    lesson: Lesson


@frozen
class EffectMeasured:
    """Operations were tried together before they are decided: the library with them and without."""

    step: int
    operations: Names
    effect: Effect
    error: float  # the chance that the verdict was allowed to be wrong
    base: str  # a hash of both libraries, the problems, and how they were tried


@frozen
class OperationDecided:
    step: int  # the one under review, which for a deferred operation is a later one
    decision: Decision
    usage: Usage = NO_USAGE  # what the lint of an edit has cost

    @property
    def decisions(self) -> tuple[Decision, ...]:
        return (self.decision,)


@frozen
class OperationsDecided:
    """A batch of decisions as one record: after a crash all of them stand, or none.

    Each was checked against the draft that holds those before it.
    """

    step: int
    decisions: tuple[Decision, ...]
    usage: Usage = NO_USAGE


@frozen
class OperationProposed:
    """A person put an operation of their own into the queue; it is decided like any other."""

    step: int  # the last one that has begun
    operation: Operation
    reviewer: str = ""
    usage: Usage = NO_USAGE  # what its lint has cost


@frozen
class ReplyMended:
    """A person mended a reply that could not be understood; these operations were in it."""

    step: int  # the one under way
    repair: str  # id of the `UnparsedReply`
    operations: tuple[Operation, ...]
    reviewer: str = ""
    usage: Usage = NO_USAGE  # what their lint has cost
    fates: tuple[ProposalFate, ...] = ()  # of the proposals that a consolidation had dropped


@frozen
class ReplyDropped:
    """A person looked at a reply that could not be understood, and let it go."""

    step: int
    repair: str
    reason: str = ""
    reviewer: str = ""


@frozen
class DecisionUndone:
    step: int
    operation_id: str
    reason: str = ""
    withdrawn: bool = False  # the operation is gone with its decision


@frozen
class LessonReturned:
    """The library moved under the lesson, which goes back to review, flagged.

    Decisions that the move leaves as they were stand; those `asked_again` do not.
    """

    step: int
    based_on: int
    head: int
    asked_again: Names = ()


@frozen
class LessonCommitted:
    """The gate closed. `step` 0 marks a commit of deferred operations after the run's end."""

    step: int
    library_version: int
    content_hash: str
    outcomes: tuple[OperationOutcome, ...]
    policy_version: int = 0
    notes: NotesMark = NO_MARK  # of the library since


@frozen
class StepFinished:
    epoch: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationFinished:
    """A pinned evaluation: after `step` (0: before the first), on one held-out set."""

    step: int
    data: str
    policy_version: int
    library_version: int
    k: int
    n: int  # rollouts with a known reward
    unjudged: int
    mean: float | None  # of the questions' own means
    usage: Usage  # what was paid
    fingerprint: str = ""  # of what it depends on besides problems, tries and versions
    trouble: str = ""  # why the first of the unjudged was not judged
    problems: Names = ()  # ids, aligned with `rewards`
    rewards: tuple[tuple[float | None, ...], ...] = ()  # k of each problem
    total: Usage = NO_USAGE  # of all rollouts and judges, the reused ones included
    tool_calls: int = 0
    reused: int = 0  # rollouts whose result was known, so that nothing was paid for them
    left_out: int = 0  # problems of the set that are apart for the reflector, the spares
    spares: tuple[tuple[str, tuple[float | None, ...]], ...] = ()  # that it has not read


@frozen
class HeldOutShown:
    """A spare held-out problem that got worse: the next step reads it."""

    step: int  # the last of the epoch
    tries: tuple[tuple[CallKey, float, int], ...]  # before, after; reward and library version


@frozen
class CellMeasured:
    """At the end of an alternating run: one cell of {first, trained weights} x {library, none}."""

    step: int  # the run's last
    trained: bool
    with_library: bool  # the one of the run's end
    result: EvaluationFinished


@frozen
class EngineOpened:
    """What an engine with weights of its own runs on, as it was first opened.

    `facts` are JSON values: threads (a resumed run uses the same), device, dtype, digest of the
    base model, number of parameters, of trainable ones, and versions.
    """

    facts: JsonMapping


@frozen
class AgentOpened:
    """What the agent acts with, once it was tested, where that is not what it was before.

    `facts` are JSON values: "sandbox" (the layers in force) and "tools" (each with its name,
    network, tier and whether it may be repeated).
    """

    facts: JsonMapping


@frozen
class CheckpointSaved:
    """The engine's state after a step is on disk, below the run's folder."""

    step: int
    folder: str  # relative to the run's folder
    policy_version: int
    digest: str


@frozen
class RunPaused:
    pass


@frozen
class RunContinued:
    steps: int | None = None  # hold again after so many steps; None: go on


@frozen
class RunEnded:
    """The process let go of the run.

    `paid` is what its records add up to, also where no other event tells of it: calls that
    were cut, and replies to what never ended.
    """

    # "finished", "stopped", "held", "failed" (nothing worked any more), "budget" or "waiting" (for
    # answers that somebody writes to files)
    how: str
    reason: str = ""
    paid: Usage | None = None  # None: no call could be made
    remarks: Names = ()  # on endpoints: who answered instead, what they refused


@frozen
class LibraryCreated:
    name: str
    next_number: int
    experiences: tuple[Experience, ...]
    copied_from: str | None = None  # "NAME@V", or "NAME@V (LABEL)" where a label meant it
    curated: tuple[PastDecision, ...] = ()
    uses: Mapping[str, UseCounts] = field(default_factory=dict)
    effects: Mapping[str, Effect] = field(default_factory=dict)


@frozen
class LibraryCurated:
    """Decisions that changed no text and are to be remembered: rejections with their reasons."""

    run: str
    step: int
    reviewed: tuple[tuple[Operation, Decision], ...]


@frozen
class LibraryCredited:
    """What the attempts of a run's step show of experiences: it changes no text."""

    run: str
    step: int
    credits: Mapping[str, UseCounts]  # of wordings that still stood


@frozen
class LibraryMeasured:
    """What experiences were measured to be worth: it changes no text."""

    effects: Mapping[str, Effect]  # of wordings that still stood


@frozen
class LibraryLabelled:
    """A label was given to a version, moved to it, or taken away: it changes no text."""

    label: str
    version: int | None  # None: there is no such label from now on
    who: str
    why: str = ""


@frozen
class LibraryCommitted:
    """One commit: replaying `reviewed` on the version before gives `content_hash`."""

    version: int
    run: str
    step: int
    reviewed: tuple[tuple[Operation, Decision], ...]
    content_hash: str
    limit: int | None = None


@frozen
class LessonDraft:
    """One of several lessons of a batch; what was read for the first are events of their own."""

    lesson: Lesson
    reflections: tuple[Reflection, ...] = ()
    # Mean gain over the library on the problems of the choice; None: not tried, or never judged.
    score: float | None = None


@frozen
class LessonsCompared:
    """Several lessons of one batch were tried to choose one: it is proposed, the others are kept.

    The scores serve to choose alone: no operation of the step is tried on `problems` again.
    """

    step: int
    drafts: tuple[LessonDraft, ...]  # of a finished step none: its journal tells
    chosen: int  # its place among them, from 0
    problems: Names  # ids; () where the lessons all say the same
    k: int  # tries of each problem
    usage: Usage  # of the tries

    @property
    def text(self) -> str:
        """`lesson 2 of 3 was chosen on 8 other problems, 1 try each (+0.00, +0.25, -0.12)`."""
        if not self.problems:
            return f"all {len(self.drafts)} lessons say the same, so none was tried to choose one"
        which = f"lesson {self.chosen + 1} of {len(self.drafts)}"
        scores = ("?" if d.score is None else f"{d.score:+.2f}" for d in self.drafts)
        tries = "1 try" if self.k == 1 else f"{self.k} tries"
        where = f"{len(self.problems)} other problems, {tries} each"
        return f"{which} was chosen on {where} ({', '.join(scores)})"


@frozen
class RolloutStarted:
    key: CallKey
    problem: str


@frozen
class TextStreamed:
    """A piece of visible text of a reply under way."""

    key: CallKey
    text: str


@frozen
class StageEntered:
    """The batch as a whole moved on: "consolidation", "choice" (of `lessons`), "gate", "review".

    In "gate" so many `operations` are tried together: `made` tries of `most`, so far.
    Before a process takes up training, "restore" says that it brings the weights to `step`.

    Within a review "hold" says that a person is waited for, since rules left `undecided`, and
    "ready" that all is decided and the commit is held: so many `approved`, `edited`,
    `rejected` and `deferred`, which would make library `version`.
    """

    step: int
    stage: str
    detail: Mapping[str, int] = field(default_factory=dict)


@frozen
class EvaluationProgressed:
    """One more held-out rollout is through, judged or not: `key` and `reward` are its own."""

    step: int
    data: str
    done: int
    total: int
    known: int = 0  # of those done that have a reward
    right: float = 0.0  # the sum of their rewards
    k: int = 1  # rollouts of a problem
    key: CallKey | None = None  # None: the set begins
    reward: float | None = None


@frozen
class RolloutPlaced:
    """A try is made on a node of a cluster."""

    key: CallKey
    node: str


@frozen
class NodesChanged:
    """Where workers are ready now; `lost` says which of them was lost, and why."""

    nodes: Names
    lost: str = ""


TransientEvent = (
    RolloutStarted
    | TextStreamed
    | StageEntered
    | EvaluationProgressed
    | RolloutPlaced
    | NodesChanged
)


RunEvent = RunStarted | RunResumed | RunPaused | RunContinued | RunEnded
StepEvent = (
    StepStarted | HeldOutShown | RolloutFinished | RolloutJudged | GroupReflected | StepFinished
)
LessonEvent = LessonProposed | LessonsCompared | EffectMeasured | LessonReturned | LessonCommitted
DecisionEvent = OperationDecided | OperationsDecided
ReviewEvent = DecisionEvent | OperationProposed | ReplyMended | ReplyDropped | DecisionUndone
EngineEvent = EvaluationFinished | CellMeasured | EngineOpened | AgentOpened | CheckpointSaved
LibraryNote = LibraryCurated | LibraryCredited | LibraryMeasured | LibraryLabelled
"""What a library's journal tells besides its versions."""
LibraryEvent = LibraryCreated | LibraryNote | LibraryCommitted
DurableEvent = RunEvent | StepEvent | LessonEvent | ReviewEvent | EngineEvent | LibraryEvent


_TRANSIENT = frozenset(TransientEvent.__args__)
_BY_NAME: dict[str, type[Any]] = {
    cls.__name__: cls for cls in (*DurableEvent.__args__, *TransientEvent.__args__)
}


def is_durable(event: DurableEvent | TransientEvent) -> TypeGuard[DurableEvent]:
    """Return whether an event stands in a journal; the others only reach whoever is watching."""
    return type(event) not in _TRANSIENT


def event_to_dict(event: DurableEvent | TransientEvent) -> dict[str, Any]:
    """`{"kind": CLASS, …fields}`."""
    return {"kind": type(event).__name__, **to_dict(event)}


def event_from_dict(data: JsonMapping) -> Any:
    """Inverse of `event_to_dict`; raises ValueError: unknown kind, or a field does not fit."""
    fields = dict(data)
    kind = fields.pop("kind", None)
    cls = _BY_NAME.get(str(kind))
    if cls is None:
        raise ValueError(f"unknown event {kind!r}")
    return from_dict(cls, fields)
