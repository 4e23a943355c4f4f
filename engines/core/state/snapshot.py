"""A run's state as JSON values, which `engines.core.codec` makes a state of again."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from engines.core.state.run_state import RunState, StepState


def state_data(state: RunState) -> dict[str, Any]:
    """The fields of a state; JSON knows no sets, and no keys of two numbers."""
    data = {one.name: getattr(state, one.name) for one in fields(state)}
    data |= {name: sorted(value) for name, value in data.items() if isinstance(value, set)}
    return data | {"steps": {number: _step_data(one) for number, one in state.steps.items()}}


def _step_data(step: StepState) -> StepState | dict[str, Any]:
    if not step.rollouts and not step.verdicts:
        return step  # all but the one under way
    data = {one.name: getattr(step, one.name) for one in fields(step)}
    for name in ("rollouts", "verdicts"):
        data[name] = {f"{position} {index}": v for (position, index), v in data[name].items()}
    return data
