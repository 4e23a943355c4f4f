"""What a run may set of a weight update: of GRPO, and of fine-tuning on demonstrations.

Plain values: nothing here loads torch.
"""

from dataclasses import replace
from typing import Literal, Self

from engines.core.frozen import frozen
from engines.core.settings import COUNT, MAX_ROWS, SettingError, check_bounds, derived, setting

Aggregation = Literal["grpo", "bnpo", "dr_grpo", "dapo"]
AdvantageScale = Literal["std", "none"]
Schedule = Literal["cosine", "linear", "constant"]

USUAL_RATES = (1e-6, 3e-3)
"""Learning rates of adapters outside of these are warned of."""


@frozen
class GRPOSettings:
    """How a batch of groups becomes a weight update.

    An optimiser step sees `accumulation` minibatches; a batch makes
    `optimiser_steps_per_batch` of them. `temperature` is that of the rollouts: every
    log-probability is taken at it. `max_completion_tokens` is the rollouts' limit, which
    dr_grpo divides by.
    """

    learning_rate: float = setting(1e-5, "learning rate at its highest", gt=0, lt=1)
    schedule: Schedule = setting("cosine", "how the learning rate falls")
    warmup: float = setting(
        0.0, "share of all optimiser steps in which the learning rate rises", ge=0, lt=1
    )
    max_grad_norm: float = setting(1.0, "length to which longer gradients are clipped", gt=0)
    aggregation: Aggregation = setting("dapo", "how the losses of tokens become one")
    clip_low: float = setting(0.2, "ratios below 1 - this count less", gt=0, le=1)
    clip_high: float = setting(0.28, "ratios above 1 + this count less", gt=0)
    beta: float = setting(
        0.0, "weight of the KL term to the model without any adapter, policy.adapter's too", ge=0
    )
    iterations: int = derived(1)  # passes over each batch
    minibatches: int = setting(1, "parts of a batch", **COUNT)
    accumulation: int = setting(
        1,
        "minibatches of one optimiser step; divides minibatches",
        examples=[1],
        **COUNT,
    )
    micro_batch: int | None = setting(
        None, "sequences in one forward pass; null: by length", ge=1, le=MAX_ROWS, examples=[8]
    )
    advantage_scale: AdvantageScale = setting("std", "what centred rewards are divided by")
    discount: float = setting(1.0, "factor of the reward for each turn before the last", gt=0, le=1)
    collapse_drop: float | None = derived(0.5)  # share of the best reward below which it goes back
    collapse_patience: int = derived(3)  # batches in a row below that; 1 rarely tells from noise
    temperature: float = derived(1.0)
    max_completion_tokens: int | None = derived(None)

    def __post_init__(self) -> None:
        """Raises SettingError: a value is out of bounds, or two do not fit each other."""
        check_bounds(self, "grpo")
        if self.minibatches % self.accumulation:
            raise SettingError(
                "grpo",
                "accumulation",
                f"{self.accumulation} does not divide the {self.minibatches} minibatches.",
                "Choose a divisor, or change grpo.minibatches.",
            )
        if self.temperature <= 0:
            raise SettingError(
                "grpo",
                "temperature",
                "log-probabilities are not defined without a temperature above 0.",
                "Use the temperature of the rollouts.",
            )

    def for_rollouts(self, temperature: float, max_tokens: int | None) -> Self:
        """The same settings for rollouts that are sampled so.

        Raises SettingError: the aggregation needs a limit of tokens, and there is none.
        """
        if self.aggregation == "dr_grpo" and not max_tokens:
            raise SettingError(
                "grpo",
                "max_completion_tokens",
                "dr_grpo divides by it, and it is not set.",
                "Set it to the rollouts' max_tokens, or choose another aggregation.",
            )
        return replace(self, temperature=temperature, max_completion_tokens=max_tokens)

    @property
    def optimiser_steps_per_batch(self) -> int:
        return self.iterations * self.minibatches // self.accumulation


@frozen
class SFTSettings:
    """How a batch of demonstrations becomes a weight update."""

    learning_rate: float = setting(1e-4, "learning rate at its highest", gt=0, lt=1)
    schedule: Schedule = derived("cosine")
    warmup: float = derived(0.03)  # share of the steps in which the learning rate rises
    max_grad_norm: float = derived(1.0)

    def __post_init__(self) -> None:
        check_bounds(self, "sft")
