"""A run's state as JSON values, which `engines.core.codec` makes a state of again.

What a step has by default is left out: of a long run's thousands of steps that is most.
"""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

from engines.core.state.run_state import RunState, StepState

_DEFAULTS = {
    one.name: one.default if one.default_factory is MISSING else one.default_factory()
    for one in fields(StepState)
}


def state_data(state: RunState) -> dict[str, Any]:
    """The fields of a state; JSON knows no sets, and no keys of two numbers."""
    values = {one.name: getattr(state, one.name) for one in fields(state)}
    data = {name: sorted(v) if isinstance(v, set) else v for name, v in values.items()}
    return {**data, "steps": {number: _step_data(step) for number, step in state.steps.items()}}


def _step_data(step: StepState) -> dict[str, Any]:
    known = ((name, getattr(step, name), usual) for name, usual in _DEFAULTS.items())
    data = {name: value for name, value, usual in known if value != usual}
    for name in data.keys() & {"rollouts", "verdicts"}:
        data[name] = {f"{position} {index}": v for (position, index), v in data[name].items()}
    return data
