"""What a person does in a review: check and decide, in batches too.

The screen's review page and line mode both act through `Decider`. Nothing counts as decided before
the run has written it to disk.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from engines.core.library import effective_operation
from engines.core.text.sanitize import one_line
from engines.core.types import GATE, Decision, Flag, Operation
from studio.review.undo import ActionResult, UndoEntry, UndoStack, decision_line
from studio.session.requests import Decide, Preview, Propose, Undo
from studio.session.session import Session

Pair = tuple[Operation, Decision]


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
