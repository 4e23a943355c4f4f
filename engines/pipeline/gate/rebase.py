"""Decisions on a library whose head has moved: which stand, and which are asked again. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from engines.core.library import Library, Reviewed, effective_operation
from engines.core.types import GATE, Decision, Operation
from engines.pipeline.gate.draft import find_objection


@dataclass(frozen=True, slots=True)
class Rebase:
    """What a moved head does to the standing decisions."""

    asked_again: tuple[str, ...]  # ids of operations
    reassigned: tuple[Decision, ...]  # approvals that add their experience under another id


def rebase_decisions(
    reviewed: Reviewed, base: Library, head: Library, *, run: str, limit: int | None
) -> Rebase:
    """Put decisions that were made on `base` onto `head`, in their order."""
    draft, kept = head, list[tuple[Operation, Decision]]()
    asked_again: list[str] = []
    reassigned: list[Decision] = []
    new_ids: dict[str, str] = {}  # id that an addition of this lesson was given → its id now
    number = head.next_number
    for operation, decision in reviewed:
        wanted = effective_operation(operation, decision)
        objection = find_objection(wanted, draft, kept, limit)
        if decision.action == "reject":
            # The gate's own rejection stands only while its reason does.
            if decision.reviewer == GATE and decision.reason != objection:
                asked_again.append(operation.id)
            continue
        # What the move touched, and what no longer fits, is asked again.
        if objection or not _is_untouched(wanted.target, base, head, new_ids):
            asked_again.append(operation.id)
            continue
        if decision.assigned:
            number = max(number, int(decision.assigned[1:]))
            new_ids[decision.assigned] = f"E{number}"
            number += 1
            if new_ids[decision.assigned] != decision.assigned:
                decision = replace(decision, assigned=new_ids[decision.assigned])
                reassigned.append(decision)
        draft = draft.commit([(operation, decision)], run=run, limit=limit).library
        kept.append((operation, decision))
    return Rebase(tuple(asked_again), tuple(reassigned))


def _is_untouched(
    target: str | None, base: Library, head: Library, new_ids: dict[str, str]
) -> bool:
    """Whether an operation's target still is what it was when it was decided on."""
    if target is None:
        return True
    if target in new_ids:
        return new_ids[target] == target
    before, after = base.get(target), head.get(target)
    return before is not None and after is not None and before.text == after.text
