"""What a person does in a review: check and decide, in batches too, undo and redo.

The screen's review page and line mode both act through `Decider`. Nothing counts as decided before
the run has written it to disk.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from engines.core.errors import ConflictError
from engines.core.library import effective_operation
from engines.core.text.sanitize import one_line
from engines.core.types import GATE, Decision, DecisionPreview, Flag, Operation, OperationKind
from studio.render.words import DONE, misfit_text
from studio.session.requests import Decide, Propose, Undo
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


def inverse_operation(made: UndoEntry, texts: Mapping[str, str]) -> Operation | str:
    """The operation that would take a committed change back, or why there is none."""
    decision = made.decision
    if decision.action in ("reject", "defer") or decision.reviewer == GATE:
        return f"{made.id} changed nothing: there is nothing to take back"
    wanted = effective_operation(made.operation, decision)
    why = f"undoes {made.id}, approved by {decision.reviewer or 'nobody'}"
    match wanted.kind:
        case "add":
            name = wanted.target or decision.assigned or ""
            if name not in texts:
                return f"{name or made.id} is gone already"
            return Operation("", "delete", name, rationale=why)
        case "modify":
            if wanted.target is None or wanted.target not in texts:
                return f"{wanted.target} is gone, so its old wording cannot come back"
            if not made.was or texts[wanted.target] == made.was:
                return f"{wanted.target} reads as it did before {made.id}"
            return Operation("", "modify", wanted.target, made.was, why)
        case "delete":
            if wanted.target in texts:
                return f"{wanted.target} is there"
            return Operation("", "add", wanted.target, made.was, why)
        case "pin" | "unpin":
            inverse: OperationKind = "unpin" if wanted.kind == "pin" else "pin"
            return Operation("", inverse, wanted.target, rationale=why)
        case "weights":
            return (
                f"{made.id} changed the weights: the old ones come back by a new run with"
                " policy.adapter=run:RUN@STEP, a checkpoint before it"
            )
        case "keep":
            return f"{made.id} kept {wanted.target}: there is nothing to take back"


def decision_line(made: Sequence[UndoEntry], *, noted: bool = True) -> str:
    """What was done, on one line: `approved op1.2 (becomes E7); u undoes`."""
    if len(made) == 1:
        one = made[0]
        action = DONE[one.decision.action]
        if one.decision.reviewer == GATE:
            return f"{one.id} {misfit_text(one.decision.reason)} (u takes that back)"
        note = f" ({one.decision.note})" if noted and one.decision.note else ""
        return f"{action} {one.id}{note}; u undoes"
    refused = [each for each in made if each.decision.reviewer == GATE]
    text = f"{DONE[made[0].decision.action]} {len(made) - len(refused)}; u undoes all of them"
    if refused:
        reasons = ", ".join(f"{each.id}: {each.decision.reason}" for each in refused[:3])
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
class _UndoProgress:
    """What became of a step that is taken back, operation by operation."""

    session: Session
    texts: Mapping[str, str]
    step: Step
    left: list[UndoEntry] = field(default_factory=list)  # not taken back yet
    undone: list[UndoEntry] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)  # undecided by it, others among them
    restored: list[Decision] = field(default_factory=list)  # what stood before, once more
    proposed: list[Operation] = field(default_factory=list)
    words: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.left = list(self.step)

    async def propose_inverse(self, made: UndoEntry) -> None:
        """Propose what takes a committed decision back, or say why nothing does."""
        wanted = inverse_operation(made, self.texts)
        if isinstance(wanted, str):
            self.words.append(wanted)
            return
        session = self.session
        try:
            self.proposed.append(await session.send(Propose(wanted, session.who)))
        except ConflictError:
            if wanted.kind != "add" or wanted.target is None:
                raise
            # Only a revert of a whole version gives an id back.
            anew = Propose(replace(wanted, target=None), session.who)
            self.proposed.append(await session.send(anew))
            self.words.append(f"{wanted.target} comes back under a new id")

    @property
    def result(self) -> ActionResult:
        stands = {decision.operation_id for decision in self.restored}
        names = tuple(name for name in dict.fromkeys(self.asked) if name not in stands)
        again = [d for d in self.restored if d.reviewer != GATE]
        rejected = [d for d in self.restored if d.reviewer == GATE]
        parts = [f"{d.operation_id}: {DONE[d.action]} again, as before" for d in again]
        parts += [f"{d.operation_id} {misfit_text(d.reason)}" for d in rejected]
        if names:
            parts.insert(0, f"asked again: {', '.join(names)} (ctrl+r decides as before)")
        parts += [
            f"{op.id} is proposed: {op.kind} {op.target or 'anew'} takes back what was committed"
            for op in self.proposed
        ]
        return ActionResult(
            "; ".join([*parts, *self.words]),
            failed=not (self.undone or self.proposed),
            asked_again=names,
            go_to=self.proposed[-1].id if self.proposed else self.step[0].id,
        )


def draft_texts(
    base: Iterable[tuple[str, str]], reviewed: Iterable[tuple[Operation, Decision]]
) -> dict[str, str]:
    """Texts of the library as the standing decisions would leave it, by id.

    The gate has checked each decision against those before it, so that no objection is left
    to be looked for: `Library.commit` gives the same, a thousand times slower.
    """
    return draft_and_deleted(base, reviewed)[0]


def draft_and_deleted(
    base: Iterable[tuple[str, str]], reviewed: Iterable[tuple[Operation, Decision]]
) -> tuple[dict[str, str], dict[str, str]]:
    """The same, and by operation id what the experiences said that decisions delete."""
    texts, deleted = dict(base), {}
    for operation, decision in reviewed:
        if decision.action not in ("approve", "edit"):
            continue
        wanted = effective_operation(operation, decision)
        match wanted.kind:
            case "add":
                name = wanted.target or decision.assigned
                if name:
                    texts[name] = one_line(wanted.text)
            case "modify":
                if wanted.target in texts:
                    texts[wanted.target] = one_line(wanted.text)
            case "delete":
                deleted[operation.id] = texts.pop(wanted.target or "", "")
            case "keep" | "pin" | "unpin":
                pass
    return texts, deleted


def new_flags(
    operation: Operation, found: DecisionPreview, gone: Iterable[str] = ()
) -> tuple[Flag, ...]:
    """Flags that an edit brings; that it is like one that is `gone` with it is no news."""
    known = [flag for flag in found.flags if any(f" of {name}: " in flag.detail for name in gone)]
    return tuple(flag for flag in found.flags if flag not in (*operation.flags, *known))


async def toggle_pin(session: Session, target: str, *, pinned: bool, person: str) -> str:
    """Pin an experience or unpin it, approved at once: the person asked for just that.

    Once more takes that back. Returns what to tell.
    """
    if drafted := session.state.drafted_pin(target):
        await session.send(Undo(drafted))
        return f"{drafted} is withdrawn: {target} is as it was"
    wanted = Operation("", "unpin" if pinned else "pin", target, proposer=person)
    made = await session.send(Propose(wanted, session.who))
    await session.send(Decide((Decision(made.id, "approve", reviewer=person),)))
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
        made: list[UndoEntry] = []
        for (operation, asked), decision in zip(pairs, decisions, strict=True):
            was = texts.get(effective_operation(operation, asked).target or "", "")
            before = earlier.get(operation.id)
            made.append(UndoEntry(operation, decision, asked, before, was))
            texts = draft_texts(texts.items(), [(operation, decision)])
        self.sitting.add(tuple(made))
        failed = any(one.decision.reviewer == GATE for one in made)
        return ActionResult(decision_line(made), failed, tuple(made))

    async def undo(
        self, session: Session, texts: Mapping[str, str], person: str = ""
    ) -> ActionResult:
        """Take the last step back, or propose its inverse where it is committed.

        What a decision had replaced is decided again.

        `texts` are those of the library as the standing decisions would leave it. The last
        decision of `person` is taken back first where it was made elsewhere, as on another page.
        """
        state, sitting = session.state, self.sitting
        if person:
            before = last_step_of(state.decisions, state.operations, person)
            known = {one.id for step in sitting.steps for one in step}
            sitting.steps += [before] if before and before[0].id not in known else []
        if not sitting.steps:
            nothing = "nothing was decided in this session: there is nothing to take back"
            return ActionResult(nothing, failed=True)
        # Each by itself: some of a step may be committed, and the rest still be open.
        done = _UndoProgress(session, texts, sitting.steps.pop())
        try:
            for made in reversed(done.step):
                await self._take_back(made, done)
                done.left.remove(made)
        finally:
            if done.left:
                sitting.steps.append(tuple(done.left))
            if done.undone:
                sitting.undone.append(tuple(reversed(done.undone)))
                sitting.done = max(0, sitting.done - len(done.undone))
        return done.result

    async def _take_back(self, made: UndoEntry, done: _UndoProgress) -> None:
        """One decision: undo it, or propose its inverse where it is committed."""
        session, name = done.session, made.id
        state = session.state
        if name not in state.operations:
            await done.propose_inverse(made)
        elif name in state.decisions:
            withdrawn = state.is_withdrawn_by_undo(name, made.decision)
            asked = await session.send(Undo(name))
            done.undone.append(made)
            if withdrawn:
                done.words.append(f"{name} is withdrawn: {made.operation.target} is as it was")
            done.asked += [each for each in asked if each != name or not withdrawn]
            if made.earlier is not None and made.earlier.reviewer != GATE:
                # What the gate rejected it judges anew by itself.
                decisions = await session.send(Decide((renew_decision(made.earlier),)))
                done.restored += decisions
        elif made.decision.action == "defer":
            done.words.append(f"{name} was put off; it is still open")
        else:
            done.words.append(f"{name} was taken back elsewhere already")

    async def redo(self, session: Session) -> ActionResult:
        """Decide again what was last taken back; what the run refuses stays to be made again."""
        if not self.sitting.undone:
            return ActionResult("nothing was taken back: there is nothing to decide again", True)
        step, open_ = self.sitting.undone.pop(), session.state.operations
        pin = step[0].operation
        if pin.kind in ("pin", "unpin") and pin.id not in open_:  # it was withdrawn
            pin = await session.send(Propose(replace(pin, id=""), session.who))
            open_ = {**open_, pin.id: pin}
            step = (UndoEntry(pin, replace(step[0].decision, operation_id=pin.id)),)
        gone = [one.id for one in step if one.id not in open_]
        left = [one for one in step if one.id not in gone]
        asked = [renew_decision(one.asked or one.decision) for one in left]
        try:
            decisions = await session.send(Decide(tuple(asked))) if left else ()
        except BaseException:
            self.sitting.undone.append(tuple(left))
            raise
        made = [
            replace(one, decision=decision) for one, decision in zip(left, decisions, strict=True)
        ]
        if made:
            self.sitting.steps.append(tuple(made))
            self.sitting.done += len(made)
        words = [f"again: {decision_line(made, noted=False)}"] if made else []
        words += [f"{name} is not open any more" for name in gone]
        return ActionResult("; ".join(words), not made, tuple(made), go_to=step[0].id)
