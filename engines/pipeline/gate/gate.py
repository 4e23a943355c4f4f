"""The gate: the only way into a library. No mode goes round it; only the reviewers differ.

Asks the reviewers in turn, checks each decision against the draft that holds the earlier ones,
journals it, and calls `Library.commit` once nothing is undecided.
"""

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial

from engines.core import events as ev
from engines.core import library_notes, protocols
from engines.core.errors import ConflictError, LockedError
from engines.core.library import CommitResult, Library, OperationOutcome, Reviewed
from engines.core.state.run_state import RunState, StepState
from engines.core.types import (
    GATE,
    Decision,
    DecisionPreview,
    Operation,
    ProposalFate,
    UnparsedReply,
    WeightUpdate,
    human_operation_id,
    rollout_id,
    update_id,
)
from engines.core.waiting import run_to_end
from engines.pipeline.gate.draft import Draft, rebase_decisions
from engines.pipeline.recorder import Recorder
from engines.pipeline.reviewers import HoldExpired, HumanReviewer, MetricLimits
from engines.record.libraries import Committer, LibraryFolder

LOCK_TIMEOUT_S = 10.0
"""How long a commit waits for whoever else writes to the library."""
_LOCK_POLL_S = 0.05


@dataclass(eq=False)
class Gate:
    """Review and commit of one run, on its library as the run's journal knows it.

    People may add to the lesson under review; `hold` says whether its commit waits for one.
    """

    recorder: Recorder
    folder: LibraryFolder
    reviewers: Sequence[protocols.Reviewer]  # asked in turn
    _: KW_ONLY
    run: str
    limit: int | None = None  # the most experiences the library may hold
    clock: Callable[[], float] = time.time
    linter: protocols.Linter | None = None
    apply: "Apply | None" = None  # None where no engine is at hand

    def __post_init__(self) -> None:
        state = self.recorder.state
        base = self.folder.head() if state.started is None else self.folder.at(state.base_version)
        self._people = [one for one in self.reviewers if isinstance(one, HumanReviewer)]
        # One decision at a time: each is checked against the draft of those before it.
        self._lock = asyncio.Lock()
        self._draft = Draft(state, base, self.run, self.limit, self.linter)
        self.hold = CommitHold(self.recorder, self._draft)
        for reviewer in self.reviewers:
            if isinstance(reviewer, HumanReviewer):
                reviewer.is_done = lambda: not state.undecided_operations
            elif isinstance(reviewer, MetricLimits):
                reviewer.metrics_of = lambda operation: update_metrics(state, operation)

    @property
    def library(self) -> Library:
        """The head of the library as this run knows it."""
        return self._draft.base

    def at(self, version: int) -> Library:
        return self.library if version == self.library.version else self.folder.at(version)

    def draft(self) -> Library:
        """The library as the standing decisions would leave it."""
        return self._draft.library

    async def follow_head(self, step: int) -> Library:
        """Stand on the library's head, as it is on disk now, and return it.

        Where it has moved, what the move touched is asked again. Where the move is this step's
        own commit, cut off before the run's journal told of it, it is told now.
        """
        async with self._lock:
            state = self.recorder.state
            if state.started is not None:
                self._draft.move_to(self.at(state.base_version))
            while True:
                async with self._lock_library() as library:
                    head = library.head
                    done = library.earlier_commit(self.run, step, self.library.version)
                if done is not None and step in state.steps:
                    if not can_carry_out(state, step, self.apply):
                        return self.library  # the process that trains will tell of it
                    await self._finish_commit(step, done)
                elif head.version == self.library.version:
                    if head.notes.mark != self.library.notes.mark:
                        self._draft.move_to(head)  # what it knows from elsewhere makes no version
                    return self.library
                elif state.operations:
                    await self._return_lesson(step, head)
                else:
                    self._draft.move_to(head)

    async def review(self, step: int) -> None:
        """Return when nothing of the lesson is undecided, nor its commit held; else HoldExpired."""
        await self.follow_head(step)
        self.hold.cancel_release()
        needed = await self._ask_reviewers(step, self.reviewers)
        # What a person takes back while the commit is held is theirs, not the rules', to decide.
        while needed and not await self.hold.wait_for_release(step):
            await self._ask_reviewers(step, self._people)

    async def _ask_reviewers(self, step: int, reviewers: Sequence[protocols.Reviewer]) -> bool:
        """Let each reviewer decide what is left; returns whether a person was needed."""
        state, needed = self.recorder.state, False
        lesson = state.steps[step].lesson if step in state.steps else None
        has_lesson = lesson is not None and bool(lesson.operations or lesson.update)
        put_off = set[str]()  # in these words already: nothing is written, and nobody else asked
        for number, reviewer in enumerate(reviewers):
            left = len(state.undecided_operations)
            if isinstance(reviewer, HumanReviewer):
                needed = needed or bool(left) or (not number and has_lesson)
                if number and left:
                    # Those before it had their say: only now is it known that a person is needed.
                    self.recorder.emit(ev.StageEntered(step, "hold", {"undecided": left}))
            for operation in state.open_operations:
                # Each is asked against the draft that holds the answers before it, and what
                # has been decided by then, here or from outside, is asked nobody else.
                known = operation.id in state.decisions or operation.id not in state.operations
                if known or operation.id in put_off:
                    continue
                async for decision in reviewer.review((operation,), self.draft()):
                    if state.is_put_off_already(decision):
                        put_off.add(operation.id)
                    else:
                        await self._record_unless_decided(decision)
        return needed

    async def propose_between_steps(self, wanted: Sequence[Operation], reviewer: str) -> None:
        """Put operations into the queue and commit them, where no person is to be asked.

        Else they stay open until somebody decides about them, and join the next commit.
        """
        for operation in wanted:
            await self.propose(operation, reviewer)
        await self._ask_reviewers(0, [one for one in self.reviewers if one not in self._people])
        if self.recorder.state.reviewed_operations:
            await self.commit(0)

    async def defer_undecided(self, reviewer: str) -> int:
        """Put off what is undecided, weight updates excepted; returns how many."""
        async with self._lock:
            left = [op for op in self.recorder.state.undecided_operations if op.kind != "weights"]
            if left:
                await self._record_decisions(
                    [Decision(o.id, "defer", reviewer=reviewer) for o in left]
                )
            return len(left)

    async def decide(self, decision: Decision) -> Decision:
        """Check and journal one decision about an open operation; returns it as journalled.

        An approval or edit that does not fit the draft is journalled as a rejection
        with the objection as its reason.

        Raises ConflictError: no such operation is open, or a weight update is edited or put off.
        """
        return (await self.decide_all((decision,)))[0]

    async def decide_all(self, decisions: Sequence[Decision]) -> tuple[Decision, ...]:
        """Decide several operations as one record: on disk all decisions stand, or none.

        Each is checked as `decide` does, against the draft that holds those before it.

        Raises ConflictError: `decide` would refuse one of them; then none is journalled.
        """
        async with self._lock:
            return await self._record_decisions(decisions)

    async def lint(
        self,
        decisions: Sequence[Decision],
        own: Sequence[Operation] = (),
        undone: Sequence[str] = (),
    ) -> list[DecisionPreview]:
        """What `decide_all` would find or raise, once some are undone and one's own proposed."""
        async with self._lock:
            tried, found = self._draft.copy(), list[DecisionPreview]()
            for name in undone:
                tried.state.decisions.pop(name, None)
                tried.discard()
            misfits = {op.id: tried.objection(op) for op in own}
            tried.state.operations.update(known := {op.id: op for op in own})
            for asked in decisions:
                name = asked.operation_id
                operation = known.get(name) or self.open_operation(name)
                made = await self._resolve(operation, asked, tried)
                tried.hold(operation, made)
                refused = made.reason if made.action != asked.action else ""
                found.append(DecisionPreview(misfits.get(name) or refused, made.flags))
            return found

    async def _record_unless_decided(self, decision: Decision) -> None:
        async with self._lock:
            if decision.operation_id not in self.recorder.state.decisions:
                await self._record_decisions((decision,))

    async def _record_decisions(self, decisions: Sequence[Decision]) -> tuple[Decision, ...]:
        """Check and journal decisions as one record; the lock is held."""
        state, tried = self.recorder.state, self._draft.copy()
        operations = {d.operation_id: self.open_operation(d.operation_id) for d in decisions}
        if len(operations) < len(decisions) or not decisions:
            raise ConflictError(
                "batch of decisions",
                "it must name each operation once, and at least one.",
                "Nothing was decided.",
            )
        resolved = list[Decision]()
        for operation, asked in zip(operations.values(), decisions, strict=True):
            decision = await self._resolve(operation, replace(asked, at=self.clock()), tried)
            tried.hold(operation, decision)
            resolved.append(decision)
        again = [
            name
            for name, operation in operations.items()
            if name in state.decisions and operation.kind != "weights"
        ]
        made, paid = tuple(resolved), self._draft.take_lint_usage()
        await self.recorder.record(
            ev.OperationDecided(state.step, made[0], paid)
            if len(made) == 1  # as journals of every release have it
            else ev.OperationsDecided(state.step, made, paid)
        )
        self._draft.adopt(tried)
        if again:
            await self._take_back_misfits(", ".join(again))
        self._notify()
        return made

    async def _resolve(self, operation: Operation, decision: Decision, draft: Draft) -> Decision:
        """Return a decision on a draft as it is journalled."""
        decision = replace(decision, flags=())  # they are the gate's to find
        if operation.kind == "weights":
            check_decision(decision)
            return decision
        if decision.action in ("reject", "defer"):
            return decision
        wanted, without_it, objection = draft.check(operation, decision)
        if objection:
            return replace(decision, action="reject", reason=objection, reviewer=GATE)
        if decision.action == "edit":
            (flags,) = await draft.lint((wanted,), without_it)
            decision = replace(decision, flags=flags)
        if wanted.kind != "add":
            return decision
        return replace(decision, assigned=draft.free_id())

    async def undo(self, operation_id: str) -> tuple[str, ...]:
        """Take a standing decision back; returns every operation that is asked again.

        Decisions that no longer fit without it are taken back too, and so are the
        gate's own rejections that would now fit. A person's pin is withdrawn with its decision.
        """
        async with self._lock:
            state = self.recorder.state
            if operation_id not in state.decisions:
                raise ConflictError(
                    f"operation {operation_id}", "no decision about it stands.", "Nothing to undo."
                )
            gone = state.is_withdrawn_by_undo(operation_id, state.decisions[operation_id])
            undo = ev.DecisionUndone(state.step, operation_id, withdrawn=gone)
            await self.recorder.record(undo)
            undone = (operation_id, *await self._take_back_misfits(operation_id))
            # Who takes something back is not done.
            self.hold.cancel_release()
            self.hold.finish("not committed: a decision was taken back")
            self._notify()
            return undone

    async def _take_back_misfits(self, changed: str) -> list[str]:
        """Take back what no longer follows once the decision about `changed` is another."""
        undone: list[str] = []
        step = self.recorder.state.step
        self._draft.discard()
        while misfit := self._draft.first_misfit():
            undone.append(misfit)
            await self.recorder.record(ev.DecisionUndone(step, misfit, f"rested on {changed}"))
            self.hold.finish("not committed: a decision was taken back")
        self._draft.discard()
        return undone

    async def commit(self, step: int) -> CommitResult:
        """Apply every standing decision as one version, library journal first.

        Where the head has moved, the lesson goes back to review and is committed on the new one.

        Raises HoldExpired: the reviewers leave an operation of the step undecided.
        """
        state = self.recorder.state
        now = state.steps.get(step)
        if now is not None and now.committed:  # found and told of by `follow_head`
            return CommitResult(self.library, now.outcomes)
        while True:
            # An undo under way must be on disk before its decision could be applied.
            async with self._lock:
                if step not in state.steps or not state.undecided_operations:
                    done, head = await self._try_commit(step)
                    if done is not None:
                        return await self._finish_commit(step, done)
                    await self._return_lesson(step, head)
            await self.review(step)
            if step in state.steps and state.undecided_operations:
                raise HoldExpired

    async def _try_commit(self, step: int) -> tuple[CommitResult | None, Library]:
        """Commit on the head, unless it has moved; the head comes second."""
        async with self._lock_library() as library:
            reviewed = self.recorder.state.reviewed_operations
            done = library.earlier_commit(self.run, step, self.library.version)
            if done is None and library.head.version == self.library.version:
                self._credit(library, step)
                # One of thousands takes seconds, in which requests are to be answered.
                done = await run_to_end(
                    partial(library.commit, reviewed, run=self.run, step=step, limit=self.limit)
                )
                done = self._keep_effects(library, done, reviewed)
            return done, library.head

    def _keep_effects(
        self, library: Committer, done: CommitResult, reviewed: Reviewed
    ) -> CommitResult:
        """Note in the library what operations were found to be worth, tried alone and let in so."""
        as_proposed = {op.id for op, decision in reviewed if decision.action == "approve"}
        found = {}
        for outcome in done.outcomes:
            measured = self.recorder.state.effect_of(outcome.operation_id)
            alone = measured is not None and len(measured.operations) == 1
            if alone and outcome.applied and outcome.operation_id in as_proposed:
                assert measured is not None
                if outcome.kind in ("add", "modify") and outcome.id is not None:
                    found[outcome.id] = measured.effect
        return replace(done, library=library.measure(done.library, found)) if found else done

    def _credit(self, library: Committer, step: int) -> None:
        """Journal what the step shows of the experiences; a commit outside steps shows nothing."""
        state = self.recorder.state
        if (now := state.steps.get(step)) is None or state.started is None:
            return
        counts = count_uses(now, self.at(now.library_version), library.head)
        library.credit(counts, run=self.run, step=step, since=state.started.notes)

    async def _finish_commit(self, step: int, done: CommitResult) -> CommitResult:
        """Carry out what was decided about weights, then tell of the commit.

        Cut off in between, the commit is found again in the library, and the weights are computed
        and changed again.
        """
        version, carried_out = await carry_out(self.recorder.state, step, self.apply)
        done = CommitResult(done.library, (*done.outcomes, *carried_out))
        self._draft.move_to(done.library)
        await self.recorder.record(
            ev.LessonCommitted(
                step,
                done.library.version,
                done.library.content_hash,
                done.outcomes,
                policy_version=version,
                notes=done.library.notes.mark,
            )
        )
        self.hold.finish("")
        return done

    async def _return_lesson(self, step: int, head: Library) -> None:
        """Move to a newer head: what it touched is asked again, the rest stands there."""
        base, reviewed = self.library, self.recorder.state.reviewed_operations
        moved = rebase_decisions(reviewed, base, head, run=self.run, limit=self.limit)
        self._draft.move_to(head)
        await self.recorder.record(
            ev.LessonReturned(step, base.version, head.version, moved.asked_again)
        )
        asked = f"{len(moved.asked_again)} are asked again"
        self.hold.finish(f"the library moved to v{head.version}: {asked}")
        for decision in moved.reassigned:
            await self.recorder.record(ev.OperationDecided(step, decision))
        self._notify()

    @asynccontextmanager
    async def _lock_library(self) -> AsyncIterator[Committer]:
        """The library under its lock; raises LockedError after `LOCK_TIMEOUT_S`.

        The run goes on while another process holds that.
        """
        with ExitStack() as stack:
            loop = asyncio.get_running_loop()
            until = loop.time() + LOCK_TIMEOUT_S
            while True:
                try:
                    library = stack.enter_context(self.folder.lock_for_commit(timeout_s=0.0))
                    break
                except LockedError:
                    if loop.time() >= until:
                        raise
                await asyncio.sleep(_LOCK_POLL_S)
            yield library

    def open_operation(self, operation_id: str) -> Operation:
        """Raises ConflictError where no operation of that id is open."""
        state = self.recorder.state
        operation = state.operations.get(operation_id)
        if operation is None:
            listed = ", ".join(op.id for op in state.open_operations) or "none"
            where, cause = f"operation {operation_id}", "it is not open in this run."
            raise ConflictError(where, cause, f"Open are: {listed}.")
        return operation

    async def propose(self, operation: Operation, reviewer: str) -> Operation:
        """Journal a person's own operation, linted, to be decided like all others.

        Raises ConflictError: it does not fit the library as the standing decisions would leave it.
        """
        async with self._lock:
            objection = self._draft.objection(operation)
            if objection:
                what = f"{operation.kind} {operation.target or ''}".rstrip()
                raise ConflictError(
                    f"proposal ({what})", f"{objection}.", "Change it, or leave it out."
                )
            state = self.recorder.state
            ids = (human_operation_id(state.step, number) for number in itertools.count(1))
            wanted = replace(
                operation,
                id=next(name for name in ids if name not in state.own),
                proposer=reviewer,
                prompt_hash="",
                flags=(),  # they are the gate's to find
            )
            (flags,) = await self._draft.lint((wanted,))
            wanted = replace(wanted, flags=flags)
            usage = self._draft.take_lint_usage()
            await self.recorder.record(ev.OperationProposed(state.step, wanted, reviewer, usage))
            self._notify()
            return state.operations[wanted.id]

    def unparsed_reply(self, repair_id: str) -> UnparsedReply:
        """Raises ConflictError where no reply of that id waits to be mended."""
        state = self.recorder.state
        found = state.repairs.get(repair_id)
        if found is None:
            done = state.repaired.get(repair_id)
            cause = f"it was {done} already." if done else "no such reply is open."
            raise ConflictError(
                f"reply {repair_id}", cause, f"Open are: {', '.join(state.repairs) or 'none'}."
            )
        return found

    async def resubmit(
        self,
        repair_id: str,
        operations: Sequence[Operation],
        reviewer: str,
        fates: Sequence[ProposalFate] = (),
    ) -> tuple[Operation, ...]:
        """Journal the operations of a mended reply, linted, to be decided like all others."""
        async with self._lock:
            self.unparsed_reply(repair_id)
            found = await self._draft.lint(operations)
            linted = tuple(
                replace(operation, flags=(*operation.flags, *flags))
                for operation, flags in zip(operations, found, strict=True)
            )
            state, usage = self.recorder.state, self._draft.take_lint_usage()
            await self.recorder.record(
                ev.ReplyMended(state.step, repair_id, linted, reviewer, usage, tuple(fates))
            )
            self._notify()
            return tuple(state.operations[operation.id] for operation in linted)

    async def drop(self, repair_id: str, reason: str, reviewer: str) -> None:
        """Give up a reply that could not be understood; what it held stays lost."""
        async with self._lock:
            self.unparsed_reply(repair_id)
            step = self.recorder.state.step
            await self.recorder.record(ev.ReplyDropped(step, repair_id, reason, reviewer))

    def _notify(self) -> None:
        self.hold.notify()
        for person in self._people:
            person.notify()


