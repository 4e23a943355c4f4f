"""The weight update of a lesson: what can be decided about it, and what its commit does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from engines.core.errors import ConflictError
from engines.core.library import OperationOutcome
from engines.core.state.run_state import RunState
from engines.core.types import Decision, Operation, WeightUpdate, update_id

Apply = Callable[[WeightUpdate], Awaitable[int]]
"""Makes a computed update the current weights; returns the new policy version."""

UNDECIDED = "no decision about it was left in the journal"


def check_decision(decision: Decision) -> None:
    """Raises ConflictError where a weight update is neither approved nor rejected as it is."""
    reworded = (decision.kind, decision.target, decision.text) != (None, None, None)
    if decision.action in ("edit", "defer") or reworded:
        asked = "deferred" if decision.action == "defer" else "edited"
        cause = f"a weight update cannot be {asked}: the next step would rest on it."
        raise ConflictError(f"operation {decision.operation_id}", cause, "Approve or reject it.")


def update_metrics(state: RunState, operation: Operation) -> Mapping[str, float]:
    """The metrics behind a weight update under review; {} of anything else."""
    now = state.current
    if operation.kind != "weights" or now is None or operation.id != update_id(now.step):
        return {}
    return state.training.get(now.step, {})


def can_carry_out(state: RunState, step: int, apply: Apply | None) -> bool:
    """Whether this process can carry out what was decided: one without an engine cannot."""
    return apply is not None or not _is_approved(state, step)


async def carry_out(
    state: RunState, step: int, apply: Apply | None
) -> tuple[int, tuple[OperationOutcome, ...]]:
    """Carry out what was decided about the step's update; `apply` is None without an engine.

    Returns the policy version since, and what became of the update; () where there is none.
    """
    update = _pending_update(state, step)
    if update is None:
        return state.policy_version, ()
    name = update_id(step)
    if _is_approved(state, step):
        if apply is None:
            cause = "its weights can be changed only by the process that trains them."
            raise ConflictError(f"operation {name}", cause, "Go on with the run.")
        return await apply(update), (OperationOutcome(name, "weights", True),)
    decision = state.decisions.get(name)
    reason = UNDECIDED if decision is None else decision.reason
    return state.policy_version, (OperationOutcome(name, "weights", False, None, reason),)


def _pending_update(state: RunState, step: int) -> WeightUpdate | None:
    """Of the step's lesson, while it waits for its commit."""
    found = state.steps.get(step)
    if found is None or found.lesson is None or update_id(step) not in state.operations:
        return None
    return found.lesson.update


def _is_approved(state: RunState, step: int) -> bool:
    decision = state.decisions.get(update_id(step)) if _pending_update(state, step) else None
    return decision is not None and decision.action == "approve"
