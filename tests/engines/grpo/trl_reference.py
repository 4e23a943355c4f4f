"""What TRL's GRPOTrainer makes of one batch: `python -m tests.engines.grpo.trl_reference`.

Owns the batch that both sides are given, and the program that writes TRL's figures to
`trl_values.json`. Everything is rebuilt from seeds with Python's own generator, so that the
inputs are the same on every machine; only the program itself needs TRL (extra `bench`).

The batch is one generation of four groups, of which an optimiser step sees the first two: dapo
then divides by another number than bnpo. Log-probabilities before the update are those of
another adapter, as in a second iteration, so that many ratios are out of bounds.
"""

from __future__ import annotations

import base64
import json
import random
import sys
import tempfile
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from engines.core.types import Group
from tests.engines.grpo.models import VOCABULARY, a_model, a_tokenizer
from tests.engines.grpo.trainable import a_scored, a_try, a_turn

VALUES = Path(__file__).with_name("trl_values.json")
AGGREGATIONS = ("grpo", "bnpo", "dr_grpo", "dapo")
GROUP, GROUPS, SEEN = 4, 4, 2  # groups of the generation, and of the optimiser step
PARTS = GROUPS // SEEN
TEMPERATURE, BETA, CLIP_LOW, CLIP_HIGH = 0.7, 0.04, 0.2, 0.28
MAX_COMPLETION_TOKENS = 24
RANK, ALPHA = 2, 4
NEAREST = 1e-4
"""No ratio may be so near to a bound: a rounding would decide about its gradient."""
SMALL: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
REWARDS = ((1.0, 0.0, 0.0, 0.5), (0.0, 1.0, 1.0, 0.2), (0.0, 0.0, 0.0, 1.0), (0.3, 0.1, 0.9, 0.9))
UNEVEN: tuple[tuple[float | None, ...], ...] = (
    (1.0, 0.0, 0.0, 0.0),
    (0.5, 0.5, 0.5, 0.5),
    (1.0, None, 0.25, 0.0),
    (0.1, 0.1, 0.1, 0.3),
)
"""Rewards whose advantages are compared; None: not judged."""


# ── what both sides are given


def write_model(folder: Path) -> Path:
    """The model before any adapter, with its tokenizer."""
    model = a_model("llama", **SMALL)
    chance = random.Random("model")
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            spread, centre = (0.3, 1.0) if "norm" in name else (parameter.shape[-1] ** -0.5, 0.0)
            parameter.copy_(gaussian(chance, parameter.shape, spread) + centre)
    model.save_pretrained(folder)
    a_tokenizer().save_pretrained(folder)
    return folder


def adapter(parameters: Iterable[tuple[str, nn.Parameter]], *, moved: bool) -> dict[str, Tensor]:
    """An adapter with B other than 0; `moved` is the same some optimiser steps later."""
    start, step = random.Random("adapter"), random.Random("step")
    found = {}
    for name, parameter in sorted(parameters, key=lambda pair: pair[0]):
        found[name] = gaussian(start, parameter.shape, 0.3)
        if moved:
            found[name] += gaussian(step, parameter.shape, 0.08)
    return found


def gaussian(chance: random.Random, shape: torch.Size, spread: float) -> Tensor:
    values = [chance.gauss(0.0, spread) for _ in range(shape.numel())]
    return torch.tensor(values).view(shape)


def the_batch(rewards: Sequence[Sequence[float | None]] = REWARDS) -> list[Group]:
    """Four groups with prompts and completions of many lengths."""
    chance = random.Random("batch")
    made = []
    for position, row in enumerate(rewards):
        shown = [chance.randrange(8, VOCABULARY) for _ in range(chance.randrange(4, 15))]
        tries = []
        for index in range(GROUP):
            length = chance.randrange(1, MAX_COMPLETION_TOKENS + 1)
            ids = [chance.randrange(8, VOCABULARY) for _ in range(length)]
            tries.append(a_try(a_turn(shown, ids), position=position, index=index))
        made.append(a_scored(row, tries, position=position))
    return made


# ── TRL's side


