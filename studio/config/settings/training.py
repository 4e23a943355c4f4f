"""Settings of runs that train weights: the local model, GRPO, and fine-tuning before it.

Owns names, ranges and defaults. What they do is `engines.grpo`'s and
`engines.policies.hf_local`'s to say.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from studio.config.settings.base import MOST, MOST_ROWS, Float, Int, Settings, as_list

ALGORITHMS = {
    "training_free": "training_free",
    "training_free_grpo": "training_free",
    "grpo": "grpo",
    "multi_step_grpo": "grpo",  # several turns are no algorithm of their own here
    "sft": "sft",
}
"""Every name an algorithm may be given → ours."""

Algorithm = Literal["training_free", "grpo", "sft"]


def parse_algorithm(value: object) -> object:
    """Our name of an algorithm.

    Raises:
        ValueError: it is none of the supported ones.
    """
    if not isinstance(value, str):
        return value
    if value.lower() not in ALGORITHMS:
        raise ValueError(f"{value} is not supported; there are {', '.join(ALGORITHMS)}")
    return ALGORITHMS[value.lower()]


class LocalConfig(Settings):
    """How hf:PATH is loaded."""

    device: str = Field(
        default="auto", min_length=1, description="cpu, cuda, cuda:1, mps; auto: the best there is"
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        default="auto", description="of the weights; auto: bfloat16 on a GPU, else float32"
    )
    quantise: Literal["none", "nf4"] = Field(
        default="none", description="nf4: 4-bit weights below the adapter (QLoRA); needs a GPU"
    )
    trust_remote_code: bool = Field(
        default=False, description="run Python code that comes with the model"
    )
    gradient_checkpointing: bool = Field(
        default=False, description="less memory and more time in training"
    )
    threads: Int | None = Field(
        default=None, ge=1, le=MOST, description="of the CPU; null: measured at the start"
    )
    max_batch: Int = Field(default=256, ge=1, le=MOST, description="replies sampled at a time")
    rollouts_url: str | None = Field(
        default=None,
        pattern=r"^https?://",
        description="a vLLM server that samples the rollouts, given each new adapter",
    )


class LoraConfig(Settings):
    """The low-rank adapter that is trained."""

    rank: Int = Field(default=8, ge=1, le=MOST, description="of its matrices")
    alpha: Int = Field(default=16, ge=1, le=MOST, description="its scale is alpha / rank")
    dropout: Float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="kept with the adapter for later use; every pass here is without it",
    )
    targets: Annotated[tuple[str, ...] | None, BeforeValidator(as_list)] = Field(
        default=None, description="names of the layers; null: the seven projections of a block"
    )


class GRPOConfig(Settings):
    """How weights are updated."""

    learning_rate: Float = Field(default=1e-5, gt=0, lt=1, description="at its highest")
    schedule: Literal["cosine", "linear", "constant"] = Field(
        default="cosine", description="how it falls"
    )
    warmup: Float = Field(
        default=0.0, ge=0, lt=1, description="share of all optimiser steps in which it rises"
    )
    weight_decay: Float = Field(default=0.0, ge=0, description="of AdamW")
    max_grad_norm: Float = Field(default=1.0, gt=0, description="longer gradients are clipped")
    aggregation: Literal["grpo", "bnpo", "dr_grpo", "dapo"] = Field(
        default="dapo", description="how the losses of tokens become one"
    )
    clip_low: Float = Field(default=0.2, gt=0, le=1, description="ratios below 1 - this count less")
    clip_high: Float = Field(default=0.28, gt=0, description="ratios above 1 + this count less")
    beta: Float = Field(
        default=0.0,
        ge=0,
        description="weight of the KL term to the model without any adapter, policy.adapter's too",
    )
    iterations: Int = Field(default=1, ge=1, le=MOST, description="passes over each batch")
    minibatches: Int = Field(default=1, ge=1, le=MOST, description="parts of a batch")
    accumulation: Int = Field(
        default=1, ge=1, le=MOST, description="minibatches an optimiser step; divides minibatches"
    )
    micro_batch: Int | None = Field(
        default=None, ge=1, le=MOST_ROWS, description="sequences a forward pass; null: by length"
    )
    advantage_scale: Literal["std", "none"] = Field(
        default="std", description="what centred rewards are divided by"
    )
    advantage_eps: Float = Field(default=1e-4, gt=0, description="added to that deviation")
    discount: Float = Field(
        default=1.0, gt=0, le=1, description="of the reward for each turn before the last"
    )
    collapse_drop: Float | None = Field(
        default=0.5,
        gt=0,
        lt=1,
        description="share of the best reward below which training goes back; null: never",
    )
    collapse_patience: Int = Field(
        default=3,
        ge=1,
        le=MOST,
        description="batches in a row that must be so bad; 1 rarely tells from noise",
    )
    reject_kl_above: Float | None = Field(
        default=None,
        gt=0,
        description="updates that lead to a larger KL are rejected; null: none are",
    )
    reject_grad_norm_above: Float | None = Field(
        default=None, gt=0, description="updates with a longer gradient are rejected; null: none"
    )
    checkpoint_steps: Int | None = Field(
        default=None, ge=1, description="a checkpoint every so many steps; null: each epoch"
    )
    keep: Int = Field(default=3, ge=1, le=MOST, description="checkpoints kept, besides the best")
    tensorboard: bool = Field(default=True, description="write its curves beside the checkpoints")
    lora: LoraConfig = LoraConfig()

    @model_validator(mode="after")
    def _validate_accumulation(self) -> GRPOConfig:
        if self.minibatches % self.accumulation:
            raise PydanticCustomError(
                "unmet",
                "minibatches cannot be accumulated so many at a time",
                {"at": "accumulation", "move": "Choose a number that divides grpo.minibatches."},
            )
        return self


class SFTConfig(Settings):
    """Supervised fine-tuning: stages of `studio train`, learnt and distilled without a library."""

    data: str | None = Field(
        default=None,
        min_length=1,
        description="demonstrations of the stage: a data set with a field solution, completion or "
        "messages, or run:RUN for its verified rollouts",
    )
    min_reward: Float = Field(
        default=1.0, ge=0, le=1, description="of the rollouts taken from a run"
    )
    learning_rate: Float = Field(default=1e-4, gt=0, lt=1, description="at its highest")
    schedule: Literal["cosine", "linear", "constant"] = Field(
        default="cosine", description="how it falls"
    )
    warmup: Float = Field(
        default=0.03, ge=0, lt=1, description="share of the steps in which it rises"
    )
    weight_decay: Float = Field(default=0.0, ge=0, description="of AdamW")
    max_grad_norm: Float = Field(default=1.0, gt=0, description="longer gradients are clipped")
    epochs: Int = Field(default=2, ge=1, le=MOST, description="of the stage")
    batch_size: Int = Field(
        default=16, ge=1, le=MOST_ROWS, description="demonstrations a step of the stage"
    )