class CommitHold:
    """Holds each lesson that a person reviews, until it is released.

    A lesson without operations is never held, nor one that was decided without any person.
    """

    def __init__(self, recorder: Recorder, draft: Draft) -> None:
        self._recorder = recorder
        self._draft = draft
        self._wanted = False
        self._released = False  # this lesson may be committed once nothing is undecided
        self._changed = asyncio.Event()  # something was decided, undone, held or released
        self._waiting: list[asyncio.Future[str]] = []  # of whoever asked for the commit

    def set(self, wanted: bool) -> None:
        """Hold lessons from now on, or release the one under review and hold none.

        A released lesson is committed as soon as nothing of it is undecided, also where the hold
        begins again at once; where something still is undecided, it is held again.
        """
        self._wanted = wanted
        if not wanted:
            self._released = True
        elif self._recorder.state.undecided_operations:
            self._released = False  # who comes back decides the rest, and when it is committed
        self._changed.set()

    def release_once(self) -> asyncio.Future[str]:
        """Release the lesson under review, where all is decided; the next one is held again.

        The future tells why it was not committed; "" once it is.
        """
        self._released = not self._recorder.state.undecided_operations
        self._changed.set()
        self._waiting.append(asyncio.get_running_loop().create_future())
        return self._waiting[-1]

    def finish(self, why_not: str) -> None:
        """Tell everyone who asked for the commit what came of it; "" where it is made."""
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(why_not)
        self._waiting.clear()

    def cancel_release(self) -> None:
        self._released = False

    def notify(self) -> None:
        """Something was decided or undone."""
        self._changed.set()

    async def wait_for_release(self, step: int) -> bool:
        """Wait while the commit is held; False where something was taken back meanwhile."""
        last_counts: dict[str, int] = {}
        while self._wanted and not self._released:
            if self._recorder.state.undecided_operations:
                return False
            if (counts := self._count_decisions()) != last_counts:
                self._recorder.emit(ev.StageEntered(step, "ready", counts))
                last_counts = counts
            self._changed.clear()
            await self._changed.wait()
        return not self._recorder.state.undecided_operations

    def _count_decisions(self) -> dict[str, int]:
        """How many decisions of each kind stand, and the version that they would make."""
        made = Counter(one.action for one in self._recorder.state.decisions.values())
        return {
            "approved": made["approve"],
            "edited": made["edit"],
            "rejected": made["reject"],
            "deferred": made["defer"],
            "version": self._draft.preview_commit().library.version,
        }


