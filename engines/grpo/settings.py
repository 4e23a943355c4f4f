"""What a run may set of GRPO.

Owns the defaults and the combinations that make no sense. Plain values: nothing here loads torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from engines.core.errors import ConfigError

Aggregation = Literal["dapo", "grpo", "bnpo", "dr_grpo"]
AdvantageScale = Literal["std", "none"]
Schedule = Literal["cosine", "constant", "linear"]


@dataclass(frozen=True, slots=True)
class GRPOSettings:
    """How a batch of groups becomes a weight update.

    An optimiser step sees `accumulation` minibatches; a batch makes
    `optimiser_steps_per_batch` of them. `temperature` is that of the rollouts: every
    log-probability is taken at it.
    """

    learning_rate: float = 1e-5
    weight_decay: float = 0.0
    schedule: Schedule = "cosine"
    warmup: float = 0.0  # share of all optimiser steps
    max_grad_norm: float = 1.0
    aggregation: Aggregation = "dapo"
    clip_low: float = 0.2
    clip_high: float = 0.28
    beta: float = 0.0  # weight of the KL with the reference; 0: no reference pass
    iterations: int = 1  # passes over one batch
    minibatches: int = 1  # parts of a batch, split between groups
    accumulation: int = 1  # minibatches to one optimiser step
    micro_batch: int | None = None  # sequences per forward; None: chosen by their length
    advantage_scale: AdvantageScale = "std"
    advantage_eps: float = 1e-4
    discount: float = 1.0  # per turn left of a trajectory
    max_completion_tokens: int | None = None  # what dr_grpo divides by
    collapse_drop: float = 0.5  # share of the best reward below which a run has collapsed; 0: off
    collapse_patience: int = 3  # batches in a row; of 1, little but noise can be told
    temperature: float = 1.0

    def __post_init__(self) -> None:
        """Refuse what cannot be meant.

        Raises:
            ConfigError: a value is out of bounds, or two do not fit each other.
        """
        for name, wrong, cause, move in self._objections():
            if wrong:
                raise ConfigError(f"grpo.{name}", cause, move)

    @property
    def optimiser_steps_per_batch(self) -> int:
        return self.iterations * self.minibatches // self.accumulation

    def _objections(self) -> tuple[tuple[str, bool, str, str], ...]:
        parts = (self.iterations, self.minibatches, self.accumulation, self.collapse_patience)
        return (
            (
                "learning_rate",
                not 0 < self.learning_rate < 1,
                f"{self.learning_rate} is no learning rate.",
                "Adapters usually learn between 1e-6 and 3e-3.",
            ),
            (
                "iterations",
                min(parts) < 1,
                "iterations, minibatches, accumulation and collapse_patience count from 1.",
                "Set each to 1 or more.",
            ),
            (
                "accumulation",
                self.accumulation > 0 and self.minibatches % self.accumulation != 0,
                f"{self.accumulation} does not divide the {self.minibatches} minibatches.",
                "Choose a divisor, or change grpo.minibatches.",
            ),
            (
                "micro_batch",
                self.micro_batch is not None and self.micro_batch < 1,
                f"a forward of {self.micro_batch} sequences is empty.",
                "Set 1 or more, or leave it out.",
            ),
            (
                "max_completion_tokens",
                self.aggregation == "dr_grpo" and not self.max_completion_tokens,
                "dr_grpo divides by it, and it is not set.",
                "Set it to the rollouts' max_tokens, or choose another aggregation.",
            ),
            (
                "clip_low",
                not (0 < self.clip_low <= 1 and self.clip_high > 0),
                f"ratios cannot be kept between {1 - self.clip_low:g} and {1 + self.clip_high:g}.",
                "Usual are clip_low 0.2 and clip_high 0.2 to 0.3.",
            ),
            (
                "beta",
                self.beta < 0,
                "a negative weight pays for leaving the reference.",
                "Set 0 or more.",
            ),
            (
                "temperature",
                self.temperature <= 0,
                "log-probabilities are not defined without a temperature above 0.",
                "Use the temperature of the rollouts.",
            ),
            (
                "warmup",
                not 0 <= self.warmup < 1,
                f"{self.warmup} is no share of the run.",
                "Set 0 to below 1, for instance 0.1.",
            ),
            (
                "max_grad_norm",
                self.max_grad_norm <= 0,
                "no gradient fits a norm of 0 or less.",
                "Usual is 1.0.",
            ),
            (
                "discount",
                not 0 < self.discount <= 1,
                f"{self.discount} is no discount.",
                "Set 1.0 for none, or a little less.",
            ),
            (
                "collapse_drop",
                not 0 <= self.collapse_drop < 1,
                f"{self.collapse_drop} is no share of the best reward.",
                "Set 0 (no guard) to below 1.",
            ),
        )
