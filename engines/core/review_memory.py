"""What a library remembers of its reviewers: ideas that were rejected or reworded, and why.

The memory is no part of a library's content, and no prompt of an agent shows it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from engines.core.flags import AUTO, DUPLICATE, UNPROVEN
from engines.core.text.sanitize import one_line
from engines.core.types import GATE, RULES, Decision, Operation, OperationKind


@dataclass(frozen=True, slots=True, kw_only=True)
class PastDecision:
    """What a reviewer made of an idea that was not taken as it came: rejected, or reworded."""

    run: str
    operation_id: str
    kind: OperationKind
    text: str  # as it was proposed; of a delete, the id of its target
    became: str  # the wording it was given, "" where it was rejected
    reason: str
    problems: tuple[str, ...]  # ids of those it was drawn from
    reviewer: str
    at: float
    target: str | None = None  # the experience it was about
    target_text: str = ""  # what that said then, "" also where an older release copied it
    step: int = 0  # that was committed, 0 outside
    # A rule or auto rejected it, flagged as a duplicate or unproven: that is nothing against it.
    doubled: bool = False

    @property
    def is_rejection(self) -> bool:
        return not self.became


KEPT_CURATED = 1_000
"""Past decisions that a library remembers; the oldest go first."""


def new_past_decisions(
    known: Sequence[PastDecision],
    decided: Iterable[tuple[Operation, Operation, Decision, str]],
    run: str,
    step: int,
) -> list[PastDecision]:
    """What a commit adds to the memory; a decision that is known already is not added again.

    `decided` holds each operation as it was proposed and as it is applied, its decision, and what
    its target said then.
    """
    made = [
        replace(found, step=step, target_text=target_text)
        for operation, wanted, decision, target_text in decided
        if (found := _past_decision(operation, wanted, decision, run)) is not None
    ]
    seen = {(one.run, one.operation_id, one.at) for one in known} if made else set()
    return [one for one in made if (one.run, one.operation_id, one.at) not in seen]


def drop_own_decisions(
    known: Sequence[PastDecision], oldest: int, *, run: str, step: int, since: int
) -> tuple[PastDecision, ...]:
    """Without what a run decided in this step or later, after number `since` was remembered.

    `oldest` is the number of the first one in `known`, counted from the library's beginning.
    """
    return tuple(
        idea
        for number, idea in enumerate(known, oldest)
        if number < since or idea.run != run or idea.step < step
    )


def _past_decision(
    operation: Operation, wanted: Operation, decision: Decision, run: str
) -> PastDecision | None:
    """What is to be remembered of a decision; None of an approval, or of the gate's own."""
    if decision.action not in ("reject", "edit") or decision.reviewer == GATE:
        return None
    became = ""
    if decision.action == "edit":
        became = one_line(wanted.text) or f"{wanted.kind} {wanted.target}"
    return PastDecision(
        run=run,
        operation_id=operation.id,
        kind=operation.kind,
        text=one_line(operation.text) or operation.target or "",
        became=became,
        reason=decision.reason,
        problems=operation.problems,
        reviewer=decision.reviewer,
        at=decision.at,
        target=operation.target,
        doubled=decision.action == "reject"
        and (decision.reviewer == AUTO or decision.reviewer.startswith(RULES))
        and any(flag.name in (DUPLICATE, UNPROVEN) for flag in operation.flags),
    )
