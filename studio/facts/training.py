"""All that is told of a run that trains weights: each step's measure, its update and the outcome.

Pure: from the folded state.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Literal

from engines.core import codec, events
from engines.core.frozen import frozen
from engines.core.state.run_state import RunState, StepState
from engines.core.types import LostWork, update_id
from studio.facts.subject import Subject
from studio.secrets.sanitize import one_line

FIGURE_NAMES = {
    "reward": "reward",
    "reward_std": "reward spread",
    "contrast": "contrast",
    "loss": "loss",
    "kl": "KL",
    "kl_step": "KL of the step",
    "clip_share": "clipped",
    "clip_low": "clipped low",
    "clip_high": "clipped high",
    "ratio_max": "ratio, most",
    "entropy": "entropy",
    "grad_norm": "gradient",
    "learning_rate": "learning rate",
    "length": "length",
    "truncated": "truncated",
    "tokens": "tokens",
    "examples": "demonstrations",
    "left_out": "left out",
    "optimiser_steps": "steps",
}
"""The figures of an update in the order in which they are shown, with their names."""

Update = Literal[
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


UPDATES: tuple[Update, ...] = (
    "applied", "rejected", "rolled back", "failed", "no update", "library step",
)  # fmt: skip


@frozen
class TrainedStep(Subject):
    """One step: its reward over n rollouts, its update's figures, what came of it.

    A step on demonstrations has no rollouts: it is measured by its loss over n of those.
    """

    step: int
    measure: Literal["reward", "loss"]
    value: float | None
    n: int
    update: Update
    metrics: Mapping[str, float] = field(default_factory=dict)  # empty: none was computed
    reason: str = ""
    back_to: int | None = None  # the step whose weights are in place again


def is_fine_tuning(state: RunState) -> bool:
    """Whether the run is fine-tuned on demonstrations, so that nothing is rolled out."""
    return state.started is not None and state.started.group_size == 0


def trained_steps(state: RunState) -> tuple[TrainedStep, ...]:
    """Return every step that was begun, in order."""
    failed = _failed_updates(state)
    return tuple(
        _make_trained_step(state, step, failed.get(number))
        for number, step in sorted(state.steps.items())
    )


def trained_step(state: RunState, number: int) -> TrainedStep | None:
    """Return one step; None where the run has not begun it."""
    step = state.steps.get(number)
    if step is None:
        return None
    return _make_trained_step(state, step, _failed_updates(state).get(number))


def _failed_updates(state: RunState) -> dict[int, LostWork]:
    """Updates that could not be computed, by step: `s3`, `op3.w` and `step 3` are about step 3."""
    failed = {}
    for loss in state.losses:
        if loss.kind == "update" and (number := re.search(r"\d+", loss.where)):
            failed[int(number[0])] = loss
    return failed


def _make_trained_step(state: RunState, step: StepState, loss: LostWork | None) -> TrainedStep:
    update, reason = _update_outcome(state, step, loss)
    metrics = state.training.get(step.step, {})
    by_loss = is_fine_tuning(state)
    return TrainedStep(
        step=step.step,
        measure="loss" if by_loss else "reward",
        value=metrics.get("loss") if by_loss else step.rewards.mean,
        n=int(metrics.get("examples", 0)) if by_loss else step.rewards.n,
        update=update,
        metrics=metrics,
        reason=one_line(reason, 300),
        back_to=state.rolled_back.get(step.step) if update == "rolled back" else None,
    )


def _update_outcome(state: RunState, step: StepState, loss: LostWork | None) -> tuple[Update, str]:
    # At most one outcome is about weights.
    outcome = next((outcome for outcome in step.outcomes if outcome.kind == "weights"), None)
    if outcome is not None:
        if not outcome.applied:
            return "rejected", outcome.reason
        return ("rolled back" if step.step in state.rolled_back else "applied"), ""
    if loss is not None and step.step not in state.training:
        return "failed", loss.reason
    if step.learns == "library":
        return "library step", ""
    if update_id(step.step) in state.operations:
        return "waits", ""
    if step.committed or step.finished:
        return "no update", ""
    return "under way", ""


def measured_steps(steps: Sequence[TrainedStep]) -> list[TrainedStep]:
    """Steps whose rollouts have all ended and that have a reward, or a loss."""
    return [step for step in steps if step.update != "under way" and step.value is not None]


def best_step(known: Sequence[TrainedStep]) -> TrainedStep:
    """The first with the highest reward, or with the lowest loss."""
    sign = 1 if known[0].measure == "reward" else -1
    return max(known, key=lambda step: (sign * (step.value or 0.0), -step.step))


@frozen
class TrainingFacts(Subject):
    """The training of a whole run."""

    policy_version: int
    demonstrations: bool  # fine-tuned on them, so that nothing was rolled out
    engine: codec.JsonMapping
    steps: tuple[TrainedStep, ...]
    rolled_back: Mapping[int, int]  # step → the step gone back to
    checkpoints: tuple[events.CheckpointSaved, ...]

    @property
    def measured(self) -> tuple[TrainedStep, ...]:
        """Steps whose rollouts have all ended and that have a reward, or a loss."""
        return tuple(measured_steps(self.steps))

    @property
    def curve_top(self) -> float:
        """The upper end of the scale: rewards end at 1."""
        values = [step.value or 0.0 for step in self.measured if step.measure == "loss"]
        return max(values, default=1.0)

    @property
    def reward(self) -> dict[str, TrainedStep | None]:
        """The first, the last and the best step."""
        measured = self.measured
        if not measured:
            return dict.fromkeys(("first", "last", "best"))
        return {"first": measured[0], "last": measured[-1], "best": best_step(measured)}

    @property
    def updates(self) -> dict[str, int]:
        """The number of updates with each outcome, zeros included; `rolled_back` and so on."""
        counts = Counter(step.update for step in self.steps)
        return {name.replace(" ", "_"): counts[name] for name in UPDATES}

    @property
    def trainable_share(self) -> float | None:
        """The share of the parameters that is trained; None where the engine does not say."""
        return trainable_share(self.engine)

    @property
    def last_checkpoint(self) -> str | None:
        return self.checkpoints[-1].folder if self.checkpoints else None


def trainable_share(engine: codec.JsonMapping) -> float | None:
    trainable, parameters = engine.get("trainable"), engine.get("parameters")
    if isinstance(trainable, int) and isinstance(parameters, int) and parameters:
        return trainable / parameters
    return None


def training_facts(state: RunState) -> TrainingFacts:
    return TrainingFacts(
        policy_version=state.policy_version,
        demonstrations=is_fine_tuning(state),
        engine=state.engine_facts,
        steps=trained_steps(state),
        rolled_back=state.rolled_back,
        checkpoints=tuple(state.checkpoints),
    )
