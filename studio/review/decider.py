"""What a person does in a review: check and decide, in batches too, undo and redo.

The screen's review page and line mode both act through `Decider`. Nothing counts as decided before
the run has written it to disk.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from engines.core.library import effective_operation
from engines.core.text.sanitize import one_line
from engines.core.types import GATE, Decision, Flag, Operation, OperationKind
from studio.render.words import DONE, misfit_text
from studio.session.requests import Decide, Preview, Propose, Undo
from studio.session.session import Session


@dataclass(frozen=True, slots=True)
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


Pair = tuple[Operation, Decision]


@dataclass(frozen=True, slots=True)
class ActionResult:
    """What came of a request: in words, and where the cursor belongs now."""

    text: str
    failed: bool = False
    made: tuple[UndoEntry, ...] = ()
    asked_again: tuple[str, ...] = ()  # operations that `undo` left undecided
    go_to: str = ""


@dataclass(slots=True)
class Draft:
    """The library as standing decisions would leave it.

    The gate has checked each decision against those before it, so that no objection is left
    to be looked for: `Library.commit` gives the same, a thousand times slower.
    """

    texts: dict[str, str]
    pinned: set[str] = field(default_factory=set)
    replaced: dict[str, str] = field(default_factory=dict)  # what a target said, by operation

    def apply(self, reviewed: Iterable[Pair]) -> None:
        """Apply decisions in the order in which they were made."""
        for operation, decision in reviewed:
            if decision.action in ("approve", "edit"):
                self._apply(effective_operation(operation, decision), decision.assigned)

    def _apply(self, operation: Operation, assigned: str | None) -> None:
        name = operation.target or assigned or ""
        before = self.replaced[operation.id] = self.texts.get(name, "")
        match operation.kind:
            case "add" if name:
                self.texts[name] = one_line(operation.text)
            case "modify" if before:
                self.texts[name] = one_line(operation.text)
            case "delete":
                self.texts.pop(name, None)
            case "pin":
                self.pinned.add(name)
            case "unpin":
                self.pinned.discard(name)


async def check_wording(
    session: Session, operation: Operation, edit: Decision, merged: Sequence[str] = ()
) -> tuple[str, tuple[Flag, ...]]:
    """Return what speaks against an edit ("": it fits), and the flags that are new with it.

    That it is like one of those that are `merged` into it is no news.
    """
    (preview,) = await session.send(Preview((edit,)))
    return preview.objection, new_flags(operation, preview.flags, merged)


def new_flags(
    operation: Operation, flags: Sequence[Flag], gone: Iterable[str] = ()
) -> tuple[Flag, ...]:
    """Return the flags that an edit brings, but for likeness to what is `gone` with it."""
    likenesses = [f" of {name}: " for name in gone]
    return tuple(
        flag
        for flag in flags
        if flag not in operation.flags and not any(text in flag.detail for text in likenesses)
    )


async def toggle_pin(session: Session, target: str, *, pinned: bool, person: str) -> str:
    """Pin an experience or unpin it, approved at once: the person asked for just that.

    Once more takes that back. Returns what to tell.
    """
    if drafted := session.state.drafted_pin(target):
        await session.send(Undo(drafted))
        return f"{drafted} is withdrawn: {target} is as it was"
    wanted = Operation("", "unpin" if pinned else "pin", target, proposer=person)
    proposed = await session.send(Propose(wanted, session.who))
    await session.send(Decide((Decision(proposed.id, "approve", reviewer=person),)))
    return f"{target} is {wanted.kind}ned with the next commit; u in 2 Review takes it back"


class Decider:
    """What one person decides in one run."""

    def __init__(self) -> None:
        self.sitting = UndoStack()
        self.busy: set[str] = set()  # operations whose decision is under way

    async def decide(
        self, session: Session, pairs: Sequence[Pair], texts: Mapping[str, str]
    ) -> ActionResult:
        """Hand decisions in, several as one record: all stand, or none. One step for `u`.

        Raises ConflictError: the run refuses one of them, so that none is made.
        """
        names = {operation.id for operation, _ in pairs}
        earlier = dict(session.state.decisions)
        self.busy |= names
        try:
            decisions = await session.send(Decide(tuple(asked for _, asked in pairs)))
        finally:
            self.busy -= names
        draft = Draft(dict(texts))
        step: list[UndoEntry] = []
        for (operation, asked), decision in zip(pairs, decisions, strict=True):
            draft.apply([(operation, decision)])
            was = draft.replaced.get(operation.id, "")
            step.append(UndoEntry(operation, decision, asked, earlier.get(operation.id), was))
        self.sitting.add(tuple(step))
        failed = any(entry.decision.reviewer == GATE for entry in step)
        return ActionResult(decision_line(step), failed, tuple(step))

    async def undo(
        self, session: Session, texts: Mapping[str, str], person: str = ""
    ) -> ActionResult:
        """Take the last step back, or propose its inverse where it is committed.

        What a decision had replaced is decided again.

        `texts` are those of the library as the standing decisions would leave it. The last
        decision of `person` is taken back first where it was made elsewhere, as on another page.
        """
        sitting = self.sitting
        if person:
            before = last_step_of(session.state.decisions, session.state.operations, person)
            names = {entry.id for step in sitting.steps for entry in step}
            if before and before[0].id not in names:
                sitting.steps.append(before)
        if not sitting.steps:
            nothing = "nothing was decided in this session: there is nothing to take back"
            return ActionResult(nothing, failed=True)
        step = sitting.steps.pop()
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
                sitting.steps.append(tuple(left))
            if undone:
                sitting.undone.append(tuple(undone))
                sitting.done = max(0, sitting.done - len(undone))
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
        if not self.sitting.undone:
            return ActionResult("nothing was taken back: there is nothing to decide again", True)
        step = self.sitting.undone.pop()
        open_entries = [entry for entry in step if entry.id in session.state.operations]
        gone = [entry.id for entry in step if entry not in open_entries]
        asked = [renew_decision(entry.asked or entry.decision) for entry in open_entries]
        words = [f"{name} is not open any more" for name in gone]
        if not asked:
            return ActionResult("; ".join(words), failed=True, go_to=step[0].id)
        try:
            decisions = await session.send(Decide(tuple(asked)))
        except BaseException:
            self.sitting.undone.append(tuple(open_entries))
            raise
        again = tuple(
            replace(entry, decision=decision)
            for entry, decision in zip(open_entries, decisions, strict=True)
        )
        self.sitting.steps.append(again)
        self.sitting.done += len(again)
        text = "; ".join([f"again: {decision_line(again)}", *words])
        return ActionResult(text, made=again, go_to=step[0].id)