Apply = Callable[[WeightUpdate], Awaitable[int]]
"""Makes a computed update the current weights; returns the new policy version."""

UNDECIDED = "no decision about it was left in the journal"


def check_decision(decision: Decision) -> None:
    """Raises ConflictError where a weight update is neither approved nor rejected as it is."""
    reworded = (decision.kind, decision.target, decision.text) != (None, None, None)
    if decision.action in ("edit", "defer") or reworded:
        asked = "deferred" if decision.action == "defer" else "edited"
        raise ConflictError(
            f"operation {decision.operation_id}",
            f"a weight update cannot be {asked}: the next step would rest on it.",
            "Approve or reject it.",
        )


def update_metrics(state: RunState, operation: Operation) -> Mapping[str, float]:
    """The metrics behind a weight update under review; {} of anything else."""
    now = state.current
    if operation.kind != "weights" or now is None or operation.id != update_id(now.step):
        return {}
    return state.training.get(now.step, {})


def can_carry_out(state: RunState, step: int, apply: Apply | None) -> bool:
    """Whether this process can carry out what was decided: one without an engine cannot."""
    return apply is not None or not _is_approved(state, step)


async def carry_out(
    state: RunState, step: int, apply: Apply | None
) -> tuple[int, tuple[OperationOutcome, ...]]:
    """Carry out what was decided about the step's update; `apply` is None without an engine.

    Returns the policy version since, and what became of the update; () where there is none.
    """
    update = _pending_update(state, step)
    if update is None:
        return state.policy_version, ()
    name = update_id(step)
    if _is_approved(state, step):
        if apply is None:
            raise ConflictError(
                f"operation {name}",
                "its weights can be changed only by the process that trains them.",
                "Go on with the run.",
            )
        return await apply(update), (OperationOutcome(name, "weights", True),)
    decision = state.decisions.get(name)
    reason = UNDECIDED if decision is None else decision.reason
    return state.policy_version, (OperationOutcome(name, "weights", False, None, reason),)


