"""The gate: the only way into a library.

Owns review and commit: it asks the reviewers in turn, checks each decision against the
draft that holds the earlier ones, journals it, and calls `Library.commit` once
nothing is undecided. No mode goes round it; only the reviewers differ.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace

from engines.core import events as ev
from engines.core.errors import ConflictError, LockedError
from engines.core.library import CommitResult, Library, Reviewed, effective_operation
from engines.core.protocols import Linter, Reviewer
from engines.core.types import (
    GATE,
    NO_USAGE,
    Decision,
    Flag,
    Operation,
    UnparsedReply,
    Usage,
    human_operation_id,
)
from engines.pipeline.gate import weights
from engines.pipeline.gate.results import DecisionPreview, DecisionResult
from engines.pipeline.recorder import Recorder
from engines.pipeline.reviewers.human import HoldExpired, HumanReviewer
from engines.pipeline.reviewers.limits import MetricLimits
from engines.record.libraries import Committer, LibraryFolder

_OWN_ID = re.compile(r"op(\d{1,9})\.h\d{1,9}")
"""What a client may call an operation that a person proposes."""
LOCK_S = 10.0
"""How long a commit waits for whoever else writes to the library."""
_LOOK_S = 0.05


class Gate:
    """Review and commit of one run."""

    def __init__(
        self,
        recorder: Recorder,
        folder: LibraryFolder,
        reviewers: Sequence[Reviewer],
        *,
        run: str,
        limit: int | None = None,
        clock: Callable[[], float] = time.time,
        linter: Linter | None = None,
        apply: weights.Apply | None = None,
    ) -> None:
        """Stand on the library as the run's journal knows it.

        Args:
            recorder: of the run.
            folder: of the library.
            reviewers: asked in turn.
            run: its id.
            limit: the most experiences the library may hold.
            clock: gives the time of a decision.
            linter: what a reviewer should look at; None: nothing.
            apply: carries out approved weight updates; None where no engine is at hand.
        """
        self._linter = linter
        self._apply = apply
        self._recorder = recorder
        self._folder = folder
        self._reviewers = tuple(reviewers)
        self._run = run
        self._limit = limit
        self._clock = clock
        state = recorder.state
        self._base = folder.head() if state.started is None else folder.at(state.base_version)
        self._draft: Library | None = None  # None: to be made from the standing decisions
        # One decision at a time: each is checked against the draft of those before it.
        self._turn = asyncio.Lock()
        self._held = False  # somebody wants to look once more before each commit
        self._let_go = False  # they said that this lesson may be committed
        self._stirred = asyncio.Event()  # something was decided, undone, held or let go
        for reviewer in self._reviewers:
            if isinstance(reviewer, HumanReviewer):
                reviewer.set_done_check(lambda: not self._recorder.state.undecided_operations)
            if isinstance(reviewer, MetricLimits):
                reviewer.set_metrics_source(
                    lambda operation: weights.update_metrics(recorder.state, operation)
                )

    @property
    def library(self) -> Library:
        """The head of the library as this run knows it."""
        return self._base

    def at(self, version: int) -> Library:
        return self._base if version == self._base.version else self._folder.at(version)

    async def follow_head(self, step: int) -> Library:
        """Stand on the library's head, as it is on disk now, and return it.

        Where it has moved since the decisions were made, what the move touched is taken
        back. Where the move is this step's own commit, cut off before the run's journal
        told of it, it is told now.
        """
        async with self._turn:
            state = self._recorder.state
            if state.started is not None:
                self._set_base(self.at(state.base_version))
            while True:
                async with self._locked_library() as library:
                    head = library.head
                    done = library.earlier_commit(self._run, step, self._base.version)
                if done is not None and step in state.steps:
                    if not weights.can_carry_out(state, step, self._apply):
                        return self._base  # the process that trains will tell of it
                    await self._finish_commit(step, done)
                elif head.version == self._base.version:
                    if head.remembered > self._base.remembered:
                        self._set_base(head)  # rejections from elsewhere make no new version
                    return self._base
                elif state.operations:
                    await self._return_lesson(step, head)
                else:
                    self._set_base(head)

    def draft(self) -> Library:
        """The library as the standing decisions would leave it."""
        if self._draft is None:
            self._draft = self._make_draft(self._base, self._recorder.state.reviewed_operations)
        return self._draft

    async def review(self, step: int) -> None:
        """Return when no operation of the lesson is undecided, and none of its commit held.

        Raises:
            HoldExpired: the reviewers ended and something still is.
        """
        await self.follow_head(step)
        self._let_go = False
        persons = tuple(one for one in self._reviewers if isinstance(one, HumanReviewer))
        needed = await self._ask_reviewers(step, self._reviewers)
        # What a person takes back while the commit is held is theirs, not the rules', to decide.
        while needed and not await self._wait_for_release(step):
            await self._ask_reviewers(step, persons)

    async def _ask_reviewers(self, step: int, reviewers: Sequence[Reviewer]) -> bool:
        """Let each reviewer decide what is left; returns whether a person was needed."""
        needed = False
        for number, reviewer in enumerate(reviewers):
            left = len(self._recorder.state.undecided_operations)
            if isinstance(reviewer, HumanReviewer):
                needed = needed or bool(left) or (not number and self._has_lesson(step))
            if number and left and isinstance(reviewer, HumanReviewer):
                # Those before it had their say: only now is it known that a person is needed.
                self._recorder.emit(ev.StageEntered(step, "hold", {"undecided": left}))
            for operation in self._recorder.state.open_operations:
                # Each is asked against the draft that holds the answers before it, and what
                # has been decided by then, here or from outside, is asked nobody else.
                if self._is_decided(operation):
                    continue
                async for decision in reviewer.review((operation,), self.draft()):
                    await self._record_decision(decision, unless_decided=True)
        return needed

    def _has_lesson(self, step: int) -> bool:
        found = self._recorder.state.steps.get(step)
        lesson = found.lesson if found is not None else None
        return lesson is not None and bool(lesson.operations or lesson.update)

    async def _wait_for_release(self, step: int) -> bool:
        """Wait while the commit is held; False where something was taken back meanwhile."""
        told: dict[str, int] = {}
        while self._held and not self._let_go:
            if self._recorder.state.undecided_operations:
                return False
            if (counted := self._count_decisions()) != told:
                self._recorder.emit(ev.StageEntered(step, "ready", counted))
                told = counted
            self._stirred.clear()
            await self._stirred.wait()
        return not self._recorder.state.undecided_operations

    def _count_decisions(self) -> dict[str, int]:
        """How the standing decisions are, and the version that they would make."""
        state = self._recorder.state
        made = Counter(decision.action for decision in state.decisions.values())
        done = self._base.commit(state.reviewed_operations, run=self._run, limit=self._limit)
        return {
            "approved": made["approve"],
            "edited": made["edit"],
            "rejected": made["reject"],
            "deferred": made["defer"],
            "version": done.library.version,
        }

    def hold_commit(self, held: bool) -> None:
        """Hold each lesson that a person reviews until it is let go, or let go of it.

        A lesson that is let go is committed as soon as nothing of it is undecided, also where
        the hold begins again at once; where something still is, it is held again. One without
        operations is never held, nor one that was settled without any person. Nothing of it is
        journalled: who holds must be there.
        """
        self._held = held
        if not held:
            self._let_go = True
        elif self._recorder.state.undecided_operations:
            self._let_go = False  # who comes back decides the rest, and when it is committed
        self._notify()

    def release_once(self) -> None:
        """Let go of the lesson that waits, where nothing of it is undecided; the hold stays."""
        self._let_go = not self._recorder.state.undecided_operations
        self._notify()

    async def defer_undecided(self, reviewer: str) -> int:
        """Put off what is undecided, so that the rest can be committed; returns how many.

        A weight update cannot be put off, and stays undecided.
        """
        deferred = 0
        while left := [
            op for op in self._recorder.state.undecided_operations if op.kind != "weights"
        ]:
            decision = Decision(left[0].id, "defer", reviewer=reviewer)
            settled = await self._record_decision(decision, unless_decided=True)
            deferred += settled.decision.action == "defer"
        return deferred

    async def propose(self, operation: Operation, reviewer: str) -> Operation:
        """Journal a person's own operation, linted, to be decided like all others.

        Args:
            operation: its id is kept where it is of the form `op2.h1`, of a step that has
                begun and free, so that one that is sent again can be recognised; else it gets
                the next such id.
            reviewer: who proposes it.

        Returns:
            The operation as it was journalled.

        Raises:
            ConflictError: it does not fit the library as the standing decisions would leave it.
        """
        async with self._turn:
            state, draft = self._recorder.state, self.draft()
            objection = self._objection(operation, draft)
            if objection:
                what = f"{operation.kind} {operation.target or ''}".rstrip()
                raise ConflictError(
                    f"proposal ({what})", f"{objection}.", "Change it, or leave it out."
                )
            wanted = replace(
                operation,
                id=self._human_operation_id(operation.id),
                proposer=reviewer,
                prompt_hash="",
                flags=(),  # they are the gate's to find
            )
            wanted = replace(wanted, flags=await self._lint(wanted, draft, ()))
            await self._recorder.record(
                ev.OperationProposed(state.step, wanted, reviewer, self._take_usage())
            )
            self._notify()
            return state.operations[wanted.id]

    def _human_operation_id(self, wished: str) -> str:
        state = self._recorder.state
        match = _OWN_ID.fullmatch(wished)
        if match and int(match[1]) <= state.step and wished not in state.own:
            return wished
        number = 1
        while human_operation_id(state.step, number) in state.own:
            number += 1
        return human_operation_id(state.step, number)

    def _is_decided(self, operation: Operation) -> bool:
        state = self._recorder.state
        return operation.id in state.decisions or operation.id not in state.operations

    async def decide(self, decision: Decision) -> DecisionResult:
        """Check, journal and answer one decision about an open operation.

        An approval or edit that does not fit the draft is journalled as a rejection
        with the objection as its reason.

        Raises:
            ConflictError: no such operation is open, or a weight update is to be edited or put
                off.
        """
        return await self._record_decision(decision)

    async def lint(self, decision: Decision) -> DecisionPreview:
        """Tell of an edit what `decide` would find, before it is decided.

        Raises:
            ConflictError: as `decide` would.
        """
        async with self._turn:
            operation = self._open_operation(decision.operation_id)
            if operation.kind == "weights":
                weights.check_decision(decision)
            if operation.kind == "weights" or decision.action in ("reject", "defer"):
                return DecisionPreview()
            wanted, draft, objection = self._check_decision(operation, decision)
            if objection or decision.action != "edit":
                return DecisionPreview(objection or "")
            return DecisionPreview(flags=await self._lint(wanted, draft, ()))

    def _open_operation(self, operation_id: str) -> Operation:
        """An open operation.

        Raises:
            ConflictError: none of that id is.
        """
        state = self._recorder.state
        operation = state.operations.get(operation_id)
        if operation is None:
            raise ConflictError(
                f"operation {operation_id}",
                "it is not open in this run.",
                f"Open are: {', '.join(op.id for op in state.open_operations) or 'none'}.",
            )
        return operation

    async def _record_decision(
        self, decision: Decision, *, unless_decided: bool = False
    ) -> DecisionResult:
        async with self._turn:
            state = self._recorder.state
            if unless_decided and decision.operation_id in state.decisions:
                return DecisionResult(state.decisions[decision.operation_id], "decided already")
            operation = self._open_operation(decision.operation_id)
            superseded = operation.id in state.decisions
            settled = await self._resolve(operation, replace(decision, at=self._clock()))
            paid = self._take_usage()
            await self._recorder.record(ev.OperationDecided(state.step, settled.decision, paid))
            if operation.kind == "weights":
                pass  # no draft holds it, and nothing rests on it
            elif superseded:
                self._draft = None
                await self._ask_again(operation.id)
            elif self._draft is not None and settled.decision.action != "defer":
                # One decision further, not all of them again: lessons can be long.
                self._draft = self._make_draft(self._draft, [(operation, settled.decision)])
            self._notify()
            return settled

    def unparsed_reply(self, repair_id: str) -> UnparsedReply:
        """A reply that waits to be mended.

        Raises:
            ConflictError: none of that id does.
        """
        state = self._recorder.state
        found = state.repairs.get(repair_id)
        if found is None:
            done = state.repaired.get(repair_id)
            raise ConflictError(
                f"reply {repair_id}",
                f"it was {done} already." if done else "no such reply waits to be mended.",
                f"Waiting are: {', '.join(state.repairs) or 'none'}.",
            )
        return found

    async def resubmit(
        self, repair_id: str, operations: Sequence[Operation], reviewer: str
    ) -> tuple[Operation, ...]:
        """Journal the operations of a mended reply, linted, to be decided like all others.

        Raises:
            ConflictError: no such reply waits.
        """
        async with self._turn:
            self.unparsed_reply(repair_id)
            linted = []
            for operation in operations:
                beside = [other for other in operations if other.id != operation.id]
                flags = await self._lint(operation, self.draft(), beside)
                linted.append(replace(operation, flags=(*operation.flags, *flags)))
            step = self._recorder.state.step
            mended = ev.ReplyMended(step, repair_id, tuple(linted), reviewer, self._take_usage())
            await self._recorder.record(mended)
            self._notify()
            written = self._recorder.state.operations
            return tuple(written[operation.id] for operation in linted)

    async def drop(self, repair_id: str, reason: str, reviewer: str) -> None:
        """Let a reply go that could not be understood; it stays lost.

        Raises:
            ConflictError: no such reply waits.
        """
        async with self._turn:
            self.unparsed_reply(repair_id)
            step = self._recorder.state.step
            await self._recorder.record(ev.ReplyDropped(step, repair_id, reason, reviewer))

    async def undo(self, operation_id: str) -> tuple[str, ...]:
        """Take a standing decision back; returns every operation that is asked again.

        Decisions that no longer fit without it are taken back too, and so are the
        gate's own rejections that would now fit.

        Raises:
            ConflictError: no decision about it stands.
        """
        async with self._turn:
            state = self._recorder.state
            if operation_id not in state.decisions:
                raise ConflictError(
                    f"operation {operation_id}", "no decision about it stands.", "Nothing to undo."
                )
            await self._recorder.record(ev.DecisionUndone(state.step, operation_id))
            self._draft = None
            undone = (operation_id, *await self._ask_again(operation_id))
            self._let_go = False  # who takes something back is not done
            self._notify()
            return undone

    async def commit(self, step: int) -> CommitResult:
        """Apply every standing decision as one version, library journal first.

        Where the head has moved since the lesson was proposed, the lesson goes back to
        review, flagged, and is committed on the new head.

        Raises:
            HoldExpired: the reviewers leave an operation of the step undecided.
        """
        state = self._recorder.state
        told = state.steps.get(step)
        if told is not None and told.committed:  # found and told of by `follow_head`
            return CommitResult(self._base, told.outcomes)
        while True:
            # An undo under way must be on disk before its decision could be applied.
            async with self._turn:
                if step not in state.steps or not state.undecided_operations:
                    done, head = await self._try_commit(step)
                    if done is not None:
                        return await self._finish_commit(step, done)
                    await self._return_lesson(step, head)
            await self.review(step)
            if step in state.steps and state.undecided_operations:
                raise HoldExpired

    async def _finish_commit(self, step: int, done: CommitResult) -> CommitResult:
        """Carry out what was decided about weights, then tell of the commit.

        Cut off before it is told, it is found again in the library, and the weights are
        computed and changed again.
        """
        version, carried_out = await weights.carry_out(self._recorder.state, step, self._apply)
        done = CommitResult(done.library, (*done.outcomes, *carried_out))
        self._set_base(done.library)
        await self._recorder.record(_lesson_committed(step, done, version))
        return done

    async def _try_commit(self, step: int) -> tuple[CommitResult | None, Library]:
        """Commit on the head, unless it has moved; the head comes second."""
        async with self._locked_library() as library:
            reviewed = self._recorder.state.reviewed_operations
            done = library.earlier_commit(self._run, step, self._base.version)
            if done is None and library.head.version == self._base.version:
                done = library.commit(reviewed, run=self._run, step=step, limit=self._limit)
            return done, library.head

    @asynccontextmanager
    async def _locked_library(self) -> AsyncIterator[Committer]:
        """The library under its lock; the run goes on while another process holds that.

        Raises:
            LockedError: another process holds it for longer than `LOCK_S`.
        """
        with ExitStack() as stack:
            loop = asyncio.get_running_loop()
            until = loop.time() + LOCK_S
            while True:
                try:
                    library = stack.enter_context(self._folder.lock_for_commit(timeout_s=0.0))
                    break
                except LockedError:
                    if loop.time() >= until:
                        raise
                await asyncio.sleep(_LOOK_S)
            yield library

    async def _return_lesson(self, step: int, head: Library) -> None:
        """Move to a newer head: what it touched is asked again, the rest stands there."""
        base = self._base
        draft, asked_again, renamed = head, [], []
        born: dict[str, str] = {}  # id an addition of this lesson was given → its id now
        number = head.next_number
        for operation, decision in self._recorder.state.reviewed_operations:
            wanted = effective_operation(operation, decision)
            objection = draft.objection(wanted, self._limit)
            if decision.action == "reject":
                if decision.reviewer == GATE and decision.reason != objection:
                    asked_again.append(operation.id)
                continue
            if objection or not self._is_untouched(wanted.target, base, head, born):
                asked_again.append(operation.id)
                continue
            if decision.assigned:
                born[decision.assigned] = f"E{max(number, int(decision.assigned[1:]))}"
                number = int(born[decision.assigned][1:]) + 1
                if born[decision.assigned] != decision.assigned:
                    decision = replace(decision, assigned=born[decision.assigned])
                    renamed.append(decision)
            draft = self._make_draft(draft, [(operation, decision)])
        self._set_base(head)
        await self._recorder.record(
            ev.LessonReturned(step, base.version, head.version, tuple(asked_again))
        )
        for decision in renamed:
            await self._recorder.record(ev.OperationDecided(step, decision))
        self._notify()

    @staticmethod
    def _is_untouched(
        target: str | None, base: Library, head: Library, born: Mapping[str, str]
    ) -> bool:
        """Whether an operation's target still is what it was when it was decided on."""
        if target is None:
            return True
        if target in born:
            return born[target] == target
        before, after = base.get(target), head.get(target)
        return before is not None and after is not None and before.text == after.text

    def _set_base(self, library: Library) -> None:
        self._base, self._draft = library, None

    def _make_draft(self, library: Library, reviewed: Reviewed) -> Library:
        drafted = library.commit(reviewed, run=self._run, limit=self._limit).library
        return replace(drafted, version=self._base.version + 1)

    async def _ask_again(self, changed: str) -> list[str]:
        """Take back what no longer follows once the decision about `changed` is another."""
        undone: list[str] = []
        state = self._recorder.state
        while unfit := self._first_misfit():
            undone.append(unfit)
            await self._recorder.record(
                ev.DecisionUndone(state.step, unfit, f"rested on {changed}")
            )
        self._draft = None
        return undone

    async def _resolve(self, operation: Operation, decision: Decision) -> DecisionResult:
        decision = replace(decision, flags=())  # they are the gate's to find
        if operation.kind == "weights":
            weights.check_decision(decision)
            return DecisionResult(decision)
        if decision.action in ("reject", "defer"):
            return DecisionResult(decision)
        wanted, draft, objection = self._check_decision(operation, decision)
        if objection:
            note = f"rejected: {objection}"
            refused = replace(decision, action="reject", reason=objection, reviewer=GATE)
            return DecisionResult(refused, note)
        if decision.action == "edit":
            decision = replace(decision, flags=await self._lint(wanted, draft, ()))
        if wanted.kind != "add":
            return DecisionResult(decision)
        assigned = self._free_id(self._base)
        return DecisionResult(replace(decision, assigned=assigned), f"becomes {assigned}")

    def _check_decision(
        self, operation: Operation, decision: Decision
    ) -> tuple[Operation, Library, str | None]:
        """The operation as it would be applied, the draft without it, and what speaks against."""
        draft = self.draft()
        if operation.id in self._recorder.state.decisions:
            # Its own earlier decision must not stand in the way of a new one.
            others = [
                pair
                for pair in self._recorder.state.reviewed_operations
                if pair[0].id != operation.id
            ]
            draft = self._make_draft(self._base, others)
        wanted = effective_operation(operation, decision)
        return wanted, draft, self._objection(wanted, draft)

    def _objection(self, wanted: Operation, draft: Library) -> str | None:
        if wanted.kind == "add" and wanted.target is not None:
            # Only a revert, which knows the old text, may bring an id back.
            return "an addition names no experience"
        if wanted.kind == "weights":
            return "only an engine proposes weights"
        return draft.objection(wanted, self._limit)

    async def _lint(
        self, operation: Operation, draft: Library, beside: Sequence[Operation]
    ) -> tuple[Flag, ...]:
        """What is noteworthy about an operation as it would be applied.

        Args:
            operation: with an edit put in.
            draft: the library without it.
            beside: operations that are not in the journal yet.
        """
        if self._linter is None:
            return ()
        state = self._recorder.state
        others = [op for op in state.open_operations if op.id != operation.id]
        # An approved addition is found in the draft; of a target only its new text would be.
        others += [
            op
            for op, decision in state.reviewed_operations
            if decision.action != "reject"
            and op.id != operation.id
            and operation.target is not None
            and effective_operation(op, decision).target == operation.target
        ]
        return await self._linter.flags(operation, draft, (*others, *beside))

    def _take_usage(self) -> Usage:
        return self._linter.take_usage() if self._linter is not None else NO_USAGE

    def _free_id(self, base: Library) -> str:
        """The id after every one that a standing decision or the base has taken.

        One that an undo freed may be given again: whatever rested on it was asked again.
        """
        standing = self._recorder.state.decisions.values()
        taken = [int(d.assigned[1:]) for d in standing if d.assigned]
        return f"E{max(base.next_number, *(number + 1 for number in taken), 1)}"

    def _first_misfit(self) -> str | None:
        """An operation whose standing decision does not follow from those before it."""
        draft = self._base
        for operation, decision in self._recorder.state.reviewed_operations:
            objection = draft.objection(effective_operation(operation, decision), self._limit)
            approved = decision.action in ("approve", "edit")
            if approved and objection:
                return operation.id
            if decision.reviewer == GATE and decision.reason != objection:
                return operation.id
            draft = self._make_draft(draft, [(operation, decision)])
        return None

    def _notify(self) -> None:
        self._stirred.set()
        for reviewer in self._reviewers:
            if isinstance(reviewer, HumanReviewer):
                reviewer.notify()


def _lesson_committed(step: int, done: CommitResult, policy_version: int) -> ev.LessonCommitted:
    library = done.library
    return ev.LessonCommitted(
        step,
        library.version,
        library.content_hash,
        done.outcomes,
        policy_version,
        library.remembered,
    )
