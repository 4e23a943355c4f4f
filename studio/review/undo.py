"""Undo and redo of a person's decisions: what each replaced, and the inverse of a committed one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from engines.core.frozen import frozen
from engines.core.library import effective_operation
from engines.core.types import GATE, Decision, Operation, OperationKind
from studio.render.words import DONE, misfit_text
from studio.session.requests import Decide, Propose, Undo
from studio.session.session import Session


@frozen
class UndoEntry:
    """One decision: what it replaced, and what its target said before it."""

    operation: Operation
    decision: Decision  # as it was journalled
    asked: Decision | None = None  # as it was asked for; None: it was made before
    earlier: Decision | None = None
    was: str = ""  # the target's text; "" where there was none

    @property
    def id(self) -> str:
        return self.operation.id


Step = tuple[UndoEntry, ...]
"""What one key did, and one `u` takes back."""


@frozen
class ActionResult:
    """What came of a request: in words, and where the cursor belongs now."""

    text: str
    failed: bool = False
    made: tuple[UndoEntry, ...] = ()
    asked_again: tuple[str, ...] = ()  # operations that `undo` left undecided
    go_to: str = ""


@dataclass(slots=True)
class UndoStack:
    """Everything one person decided in this session, newest last."""

    steps: list[Step] = field(default_factory=list)
    undone: list[Step] = field(default_factory=list)
    done: int = 0

    def add(self, step: Step) -> None:
        """Something new was decided: what was undone before cannot be redone."""
        self.steps.append(step)
        self.undone.clear()
        self.done += len(step)

    async def undo(
        self, session: Session, texts: Mapping[str, str], person: str = ""
    ) -> ActionResult:
        """Take the last step back, or propose its inverse where it is committed.

        What a decision had replaced is decided again.

        `texts` are those of the library as the standing decisions would leave it. The last
        decision of `person` is taken back first where it was made elsewhere, as on another page.
        """
        if person:
            before = last_step_of(session.state.decisions, session.state.operations, person)
            names = {entry.id for step in self.steps for entry in step}
            if before and before[0].id not in names:
                self.steps.append(before)
        if not self.steps:
            nothing = "nothing was decided in this session: there is nothing to take back"
            return ActionResult(nothing, failed=True)
        step = self.steps.pop()
        left, undone = list(step), list[UndoEntry]()
        words, asked, go_to = list[str](), list[str](), step[0].id
        # Each by itself: some of a step may be committed, and the rest still be open.
        try:
            for entry in reversed(step):
                if entry.id in session.state.decisions:
                    asked += await self._withdraw(session, entry, words)
                    undone.insert(0, entry)
                elif entry.id in session.state.operations:
                    what = "was taken back elsewhere already"
                    if entry.decision.action == "defer":
                        what = "was put off; it is still open"
                    words.append(f"{entry.id} {what}")
                elif isinstance(inverse := inverse_operation(entry, texts), str):
                    words.append(inverse)
                else:
                    proposed = await session.send(Propose(inverse, session.who))
                    what = f"{proposed.kind} {proposed.target or 'anew'}"
                    words.append(f"{proposed.id} is proposed: {what} takes back {entry.id}")
                    go_to = proposed.id
                left.remove(entry)
        finally:
            if left:
                self.steps.append(tuple(left))
            if undone:
                self.undone.append(tuple(undone))
                self.done = max(0, self.done - len(undone))
        if asked := list(dict.fromkeys(asked)):
            words.insert(0, f"asked again: {', '.join(asked)} (ctrl+r decides as before)")
        is_done = bool(undone) or go_to != step[0].id
        return ActionResult("; ".join(words), not is_done, (), tuple(asked), go_to)

    async def _withdraw(
        self, session: Session, entry: UndoEntry, words: list[str]
    ) -> Sequence[str]:
        """Undo one decision; returns what is asked again by it."""
        is_withdrawn = session.state.is_withdrawn_by_undo(entry.id, entry.decision)
        asked = await session.send(Undo(entry.id))
        others = tuple(name for name in asked if name != entry.id)
        if is_withdrawn:
            words.append(f"{entry.id} is withdrawn: {entry.operation.target} is as it was")
            return others
        # What the gate rejected it judges again by itself.
        if entry.earlier is None or entry.earlier.reviewer == GATE:
            return asked
        (again,) = await session.send(Decide((renew_decision(entry.earlier),)))
        words.append(f"{entry.id}: {DONE[again.action]} again, as before")
        return others

    async def redo(self, session: Session) -> ActionResult:
        """Decide again what was last taken back; what the run refuses stays to be made again."""
        if not self.undone:
            return ActionResult("nothing was taken back: there is nothing to decide again", True)
        step = self.undone.pop()
        open_entries = [entry for entry in step if entry.id in session.state.operations]
        gone = [entry.id for entry in step if entry not in open_entries]
        asked = [renew_decision(entry.asked or entry.decision) for entry in open_entries]
        words = [f"{name} is not open any more" for name in gone]
        if not asked:
            return ActionResult("; ".join(words), failed=True, go_to=step[0].id)
        try:
            decisions = await session.send(Decide(tuple(asked)))
        except BaseException:
            self.undone.append(tuple(open_entries))
            raise
        again = tuple(
            replace(entry, decision=decision)
            for entry, decision in zip(open_entries, decisions, strict=True)
        )
        self.steps.append(again)
        self.done += len(again)
        text = "; ".join([f"again: {decision_line(again)}", *words])
        return ActionResult(text, made=again, go_to=step[0].id)


def last_step_of(
    decisions: Mapping[str, Decision], operations: Mapping[str, Operation], person: str
) -> Step:
    """This person's last decision before the session, as a step."""
    for name, decision in reversed(list(decisions.items())):
        if decision.reviewer == person and name in operations:
            return (UndoEntry(operations[name], decision),)
    return ()


