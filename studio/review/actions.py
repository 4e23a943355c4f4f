"""Handing decisions in, taking them back and making them again, one after the other.

Owns what was acknowledged and what is under way; knows no widget. The run decides what a
decision does; nothing counts as made here before it is on disk there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from engines.core.errors import ConflictError
from engines.core.events import DecisionUndone, LessonCommitted, OperationDecided
from engines.core.library import effective_operation
from engines.core.state.run_state import RunState
from engines.core.types import GATE, Decision, Operation, human_operation_id
from studio.review.undo_stack import (
    PAST,
    Step,
    UndoEntry,
    UndoStack,
    decision_line,
    inverse_operation,
    last_step_of,
    renew_decision,
)
from studio.session.base import EventReceived, Message, Session, SnapshotReceived
from studio.tui.pages.review.view import draft_texts

Pair = tuple[Operation, Decision]


@dataclass(frozen=True, slots=True)
class ActionResult:
    """What came of a request: in words, and where the cursor belongs now."""

    text: str
    failed: bool = False
    made: tuple[UndoEntry, ...] = ()
    go_to: str = ""


@dataclass(slots=True)
class _UndoProgress:
    """What became of a step that is taken back, operation by operation."""

    step: Step
    left: list[UndoEntry] = field(default_factory=list)  # not taken back yet
    undone: list[UndoEntry] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)  # undecided by it, others among them
    restored: list[Decision] = field(default_factory=list)  # what stood before, once more
    proposed: list[Operation] = field(default_factory=list)
    words: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.left = list(self.step)

    @property
    def result(self) -> ActionResult:
        stands = {decision.operation_id for decision in self.restored}
        names = [name for name in dict.fromkeys(self.asked) if name not in stands]
        parts = [f"{d.operation_id}: {PAST[d.action]} again, as before" for d in self.restored
                 if d.reviewer != GATE]  # fmt: skip
        parts += [f"{d.operation_id} does not fit any more: {d.reason}" for d in self.restored
                  if d.reviewer == GATE]  # fmt: skip
        if names:
            parts.insert(0, f"asked again: {', '.join(names)} (ctrl+r decides as before)")
        parts += [
            f"{op.id} waits: {op.kind} {op.target or 'anew'}, the inverse of what was committed"
            for op in self.proposed
        ]
        go_to = self.proposed[-1].id if self.proposed else self.step[0].id
        failed = not (self.undone or self.proposed)
        return ActionResult("; ".join([*parts, *self.words]), failed, go_to=go_to)


class Decider:
    """The requests of one person at one screen with one run."""

    def __init__(self) -> None:
        self.sitting = UndoStack()
        self.just: dict[str, Decision] = {}  # on disk, and not yet heard of as an event
        self.busy: set[str] = set()  # operations whose decision is under way

    def handle_message(self, message: Message) -> None:
        """What the run tells replaces what was merely acknowledged."""
        match message:
            case SnapshotReceived():
                self.just.clear()
            case EventReceived(event=OperationDecided(decision=decision)):
                self.just.pop(decision.operation_id, None)
            case EventReceived(event=DecisionUndone(operation_id=name)):
                self.just.pop(name, None)
            case EventReceived(event=LessonCommitted()):
                self.just.clear()

    def decisions(self, state: RunState) -> dict[str, Decision]:
        """Those that stand, as far as is known here."""
        return {**state.decisions, **self.just}

    def decided_pairs(self, state: RunState, without: str = "") -> list[Pair]:
        """Standing decisions in the order in which they were made."""
        return [
            (state.operations[name], decision)
            for name, decision in self.decisions(state).items()
            if name in state.operations and name != without
        ]

    async def decide(
        self, session: Session, pairs: Sequence[Pair], texts: Mapping[str, str]
    ) -> ActionResult:
        """Hand decisions in, one by one; they are one step for `u`.

        What was made before one was refused stays made, and is said.

        Raises:
            ConflictError: the run refuses the first of them.
        """
        made: list[UndoEntry] = []
        notes: list[str] = []
        refused = ""
        names = {operation.id for operation, _ in pairs}
        self.busy |= names
        try:
            for operation, asked in pairs:
                earlier = self.decisions(session.state).get(operation.id)
                target = effective_operation(operation, asked).target
                was = texts.get(target or "", "")
                try:
                    done, note = await session.decide(asked)
                except ConflictError as error:
                    if not made:
                        raise
                    refused = str(error)
                    break
                if session.state.decisions.get(operation.id) != done:
                    self.just[operation.id] = done
                made.append(UndoEntry(operation, done, asked, earlier, was))
                notes.append(note)
                texts = draft_texts(texts.items(), [(operation, done)])
        finally:
            self.busy -= names
            if made:
                self.sitting.add(tuple(made))
        text = decision_line(made, notes)
        if refused:
            return ActionResult(f"{text}; then: {refused}", True, tuple(made))
        failed = any(one.decision.reviewer == GATE for one in made)
        return ActionResult(text, failed, tuple(made))

    async def undo(self, session: Session, texts: Mapping[str, str], person: str) -> ActionResult:
        """Take the last step back, or propose its inverse where it is committed.

        Raises:
            ConflictError: the run refuses.
        """
        state = session.state
        sitting = self.sitting
        if not sitting.steps and (
            before := last_step_of(self.decisions(state), state.operations, person)
        ):
            sitting.steps.append(before)
        if not sitting.steps:
            return ActionResult(
                "nothing was decided in this session: there is nothing to take back", True
            )
        # Each by itself: some of a step may be committed, and the rest still be open.
        done = _UndoProgress(sitting.steps[-1])
        try:
            for made in reversed(done.step):
                await self._take_back(session, made, texts, done)
                done.left.remove(made)
        finally:
            sitting.steps.pop()
            if done.left:
                sitting.steps.append(tuple(done.left))
            if done.undone:
                sitting.undone.append(tuple(reversed(done.undone)))
                sitting.done = max(0, sitting.done - len(done.undone))
        return done.result

    async def _take_back(
        self, session: Session, made: UndoEntry, texts: Mapping[str, str], done: _UndoProgress
    ) -> None:
        """One decision: undo it, or propose its inverse where it is committed."""
        state, name = session.state, made.id
        if name not in state.operations:
            await self._propose_inverse(session, made, texts, done)
        elif name in self.decisions(state):
            asked = await session.undo(name)
            for each in asked:
                self.just.pop(each, None)
            done.undone.append(made)
            done.asked += asked
            if made.earlier is not None and made.earlier.reviewer != GATE:
                # What the gate rejected it judges anew by itself.
                stands, _ = await session.decide(renew_decision(made.earlier))
                if session.state.decisions.get(name) != stands:
                    self.just[name] = stands
                done.restored.append(stands)
        elif made.decision.action == "defer":
            done.words.append(f"{name} was put off; it is still open")
        else:
            done.words.append(f"{name} was taken back elsewhere already")

    async def redo(self, session: Session) -> ActionResult:
        """Decide again what was last taken back.

        Raises:
            ConflictError: the run refuses; it stays to be made again.
        """
        if not self.sitting.undone:
            return ActionResult("nothing was taken back: there is nothing to decide again", True)
        step = self.sitting.undone.pop()
        gone = [one.id for one in step if one.id not in session.state.operations]
        left = [one for one in step if one.id not in gone]
        made: list[UndoEntry] = []
        try:
            for one in tuple(left):
                done, _ = await session.decide(renew_decision(one.asked or one.decision))
                if session.state.decisions.get(one.id) != done:
                    self.just[one.id] = done
                made.append(replace(one, decision=done))
                left.remove(one)
        finally:
            if left:
                self.sitting.undone.append(tuple(left))
            if made:
                self.sitting.steps.append(tuple(made))
                self.sitting.done += len(made)
        words = [f"again: {decision_line(made, [''])}"] if made else []
        words += [f"{name} is not open any more" for name in gone]
        return ActionResult("; ".join(words), not made, tuple(made), step[0].id)

    async def _propose_inverse(
        self, session: Session, made: UndoEntry, texts: Mapping[str, str], done: _UndoProgress
    ) -> None:
        wanted = inverse_operation(made, self._free_id(session.state), texts)
        if isinstance(wanted, str):
            done.words.append(wanted)
            return
        try:
            done.proposed.append(await session.propose(wanted))
        except ConflictError:
            if wanted.kind != "add" or wanted.target is None:
                raise
            # Only a revert of a whole version gives an id back.
            done.proposed.append(await session.propose(replace(wanted, target=None)))
            done.words.append(f"{wanted.target} comes back under a new id")

    @staticmethod
    def _free_id(state: RunState) -> str:
        """An id of our own, so that a proposal that is sent twice is taken once."""
        number = 1
        while human_operation_id(state.step, number) in state.own:
            number += 1
        return human_operation_id(state.step, number)