def _pending_update(state: RunState, step: int) -> WeightUpdate | None:
    """Of the step's lesson, while it waits for its commit."""
    found = state.steps.get(step)
    if found is None or found.lesson is None or update_id(step) not in state.operations:
        return None
    return found.lesson.update


def _is_approved(state: RunState, step: int) -> bool:
    decision = state.decisions.get(update_id(step)) if _pending_update(state, step) else None
    return decision is not None and decision.action == "approve"


_RANKS = {"misled": 0, "used": 1, "ignored": 2}
"""Harm first: an attempt counts once for an experience, whatever else is said of it."""


def count_uses(now: StepState, shown: Library, head: Library) -> dict[str, library_notes.UseCounts]:
    """Attempts that used each experience, ignored it, were misled by it, or cited it.

    `shown` is the library as the step began. What `head` no longer words so is not counted.
    """
    prompts = {rollout_id(now.step, *at): one.shown for at, one in now.rollouts.items()}
    counted: dict[str, Counter[str]] = {}  # of those that something is said of
    ids = {e.id for e in shown.experiences}

    def count(experience: str, rollout: str, use: str) -> None:
        in_prompt = prompts.get(rollout, ())
        if experience in ids and (in_prompt is None or experience in in_prompt):
            counted.setdefault(experience, Counter())[use] += 1

    for at, one in now.rollouts.items():
        for experience in one.cited or ():
            count(experience, rollout_id(now.step, *at), "cited")
    for reflection in now.reflections.values():
        seen: set[tuple[str, str]] = set()
        for credit in sorted(reflection.credits, key=lambda one: _RANKS[one.use]):
            for rollout in credit.evidence:
                if (credit.experience, rollout) not in seen:
                    seen.add((credit.experience, rollout))
                    count(credit.experience, rollout, credit.use)
    stands = {e.id: e.text for e in head.experiences if e.id in counted}
    return {
        e.id: library_notes.UseCounts(**counted[e.id])
        for e in shown.experiences
        if e.id in counted and stands.get(e.id) == e.text
    }