def renew_decision(decision: Decision) -> Decision:
    """The same decision to be made again, without what the gate fills in."""
    return replace(decision, at=0.0, assigned=None, flags=())


def inverse_operation(entry: UndoEntry, texts: Mapping[str, str]) -> Operation | str:
    """The operation that would take a committed change back, or why there is none."""
    decision = entry.decision
    if decision.action in ("reject", "defer") or decision.reviewer == GATE:
        return f"{entry.id} changed nothing: there is nothing to take back"
    applied = effective_operation(entry.operation, decision)
    target = applied.target or decision.assigned or ""
    why = f"undoes {entry.id}, approved by {decision.reviewer or 'nobody'}"
    match applied.kind:
        case "add" if target in texts:
            return Operation("", "delete", target, rationale=why)
        case "modify" if target in texts and entry.was not in ("", texts[target]):
            return Operation("", "modify", target, entry.was, why)
        case "delete" if target not in texts:
            # Only a revert of a whole version gives an id back.
            return Operation("", "add", None, entry.was, f"{why}; it was {target}")
        case "pin" | "unpin":
            inverse: OperationKind = "unpin" if applied.kind == "pin" else "pin"
            return Operation("", inverse, target, rationale=why)
        case "weights":
            return (
                f"{entry.id} changed the weights: the old ones come back by a new run with"
                " policy.adapter=run:RUN@STEP, a checkpoint before it"
            )
        case _:
            return f"{target or entry.id} is as it was before {entry.id}, or is gone"


def decision_line(step: Sequence[UndoEntry]) -> str:
    """What was done, on one line: `approved op1.2 (becomes E7); u undoes`."""
    refused = [entry for entry in step if entry.decision.reviewer == GATE]
    first = step[0].decision
    if len(step) > 1:
        text = f"{DONE[first.action]} {len(step) - len(refused)}; u undoes all of them"
    elif refused:
        return f"{step[0].id} {misfit_text(first.reason)} (u takes that back)"
    else:
        note = f" ({first.note})" if first.note else ""
        return f"{DONE[first.action]} {step[0].id}{note}; u undoes"
    if refused:
        reasons = ", ".join(f"{entry.id}: {entry.decision.reason}" for entry in refused[:3])
        text += f"; {len(refused)} did not fit, so not taken ({reasons})"
    return text
