"""What was decided in this session, so that it can be undone and redone. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from engines.core.library import effective_operation
from engines.core.types import GATE, Decision, Operation, OperationKind
from studio.report.decisions import DONE, misfit_text


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

    def forget(self, operation_ids: Collection[str]) -> None:
        """These were decided again, so that what was decided before cannot be taken back."""
        kept = (tuple(m for m in step if m.id not in operation_ids) for step in self.steps)
        self.steps = [step for step in kept if step]


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


def inverse_operation(
    made: UndoEntry, operation_id: str, texts: Mapping[str, str]
) -> Operation | str:
    """The operation of this id that would take a committed change back, or why there is none."""
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
            return Operation(operation_id, "delete", name, rationale=why)
        case "modify":
            if wanted.target is None or wanted.target not in texts:
                return f"{wanted.target} is gone, so its old wording cannot come back"
            if not made.was or texts[wanted.target] == made.was:
                return f"{wanted.target} reads as it did before {made.id}"
            return Operation(operation_id, "modify", wanted.target, made.was, why)
        case "delete":
            if wanted.target in texts:
                return f"{wanted.target} is there"
            return Operation(operation_id, "add", wanted.target, made.was, why)
        case "pin" | "unpin":
            inverse: OperationKind = "unpin" if wanted.kind == "pin" else "pin"
            return Operation(operation_id, inverse, wanted.target, rationale=why)
        case "weights":
            return (
                f"{made.id} changed the weights: the old ones come back by a new run with"
                " policy.adapter=run:RUN@STEP, a checkpoint before it"
            )
        case "keep":
            return f"{made.id} kept {wanted.target}: there is nothing to take back"


def decision_line(made: Sequence[UndoEntry], notes: Sequence[str]) -> str:
    """What was done, on one line: `approved op1.2 (becomes E7); u undoes`."""
    if len(made) == 1:
        one = made[0]
        action = DONE[one.decision.action]
        if one.decision.reviewer == GATE:
            return f"{one.id} {misfit_text(one.decision.reason)} (u takes that back)"
        note = f" ({notes[0]})" if notes and notes[0] else ""
        return f"{action} {one.id}{note}; u undoes"
    refused = [each for each in made if each.decision.reviewer == GATE]
    text = f"{DONE[made[0].decision.action]} {len(made) - len(refused)}; u undoes all of them"
    if refused:
        reasons = ", ".join(f"{each.id}: {each.decision.reason}" for each in refused[:3])
        text += f"; {len(refused)} did not fit, so not taken ({reasons})"
    return text
