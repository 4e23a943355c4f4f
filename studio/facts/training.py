"""TODO."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from engines.core.state.run_state import RunState, StepState
from engines.core.types import LostWork, update_id
from studio.secrets.sanitize import one_line

Became = Literal[
    "applied",
    "rejected",
    "rolled back",
    "failed",
    "no update",
    "library step",
    "waits",
    "under way",
]
"""The outcome of a step's update; "no update": none was computed, since no group had contrast."""


BECAME: tuple[Became, ...] = (
    "applied", "rejected", "rolled back", "failed", "no update", "library step",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TrainedStep:
    """One step: its reward over n rollouts, its update's figures, what came of it.

    A step on demonstrations has no rollouts: it is measured by its loss over n of those.
    """

    step: int
    measure: Literal["reward", "loss"]
    value: float | None
    n: int
    became: Became
    metrics: Mapping[str, float] = field(default_factory=dict)  # empty: none was computed
    why: str = ""
    back_to: int | None = None  # the step whose weights are in place again


def is_fine_tuning(state: RunState) -> bool:
    """Whether the run is fine-tuned on demonstrations, so that nothing is rolled out."""
    return state.started is not None and state.started.group_size == 0


def trained_steps(state: RunState) -> tuple[TrainedStep, ...]:
    """Every step that was begun, in order."""
    failed = _failed_updates(state)
    return tuple(
        _make_trained_step(state, step, failed.get(number))
        for number, step in sorted(state.steps.items())
    )


def trained_step(state: RunState, number: int) -> TrainedStep | None:
    """None where the run has not begun it."""
    found, failed = state.steps.get(number), _failed_updates(state).get(number)
    return None if found is None else _make_trained_step(state, found, failed)


def _failed_updates(state: RunState) -> dict[int, LostWork]:
    """Updates that could not be computed, by step: `s3`, `op3.w` and `step 3` are about step 3."""
    found = {}
    for loss in state.losses:
        if loss.kind == "update" and (number := re.search(r"\d+", loss.where)):
            found[int(number[0])] = loss
    return found


def _make_trained_step(state: RunState, step: StepState, loss: LostWork | None) -> TrainedStep:
    became, why, back_to = _update_outcome(state, step, loss)
    metrics = state.training.get(step.step, {})
    shown = is_fine_tuning(state)
    return TrainedStep(
        step.step,
        "loss" if shown else "reward",
        metrics.get("loss") if shown else step.rewards.mean,
        int(metrics.get("examples", 0)) if shown else step.rewards.n,
        became,
        metrics,
        one_line(why, 300),
        back_to,
    )


def _update_outcome(
    state: RunState, step: StepState, loss: LostWork | None
) -> tuple[Became, str, int | None]:
    # At most one is about weights.
    settled = next((outcome for outcome in step.outcomes if outcome.kind == "weights"), None)
    if settled is not None:
        if not settled.applied:
            return "rejected", settled.reason, None
        if step.step in state.rolled_back:
            return "rolled back", "", state.rolled_back[step.step]
        return "applied", "", None
    if loss is not None and step.step not in state.training:
        return "failed", loss.reason, None
    if step.learns == "library":
        return "library step", "", None
    if update_id(step.step) in state.operations:
        return "waits", "", None
    if step.committed or step.finished:
        return "no update", "", None
    return "under way", "", None


def measured_steps(steps: Sequence[TrainedStep]) -> list[TrainedStep]:
    """Steps whose rollouts have all ended and that have a reward, or a loss."""
    return [step for step in steps if step.became != "under way" and step.value is not None]


def best_step(known: Sequence[TrainedStep]) -> TrainedStep:
    """The first with the highest reward, or with the lowest loss."""
    sign = 1 if known[0].measure == "reward" else -1
    return max(known, key=lambda step: (sign * (step.value or 0.0), -step.step))


def count_outcomes(steps: Sequence[TrainedStep]) -> dict[Became, int]:
    """How many updates had which outcome, zeros included."""
    return {name: sum(step.became == name for step in steps) for name in BECAME}


def training_data(state: RunState) -> dict[str, Any]:
    """The same facts for `--json`: rates with their n, figures as they were computed."""
    steps = trained_steps(state)
    known = [] if is_fine_tuning(state) else measured_steps(steps)
    notable = (known[0], known[-1], best_step(known)) if known else (None, None, None)
    return {
        "policy_version": state.policy_version,
        "demonstrations": is_fine_tuning(state),
        "engine": dict(state.engine_facts),
        "reward": {
            name: step and {"step": step.step, "mean": step.value, "n": step.n}
            for name, step in zip(("first", "last", "best"), notable, strict=True)
        },
        "updates": {name.replace(" ", "_"): n for name, n in count_outcomes(steps).items()},
        "rolled_back": {str(step): back for step, back in state.rolled_back.items()},
        "checkpoints": [asdict(saved) for saved in state.checkpoints],
        "last_checkpoint": state.checkpoints[-1].folder if state.checkpoints else None,
        "steps": [
            {
                "step": step.step,
                "mean_reward": step.value if step.measure == "reward" else None,
                "n": step.n,
                "update": step.became,
                "reason": step.why,
                "back_to": step.back_to,
                "metrics": {
                    name: value if math.isfinite(value) else None
                    for name, value in step.metrics.items()
                },
            }
            for step in steps
        ],
    }
