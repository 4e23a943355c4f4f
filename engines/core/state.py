"""What a run's events add up to: the one reducer behind resume, screens, report and diff.

Owns the meaning of events. Holds rollouts only of the step under way; of finished
steps it keeps counts, so that memory does not grow with the length of a run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from engines.core import events as ev
from engines.core.best import best_step
from engines.core.library import Committed, Library, Outcome
from engines.core.types import (
    BASE_MOVED,
    NO_USAGE,
    Decision,
    Flag,
    GroupOutcome,
    Lesson,
    Loss,
    Operation,
    Reflection,
    Repair,
    Usage,
    Verdict,
    group_id,
    rollout_id,
)

Status = Literal["new", "running", "paused", "reviewing", "held", "stopped", "failed", "finished"]
KEPT_LOSSES = 200
"""Losses kept with their words; all are counted."""
KEPT_REPLY_CHARS = 500
"""Of a reply that could not be used; the journal has the whole."""


@dataclass(slots=True)
class Rewards:
    """Known rewards as sum and number, so that means can be pooled."""

    total: float = 0.0
    n: int = 0

    @property
    def mean(self) -> float | None:
        return self.total / self.n if self.n else None

    def add(self, other: Rewards) -> None:
        self.total += other.total
        self.n += other.n


@dataclass(slots=True)
class StepState:
    """One step. The detailed part is emptied when the step is finished."""

    epoch: int
    step: int
    problems: tuple[str, ...]
    library_version: int
    remembered: int | None = None  # ideas the library remembered as it began
    rewards: Rewards = field(default_factory=Rewards)
    groups: Counter[GroupOutcome] = field(default_factory=Counter)
    rollouts_done: int = 0
    failed: int = 0
    unjudged: int = 0
    operations: int = 0
    outcomes: tuple[Outcome, ...] = ()
    usage: Usage = NO_USAGE
    committed: bool = False
    committed_version: int | None = None
    remembered_after: int | None = None  # ideas the library remembered once it was committed
    finished: bool = False
    rollouts: dict[tuple[int, int], ev.RolloutFinished] = field(default_factory=dict)
    verdicts: dict[tuple[int, int], Verdict] = field(default_factory=dict)
    reflections: dict[int, Reflection] = field(default_factory=dict)
    lesson: Lesson | None = None


@dataclass(slots=True)
class Curation:
    """How one reviewer decided, counted over decisions that were committed.

    `flagged` of the approved and edited ones had flags; `times_s` is how long each decision
    took that somebody measured.
    """

    approved: int = 0
    edited: int = 0
    rejected: int = 0
    flagged: int = 0
    times_s: list[float] = field(default_factory=list)

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
class RunState:
    """The whole of a run as far as its journal goes.

    `operations` are those not yet settled by a commit: the current lesson's and the
    deferred ones of earlier steps. `decisions` are the standing ones about them, in
    the order in which they were last made. `repairs` are replies that could not be
    understood and that nobody has mended or dropped yet, in sample order; `repaired` says
    of the others what became of them.
    """

    started: ev.RunStarted | None = None
    status: Status = "new"
    ending: str = ""  # how the last process let go of it; "" while one goes on
    reason: str = ""
    epochs: int = 0
    reviewer: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)  # as last accepted
    pid: int | None = None
    steps: dict[int, StepState] = field(default_factory=dict)
    step: int = 0
    library_version: int = 0
    base_version: int = 0  # of the library that the standing decisions are about
    content_hash: str = ""
    policy_version: int = 0
    operations: dict[str, Operation] = field(default_factory=dict)
    deferred: set[str] = field(default_factory=set)
    decisions: dict[str, Decision] = field(default_factory=dict)
    flagged_stale: int | None = None  # version the head had moved to, while the lesson waits
    events: int = 0  # taken in so far: how far into the journal this state reaches
    losses: list[Loss] = field(default_factory=list)
    lost: Counter[str] = field(default_factory=Counter)
    repairs: dict[str, Repair] = field(default_factory=dict)
    repaired: dict[str, str] = field(default_factory=dict)  # id → "mended by ann"
    withheld: int = 0  # ideas not proposed again, since they had been rejected
    curation: dict[str, Curation] = field(default_factory=dict)  # by reviewer
    evaluations: list[ev.EvaluationFinished] = field(default_factory=list)
    usage: Usage = NO_USAGE
    under_way: Usage = NO_USAGE  # see `RunEnded.under_way`
    paid: Usage | None = None  # what the records added up to when a process last let go of it
    hold_after: int | None = None  # the step after which a stepped run holds

    @property
    def current(self) -> StepState | None:
        """The step under way, None between steps."""
        step = self.steps.get(self.step)
        return None if step is None or step.finished else step

    @property
    def at_work(self) -> Status:
        """The status of a run that neither pauses nor has ended."""
        step = self.current
        waiting = step is not None and step.lesson is not None and not step.committed
        return "reviewing" if waiting else "running"

    @property
    def steps_finished(self) -> int:
        return self.step if self.current is None else self.step - 1

    @property
    def undecided(self) -> tuple[Operation, ...]:
        """Operations of the lesson under review that block its commit."""
        return tuple(
            op
            for op in self.operations.values()
            if op.id not in self.decisions and op.id not in self.deferred
        )

    @property
    def open(self) -> tuple[Operation, ...]:
        """Every operation a person can still decide: undecided or deferred."""
        return tuple(
            op
            for op in self.operations.values()
            if op.id not in self.decisions or self.decisions[op.id].action == "defer"
        )

    @property
    def reviewed(self) -> tuple[tuple[Operation, Decision], ...]:
        """Standing decisions that a commit would apply, in journal order."""
        return tuple(
            (self.operations[key], decision)
            for key, decision in self.decisions.items()
            if decision.action != "defer" and key in self.operations
        )

    @property
    def spent(self) -> Usage:
        """All that was paid: by the records of a run that has ended, else by its events.

        Events know nothing of what is under way, and count a reply again that a new try
        reuses; so while a run goes on this is the greater of both.
        """
        told = self.usage + self.under_way
        if self.paid is None or (not self.ending and told.calls >= self.paid.calls):
            return told
        return self.paid

    @property
    def best_step(self) -> int | None:
        """See `engines.core.best.best_step`."""
        return best_step(self.evaluations)

    def by_epoch(self) -> dict[int, Rewards]:
        """Known practice rewards of each epoch that has rollouts, pooled over its steps."""
        pooled: dict[int, Rewards] = {}
        for step in self.steps.values():
            if not step.rollouts_done and not step.rewards.n:
                continue  # it was begun, and cut before anything was tried
            pooled.setdefault(step.epoch, Rewards()).add(step.rewards)
        return pooled

    def groups(self) -> Counter[GroupOutcome]:
        return sum((s.groups for s in self.steps.values()), Counter())


def fold(state: RunState, event: ev.DurableEvent) -> RunState:
    """Take one event in. Returns the same object, changed: a run has many events."""
    state.events += 1
    match event:
        case ev.RunStarted():
            state.started, state.status = event, "running"
            state.epochs, state.reviewer = event.epochs, event.reviewer
            state.settings = event.settings
            state.library_version = state.base_version = event.library_version
            state.step = event.forked_steps
        case ev.RunResumed():
            if state.ending == "failed":
                _forget_failures(state)
            elif event.again:
                _forget_failed_tries(state)
            state.status = state.at_work
            state.ending, state.reason, state.pid = "", "", event.pid
            state.epochs, state.reviewer = event.epochs, event.reviewer
            state.settings = event.settings
            state.hold_after = None
        case ev.StepStarted():
            state.step, state.base_version = event.step, event.library_version
            state.status = "running"
            state.steps[event.step] = StepState(
                event.epoch,
                event.step,
                event.problems,
                event.library_version,
                event.remembered,
            )
        case ev.RolloutFinished():
            _rollout_finished(state, event)
        case ev.RolloutJudged():
            _rollout_judged(state, event)
        case ev.GroupReflected():
            step = state.steps[event.step]
            step.reflections[event.position] = event.reflection
            step.groups[event.outcome] += 1
            _spend(state, step, event.reflection.usage)
            _lose(state, event.reflection.losses)
            _queue(state, event.step, "extraction", event.reflection.losses)
        case ev.LessonProposed():
            step = state.steps[event.step]
            step.lesson, step.operations = event.lesson, len(event.lesson.operations)
            state.base_version = event.lesson.base_version
            state.operations.update((op.id, op) for op in event.lesson.operations)
            state.status = "reviewing"
            _spend(state, step, event.lesson.usage)
            _lose(state, event.lesson.losses)
            _queue(state, event.step, "consolidation", event.lesson.losses)
            state.withheld += len(event.lesson.withheld)
        case ev.OperationDecided():
            _decided(state, event.decision)
            _spend_at(state, event.step, event.usage)
        case ev.ReplyMended():
            _mended(state, event)
            _spend_at(state, event.step, event.usage)
        case ev.ReplyDropped():
            state.repairs.pop(event.repair)
            state.repaired[event.repair] = f"dropped by {event.reviewer}"
        case ev.DecisionUndone():
            state.decisions.pop(event.operation_id, None)
        case ev.LessonReturned():
            moved = Flag(BASE_MOVED, detail=f"v{event.based_on} -> v{event.head}")
            for name in event.asked_again:
                state.decisions.pop(name, None)
                asked = state.operations[name]
                state.operations[name] = replace(asked, flags=(*asked.flags, moved))
            state.flagged_stale = state.base_version = event.head
        case ev.LessonCommitted():
            _committed(state, event)
        case ev.StepFinished():
            step = state.steps[event.step]
            step.finished = True
            step.rollouts, step.verdicts, step.reflections = {}, {}, {}
            step.lesson = None
        case ev.EvaluationFinished():
            state.evaluations.append(event)
            state.usage += event.usage
            state.under_way = NO_USAGE  # what was paid for it before it was cut is in its usage
            if event.unjudged:
                where = f"{event.data} after step {event.step}"
                state.lost["held-out rollout"] += event.unjudged
                state.losses.append(Loss("held-out rollout", where, event.trouble))
        case ev.RunPaused():
            state.status = "paused"
        case ev.RunContinued():
            state.status = state.at_work
            state.hold_after = None if event.steps is None else state.steps_finished + event.steps
        case ev.RunEnded():
            state.status = _ENDINGS[event.how]
            state.ending, state.reason, state.pid = event.how, event.reason, None
            state.under_way += event.under_way
            state.paid = event.paid or state.paid
        case ev.LibraryCreated() | ev.LibraryCurated() | ev.LibraryCommitted():
            raise ValueError("a library's event stands in a run's journal")
    return state


def fold_library(library: Library | None, event: ev.DurableEvent) -> Library:
    """Take one event of a library's journal in.

    Raises:
        ValueError: the event does not belong there, or replaying it gives another
            content than the journal says.
    """
    match event:
        case ev.LibraryCreated():
            return Library(
                event.name,
                0,
                event.experiences,
                event.next_number,
                event.curated,
                len(event.curated),
            )
        case ev.LibraryCurated() if library is not None:
            done = library.commit(event.reviewed, run=event.run, step=event.step)
            if done.library.content_hash != library.content_hash:
                raise ValueError("a line that changes no text would change one")
            return done.library
        case ev.LibraryCommitted() if library is not None:
            return replay(library, event).library
    raise ValueError(f"{type(event).__name__} is not the next event of a library")


def replay(library: Library, event: ev.LibraryCommitted) -> Committed:
    """Apply a recorded commit to the version before it."""
    done = library.commit(event.reviewed, run=event.run, step=event.step, limit=event.limit)
    if (done.library.version, done.library.content_hash) != (event.version, event.content_hash):
        raise ValueError(f"version {event.version} does not follow from version {library.version}")
    return done


def folded(events: Iterable[ev.DurableEvent]) -> RunState:
    state = RunState()
    for event in events:
        fold(state, event)
    return state


_ENDINGS: dict[str, Status] = {
    "finished": "finished",
    "stopped": "stopped",
    "held": "held",
    "failed": "failed",
    "budget": "stopped",
}


def _rollout_finished(state: RunState, event: ev.RolloutFinished) -> None:
    step = state.steps[event.step]
    step.rollouts[event.position, event.index] = event
    step.rollouts_done += 1
    _spend(state, step, event.usage)
    if event.status == "failed":
        step.failed += 1
        where = rollout_id(event.step, event.position, event.index)
        _lose(state, (Loss("rollout", where, event.error or ""),))


def _rollout_judged(state: RunState, event: ev.RolloutJudged) -> None:
    step = state.steps[event.step]
    step.verdicts[event.position, event.index] = event.verdict
    _spend(state, step, event.verdict.usage)
    if event.verdict.reward is not None:
        step.rewards.add(Rewards(event.verdict.reward, 1))
        return
    rollout = step.rollouts.get((event.position, event.index))
    if rollout is None or rollout.status != "failed":  # a failed rollout is lost already
        step.unjudged += 1
        if event.verdict.error:  # without one there was nothing to judge by, as was agreed
            where = rollout_id(event.step, event.position, event.index)
            _lose(state, (Loss("verdict", where, event.verdict.error),))


def _mended(state: RunState, event: ev.ReplyMended) -> None:
    mended = state.repairs.pop(event.repair)
    state.repaired[event.repair] = f"mended by {event.reviewer}"
    state.operations.update((op.id, op) for op in event.operations)
    # Others may have said the very same words, so the place must fit too.
    places = (mended.id, f"step {mended.step}")
    state.lost -= Counter(mended.lost)
    state.losses = [
        loss
        for loss in state.losses
        if loss.kind not in mended.lost or loss.reply != mended.reply or loss.where not in places
    ]
    if "extraction" in mended.lost:  # nothing of it had been understood
        groups = state.steps[mended.step].groups
        groups["failed"] -= 1
        groups["used"] += 1


def _decided(state: RunState, decision: Decision) -> None:
    # Taken out first: dicts keep the place of a key that is only overwritten.
    state.decisions.pop(decision.operation_id, None)
    state.decisions[decision.operation_id] = decision


def _forget_failures(state: RunState) -> None:
    """What failed in the step under way while nothing worked gets another try."""
    step = state.current
    if step is None or step.committed:
        return
    if step.lesson is not None:
        lost = step.lesson.losses
        if step.lesson.operations or not lost or any(loss.reply for loss in lost):
            return
        step.lesson = None  # its call failed, so there is nothing of it to lose
        _find(state, lost)
    settled = _settled(state, step)
    again = {
        place
        for place, rollout in step.rollouts.items()
        if place[0] not in settled
        and (rollout.status == "failed" or _unjudged(step.verdicts.get(place)))
    }
    groups = {position for position, _ in again}
    groups |= {at for at, reflection in step.reflections.items() if reflection.outcome == "failed"}
    _try_again(state, step, again, groups - settled)


def _forget_failed_tries(state: RunState) -> None:
    """What failed in the step under way beside what worked gets another try.

    A group that was learned from stays as it is, and so does a reply that could not be
    understood: the same would be read again.
    """
    step = state.current
    if step is None or step.committed or step.lesson is not None:
        return
    failed = {
        at
        for at, reflection in step.reflections.items()
        if reflection.outcome == "failed" and at not in _settled(state, step)
    }
    again = {
        place
        for place, rollout in step.rollouts.items()
        if rollout.status == "failed" and (place[0] in failed or place[0] not in step.reflections)
    }
    unread = {at for at in failed if any(loss.reply for loss in step.reflections[at].losses)}
    _try_again(state, step, again, {position for position, _ in again} | (failed - unread))


def _settled(state: RunState, step: StepState) -> set[int]:
    """Groups that a person has mended or dropped: trying again would say it twice."""
    return {at for at in step.reflections if group_id(step.step, at) in state.repaired}


def _try_again(
    state: RunState, step: StepState, again: set[tuple[int, int]], groups: set[int]
) -> None:
    """Take back these rollouts or their verdicts, and what was drawn from these groups."""
    for position in groups & step.reflections.keys():
        reflection = step.reflections.pop(position)
        step.groups[reflection.outcome] -= 1
        _find(state, reflection.losses)
        state.repairs.pop(group_id(step.step, position), None)
    step.groups = +step.groups
    for place in again:
        rollout, verdict = step.rollouts[place], step.verdicts.pop(place, None)
        where = rollout_id(step.step, *place)
        if rollout.status == "failed":
            del step.rollouts[place]
            step.rollouts_done -= 1
            step.failed -= 1
            _find(state, (Loss("rollout", where, rollout.error or ""),))
        elif verdict is not None:
            step.unjudged -= 1
            _find(state, (Loss("verdict", where, verdict.error or ""),))


def _unjudged(verdict: Verdict | None) -> bool:
    return verdict is not None and verdict.reward is None and verdict.error is not None


def _queue(
    state: RunState,
    step: int,
    kind: Literal["extraction", "consolidation"],
    losses: Iterable[Loss],
) -> None:
    """Keep what could not be understood for a person to mend: one entry a reply."""
    for loss in losses:
        if not loss.reply:
            continue
        name = loss.where if kind == "extraction" else f"s{step}"
        known = state.repairs.get(name) or Repair(name, step, kind, (), _kept(loss).reply)
        state.repairs[name] = replace(
            known, reasons=(*known.reasons, loss.reason), lost=(*known.lost, loss.kind)
        )
    # Groups end in any order; a person reads the replies in that of their problems.
    state.repairs = dict(sorted(state.repairs.items(), key=lambda item: _place(item[1])))


def _place(repair: Repair) -> tuple[int, bool, int]:
    """Sorts by step, groups in sample order, the consolidation behind them."""
    position = repair.id.partition("p")[2]
    return (repair.step, not position, int(position or 0))


def _tally(state: RunState, operation: Operation | None, decision: Decision) -> None:
    if decision.action == "defer":
        return
    counted = state.curation.setdefault(decision.reviewer, Curation())
    match decision.action:
        case "approve":
            counted.approved += 1
            counted.flagged += bool(operation and operation.flags)
        case "edit":
            counted.edited += 1
            counted.flagged += bool(decision.flags)
        case "reject":
            counted.rejected += 1
    if decision.took_s is not None:
        counted.times_s.append(decision.took_s)


def _committed(state: RunState, event: ev.LessonCommitted) -> None:
    for outcome in event.outcomes:
        operation = state.operations.pop(outcome.operation_id, None)
        decision = state.decisions.pop(outcome.operation_id, None)
        if decision is not None:
            _tally(state, operation, decision)
        state.deferred.discard(outcome.operation_id)
    # What is left was deferred: open, but no longer in anyone's way. A decision made about
    # one after this commit's line reached the library, before a crash, waits for the next.
    state.deferred = set(state.operations)
    state.decisions = {k: d for k, d in state.decisions.items() if d.action != "defer"}
    state.flagged_stale = None
    if state.status == "reviewing":
        state.status = "running"
    state.library_version = state.base_version = event.library_version
    state.content_hash, state.policy_version = event.content_hash, event.policy_version
    step = state.steps.get(event.step)
    if step is not None:
        step.committed, step.committed_version = True, event.library_version
        step.remembered_after = event.remembered
        step.outcomes = event.outcomes


def _spend(state: RunState, step: StepState, usage: Usage) -> None:
    step.usage += usage
    state.usage += usage


def _spend_at(state: RunState, step: int, usage: Usage) -> None:
    """Of a lint: a run that was forked may have no step of its own yet."""
    found = state.steps.get(step)
    if found is not None:
        found.usage += usage
    state.usage += usage


def _lose(state: RunState, losses: Iterable[Loss]) -> None:
    for loss in losses:
        state.lost[loss.kind] += 1
        if len(state.losses) < KEPT_LOSSES:
            state.losses.append(_kept(loss))


def _kept(loss: Loss) -> Loss:
    """Without more of the reply than is shown, so that memory does not grow with replies."""
    return replace(loss, reply=loss.reply[:KEPT_REPLY_CHARS])


def _find(state: RunState, losses: Iterable[Loss]) -> None:
    """Take losses back: what was lost is tried again."""
    for loss in losses:
        state.lost[loss.kind] -= 1
        if _kept(loss) in state.losses:
            state.losses.remove(_kept(loss))
    state.lost = +state.lost