class Reference:
    """TRL's trainer with this batch as what was generated.

    Args:
        folder: of `write_model`.
        output: a folder that the trainer may write to.
        how: settings of its GRPOConfig that differ.
    """

    def __init__(self, folder: Path, output: Path, batch: Sequence[Group], **how: Any) -> None:
        from datasets import Dataset  # type: ignore[import-untyped]
        from peft import LoraConfig
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from trl import GRPOConfig, GRPOTrainer

        from engines.policies.hf_local.settings import PROJECTIONS

        tries = [rollout.attempt.turns[0] for group in batch for rollout in group.rollouts]
        rewards = [verdict.reward for group in batch for verdict in group.verdicts]

        def canned(prompts: list[str], trainer: Any) -> dict[str, Any]:
            return {
                "prompt_ids": [list(turn.prompt_ids) for turn in tries],
                "completion_ids": [list(turn.token_ids) for turn in tries],
                "logprobs": None,
            }

        def reward(completions: list[str], **columns: Any) -> list[float | None]:
            return rewards

        settings: dict[str, Any] = {
            "per_device_train_batch_size": GROUP * SEEN,
            "steps_per_generation": PARTS,
            "gradient_accumulation_steps": 1,
            "num_generations": GROUP,
            "num_iterations": 2,
            "max_completion_length": MAX_COMPLETION_TOKENS,
            "temperature": TEMPERATURE,
            "beta": BETA,
            "epsilon": CLIP_LOW,
            "epsilon_high": CLIP_HIGH,
            "scale_rewards": "group",
            **how,
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that canned rollouts are an experimental feature
            self.trainer = GRPOTrainer(
                model=AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32),
                reward_funcs=reward,
                args=GRPOConfig(
                    output_dir=str(output),
                    use_cpu=True,
                    bf16=False,
                    gradient_checkpointing=False,
                    disable_dropout=True,
                    report_to="none",
                    save_strategy="no",
                    logging_strategy="no",
                    disable_tqdm=True,
                    shuffle_dataset=False,
                    **settings,
                ),
                train_dataset=Dataset.from_list([{"prompt": g.problem.id} for g in batch]),
                processing_class=AutoTokenizer.from_pretrained(folder, padding_side="left"),
                peft_config=LoraConfig(
                    r=RANK, lora_alpha=ALPHA, target_modules=list(PROJECTIONS), lora_dropout=0.0
                ),
                rollout_func=canned,
            )
        self.trainer.current_gradient_accumulation_steps = settings["gradient_accumulation_steps"]
        self.trainer.model.train()
        self._prompts = [{"prompt": group.problem.id} for group in batch for _ in group.rollouts]

    def parameters(self) -> list[tuple[str, nn.Parameter]]:
        named = self.trainer.model.named_parameters()
        return sorted((name, p) for name, p in named if p.requires_grad)

    def take(self, state: dict[str, Tensor]) -> None:
        with torch.no_grad():
            for name, parameter in self.parameters():
                parameter.copy_(state[name])

    def scored(self) -> dict[str, Any]:
        """The generation batch as TRL lays it out, with advantages and frozen passes."""
        found: dict[str, Any] = self.trainer._generate_and_score_completions(self._prompts)
        return found

    def step(self, aggregation: str) -> dict[str, Any]:
        """Loss, gradient and figures of the first optimiser step's part, at moved weights."""
        from trl.trainer.utils import split_tensor_dict

        self.take(adapter(self.parameters(), moved=False))
        part = split_tensor_dict(self.scored(), PARTS)[0]
        self.take(adapter(self.parameters(), moved=True))
        self.trainer.loss_type = aggregation
        self.trainer.model.zero_grad()
        self.trainer._metrics["train"].clear()
        loss = self.trainer._compute_loss(self.trainer.model, part)
        loss.backward()
        figures = self.trainer._metrics["train"]
        gradient = [p.grad.flatten() for _, p in self.parameters() if p.grad is not None]
        return {
            "loss": loss.item(),
            "gradient": torch.cat(gradient),
            "clip_low": figures["clip_ratio/low_mean"][-1],
            "clip_high": figures["clip_ratio/high_mean"][-1],
            "kl": figures["kl"][-1],
        }


def packed(values: Tensor) -> str:
    """Float32, little-endian, base64."""
    return base64.b64encode(values.numpy().astype("<f4").tobytes()).decode()


def unpacked(text: str) -> Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.float32)


def recorded() -> dict[str, Any]:
    """Everything that `trl_values.json` holds."""
    import transformers
    import trl

    torch.set_num_threads(1)
    values: dict[str, Any] = {
        "made_by": "python -m tests.engines.grpo.trl_reference",
        "versions": {m.__name__: m.__version__ for m in (trl, transformers, torch)},
        "aggregations": {},
        "advantages": {},
    }
    with tempfile.TemporaryDirectory() as name:
        folder = write_model(Path(name) / "model")
        output = Path(name) / "trl"
        whole = Reference(folder, output, the_batch())
        for how in AGGREGATIONS:
            figures = whole.step(how)
            gradient = figures.pop("gradient")
            values["aggregations"][how] = {
                **figures,
                "gradient_norm": gradient.norm().item(),
                "gradient": packed(gradient),
            }
        for ours, theirs in (("std", "group"), ("none", "none")):
            uneven = Reference(folder, output, the_batch(UNEVEN), scale_rewards=theirs)
            values["advantages"][ours] = uneven.scored()["advantages"].tolist()
    return values


if __name__ == "__main__":
    VALUES.write_text(json.dumps(recorded(), indent=1) + "\n")
    print(f"wrote {VALUES}", file=sys.stderr)
