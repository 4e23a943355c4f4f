"""Handing decisions in, taking them back and making them again, one after the other.

Owns what was acknowledged and what is under way; knows no widget. The run decides what a
decision does; nothing counts as made here before it is on disk there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from engines.core.errors import ConflictError
from engines.core.events import DecisionUndone, LessonCommitted, OperationDecided
from engines.core.library import effective
from engines.core.run_state import RunState
from engines.core.types import GATE, Decision, Operation, own_operation_id
from studio.link.messages import Began, Message, Session, Told
from studio.tui.review_made import Made, Sitting, again, inverse, standing, told
from studio.tui.review_view import draft_texts

Pair = tuple[Operation, Decision]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a request: in words, and where the cursor belongs now."""

    text: str
    failed: bool = False
    made: tuple[Made, ...] = ()
    go_to: str = ""


class Decider:
    """The requests of one sitting with one run."""

    def __init__(self) -> None:
        self.sitting = Sitting()
        self.just: dict[str, Decision] = {}  # on disk, and not yet heard of as an event
        self.busy: set[str] = set()  # operations whose decision is under way

    def heard(self, message: Message) -> None:
        """What the run tells replaces what was merely acknowledged."""
        match message:
            case Began():
                self.just.clear()
            case Told(event=OperationDecided(decision=decision)):
                self.just.pop(decision.operation_id, None)
            case Told(event=DecisionUndone(operation_id=name)):
                self.just.pop(name, None)
            case Told(event=LessonCommitted()):
                self.just.clear()

    def decisions(self, state: RunState) -> dict[str, Decision]:
        """Those that stand, as far as is known here."""
        return {**state.decisions, **self.just}

    def reviewed(self, state: RunState, without: str = "") -> list[Pair]:
        """Standing decisions in the order in which they were made."""
        return [
            (state.operations[name], decision)
            for name, decision in self.decisions(state).items()
            if name in state.operations and name != without
        ]

    async def decide(
        self, session: Session, pairs: Sequence[Pair], texts: Mapping[str, str]
    ) -> Outcome:
        """Hand decisions in, one by one; they are one step for `u`.

        What was made before one was refused stays made, and is said.

        Raises:
            ConflictError: the run refuses the first of them.
        """
        made: list[Made] = []
        notes: list[str] = []
        refused = ""
        names = {operation.id for operation, _ in pairs}
        self.busy |= names
        try:
            for operation, asked in pairs:
                earlier = self.decisions(session.state).get(operation.id)
                target = effective(operation, asked).target
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
                made.append(Made(operation, done, asked, earlier, was))
                notes.append(note)
                texts = draft_texts(texts.items(), [(operation, done)])
        finally:
            self.busy -= names
            if made:
                self.sitting.add(tuple(made))
        text = told(made, notes)
        if refused:
            return Outcome(f"{text}; then: {refused}", True, tuple(made))
        failed = any(one.decision.reviewer == GATE for one in made)
        return Outcome(text, failed, tuple(made))

    async def undo(self, session: Session, texts: Mapping[str, str], person: str) -> Outcome:
        """Take the last step back, or propose its inverse where it is committed.

        Raises:
            ConflictError: the run refuses.
        """
        state = session.state
        sitting = self.sitting
        if not sitting.steps and (
            before := standing(self.decisions(state), state.operations, person)
        ):
            sitting.steps.append(before)
        if not sitting.steps:
            return Outcome(
                "nothing was decided in this sitting: there is nothing to take back", True
            )
        step = sitting.steps[-1]
        if not any(made.id in state.operations for made in step):
            return await self._inverted(session, step, texts)
        asked: list[str] = []
        for made in reversed(step):
            if made.id not in self.decisions(session.state):
                continue  # taken back elsewhere, or along with another one
            asked += await session.undo(made.id)
            for name in asked:
                self.just.pop(name, None)
            if made.earlier is not None:
                await session.decide(again(made.earlier))
        sitting.steps.pop()
        sitting.undone.append(step)
        sitting.done = max(0, sitting.done - len(step))
        names = ", ".join(dict.fromkeys(asked))
        if not names:
            return Outcome(f"{step[0].id} was taken back elsewhere already", go_to=step[0].id)
        return Outcome(f"asked again: {names} (ctrl+r decides as before)", go_to=step[0].id)

    async def redo(self, session: Session) -> Outcome:
        """Decide again what was last taken back.

        Raises:
            ConflictError: the run refuses; it stays to be made again.
        """
        if not self.sitting.undone:
            return Outcome("nothing was taken back: there is nothing to decide again", True)
        step = self.sitting.undone[-1]
        if any(made.id not in session.state.operations for made in step):
            self.sitting.undone.pop()
            return Outcome(f"{step[0].id} is not open any more", True)
        made = []
        for one in step:
            asked = again(one.asked or one.decision)
            done, _ = await session.decide(asked)
            if session.state.decisions.get(one.id) != done:
                self.just[one.id] = done
            made.append(replace(one, decision=done))
        self.sitting.undone.pop()
        self.sitting.steps.append(tuple(made))
        self.sitting.done += len(made)
        return Outcome(f"again: {told(made, [''])}", made=tuple(made), go_to=step[0].id)

    async def _inverted(
        self, session: Session, step: Sequence[Made], texts: Mapping[str, str]
    ) -> Outcome:
        proposed: list[Operation] = []
        words: list[str] = []
        for made in reversed(step):
            wanted = inverse(made, self._free_id(session.state), texts)
            if isinstance(wanted, str):
                words.append(wanted)
                continue
            try:
                proposed.append(await session.propose(wanted))
            except ConflictError:
                if wanted.kind != "add" or wanted.target is None:
                    raise
                # Only a revert of a whole version gives an id back.
                proposed.append(await session.propose(replace(wanted, target=None)))
                words.append(f"{wanted.target} comes back under a new id")
        self.sitting.steps.pop()
        told_ = [
            f"{op.id} waits: {op.kind} {op.target or 'anew'}, the inverse of what was committed"
            for op in proposed
        ]
        go_to = proposed[0].id if proposed else ""
        return Outcome("; ".join([*told_, *words]), not proposed, go_to=go_to)

    @staticmethod
    def _free_id(state: RunState) -> str:
        """An id of our own, so that a proposal that is sent twice is taken once."""
        number = 1
        while own_operation_id(state.step, number) in state.own:
            number += 1
        return own_operation_id(state.step, number)
