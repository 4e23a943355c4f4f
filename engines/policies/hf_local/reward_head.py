"""A learned reward: a linear head on what a local model makes of a question and an answer.

Owns the head and its card. What it says is a guess, learned from the verdicts of one run.
Source: pairs by Bradley and Terry, as in InstructGPT (arXiv:2203.02155, section 3.5).
"""

import json
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional

from engines.core import codec, errors
from engines.core.frozen import frozen
from engines.policies.hf_local.model import LocalModel

HEAD, CARD = "head.safetensors", "reward_model.json"
HELD_OUT = 5
"""One group in so many is held back to measure."""
_DECAY = 1e-3
_ROUNDS = 60


@frozen
class JudgedAnswer:
    """An answer with its reward; `group` numbers the tries at one problem."""

    question: str
    answer: str
    reward: float
    group: int


@frozen
class RewardHead:
    """`mean` and `std` are those of the features it was fitted to; all (H,), the bias ()."""

    weight: Tensor
    bias: Tensor
    mean: Tensor
    std: Tensor

    def rewards(self, features: Tensor) -> Tensor:
        """(N, H) → (N,) between 0 and 1."""
        return torch.sigmoid((features - self.mean) / self.std @ self.weight + self.bias)

    def save(self, folder: Path, card: dict[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {own.name: getattr(self, own.name).contiguous() for own in fields(self)}
        save_file(tensors, folder / HEAD)
        (folder / CARD).write_text(json.dumps(card, indent=2) + "\n", "utf-8")


def load_head(folder: Path) -> tuple[RewardHead, dict[str, Any]]:
    """The head and its card. Raises DataError: there is none, or it is damaged."""
    try:
        card = json.loads((folder / CARD).read_text("utf-8"))
        return RewardHead(**load_file(folder / HEAD)), card
    except Exception as error:  # safetensors has errors of its own for each kind of damage
        raise errors.DataError(
            str(folder),
            f"it holds no reward model ({error}).",
            "Train one: studio train RUNFILE --stage reward.",
        ) from error


def learn(local: LocalModel, rows: Sequence[JudgedAnswer]) -> tuple[RewardHead, float, int]:
    """A head for all rows, and how one without a fifth of the groups orders the pairs of those."""
    features = features_of(local, [(row.question, row.answer) for row in rows])
    rewards = torch.tensor([row.reward for row in rows])
    groups = torch.tensor([row.group for row in rows])
    held = torch.tensor(
        [codec.seed_for(1, "reward", str(row.group)) % HELD_OUT == 0 for row in rows]
    )
    trial = fit_head(features[~held], rewards[~held], groups[~held])
    agreement = pair_accuracy(trial.rewards(features[held]), rewards[held], groups[held])
    return fit_head(features, rewards, groups), *agreement


def features_of(local: LocalModel, texts: Sequence[tuple[str, str]]) -> Tensor:
    """(N, H) float32: the last hidden states over each question and answer, averaged.

    Of a text that is longer than the window its end counts.
    """
    rows = []
    with local.lock, torch.inference_mode(), local.disable_adapter():
        for question, answer in texts:
            ids = local.tokenizer(f"{question}\n{answer}", add_special_tokens=False)["input_ids"]
            asked = torch.tensor([ids[-local.window :] or [local.pad_id]], device=local.device)
            states = local.base(input_ids=asked, output_hidden_states=True).hidden_states[-1]
            rows.append(states[0].float().mean(0).cpu())
    return torch.stack(rows)


def fit_head(features: Tensor, rewards: Tensor, groups: Tensor) -> RewardHead:
    """Fit to (N,) rewards and to every pair of one group of which one was better.

    The pairs say what is better, the rewards where 0 and 1 lie.
    """
    mean, std = features.mean(0), features.std(0, correction=0) + 1e-4
    scaled = (features - mean) / std
    wins, losses = _unequal_pairs(rewards, groups)
    weight = torch.zeros(features.shape[1], requires_grad=True)
    bias = torch.zeros((), requires_grad=True)
    optimiser = torch.optim.LBFGS([weight, bias], max_iter=_ROUNDS, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        scores = scaled @ weight + bias
        loss = functional.binary_cross_entropy_with_logits(scores, rewards)
        if len(wins):
            loss = loss - functional.logsigmoid(scores[wins] - scores[losses]).mean()
        loss = loss + _DECAY * weight.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimiser.step(closure)  # type: ignore[no-untyped-call]
    return RewardHead(weight.detach(), bias.detach(), mean, std)


def _unequal_pairs(rewards: Tensor, groups: Tensor) -> tuple[Tensor, ...]:
    """Places of the better and of the worse one, (pairs,) each, of every pair of one group."""
    better = (rewards[:, None] > rewards[None, :]) & (groups[:, None] == groups[None, :])
    return better.nonzero(as_tuple=True)


def pair_accuracy(scores: Tensor, rewards: Tensor, groups: Tensor) -> tuple[float, int]:
    """The share of pairs of one group that the scores order as the rewards do, and their number."""
    wins, losses = _unequal_pairs(rewards, groups)
    right = (scores[wins] > scores[losses]).float()
    return (float(right.mean()) if len(right) else 0.0), len(right)
