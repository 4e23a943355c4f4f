"""What the request `status` answers, also for a run without a process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engines.core.codec import fields_of
from engines.core.state.run_state import RunState
from studio.facts.training import measured_steps, trained_steps
from studio.render.training_lines import figures_text

if TYPE_CHECKING:  # it loads the limits of policies, which a screen waits for at its start
    from engines.pipeline.budget import Budget


def status_of(state: RunState, budget: Budget | None = None) -> dict[str, Any]:
    """The answer as JSON has it; `budget` adds what is left of each limit."""
    started = state.started
    current = state.current
    return {
        "run": started.run if started else "",
        **fields_of(state, "status", "events", "reason", "epochs", "step", "steps_finished"),
        **fields_of(state, "library_version", "reviewer", "curates", "proposed"),
        "rehearsal": bool(started and started.rehearsal),
        "epoch": state.steps[state.step].epoch if state.step in state.steps else 0,
        "steps": started.steps_per_epoch * state.epochs if started else 0,
        "rollouts_done": current.rollouts_done if current else 0,
        "library": started.library if started else "",
        "policy_version": state.policy_version if state.trains_weights else None,
        "training": _training_line(state),
        "undecided": len(state.undecided_operations),
        "open": len(state.open_operations),
        "lost": sum(state.lost.values()),
        "repairs": len(state.repairs),
        **fields_of(state.total_usage, "tokens", "cost_usd"),
        "budget": budget.limits.amounts if budget else {},
        "budget_left": budget.remaining if budget else {},
    }


def _training_line(state: RunState) -> str | None:
    """The last finished step in one line; None for a run that trains no weights."""
    if not state.trains_weights:
        return None
    steps = trained_steps(state)
    known = measured_steps(steps)
    return f"step {known[-1].step}: {figures_text(known[-1])}" if known else "no step yet"
