"""The loss of GRPO: advantages, what each sampled token contributes, and what it is averaged over.

Functions of tensors, with no settings object and no model inside.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from engines.grpo.settings import AdvantageScale, Aggregation


@dataclass(frozen=True, slots=True)
class TokenStats:
    """Sums over trainable tokens, 0-d and without gradient, so that parts of a batch add up."""

    tokens: Tensor
    clipped_low: Tensor  # ratio below 1 - clip_low while the advantage is negative
    clipped_high: Tensor  # ratio above 1 + clip_high while the advantage is positive
    kl: Tensor  # k3 with the reference; 0 without one
    ratio_max: Tensor  # the largest ratio (1 where nothing is trainable); this one is no sum


def token_losses(
    logp: Tensor,
    old: Tensor | None,
    ref: Tensor | None,
    advantages: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    beta: float,
    trainable: Tensor | None = None,
) -> tuple[Tensor, TokenStats]:
    """Clipped surrogate and KL, token by token.

    Args:
        logp: (B, T) log-probabilities under the weights being trained, at the rollouts'
            temperature.
        old: (B, T) the same under the weights before the update, without gradient; None: they
            are `logp` itself, so every ratio is 1 and only the gradient is left.
        ref: (B, T) under the reference, without gradient; None only where beta is 0.
        advantages: (B,) one per sequence, or (B, T).
        clip_low: ratios below 1 - clip_low gain nothing.
        clip_high: ratios above 1 + clip_high gain nothing.
        beta: weight of the KL estimate k3. It is multiplied with the ratio, since a signed
            log-ratio has zero expected gradient.
        trainable: (B, T) bool; None: all. Elsewhere the loss is 0, and the inputs may hold
            anything: they are masked before `exp`, which would make inf · 0 of a padded -1e4.

    Returns:
        (B, T) losses, with gradient to `logp`, and the sums of `TokenStats`.

    Source: PPO clip, arXiv:1707.06347; k3, arXiv:2402.03300 equation 4; two bounds, DAPO,
        arXiv:2503.14476.
    """
    if trainable is None:
        trainable = torch.ones_like(logp, dtype=torch.bool)
    if advantages.dim() == 1:
        advantages = advantages[:, None]
    logp = torch.where(trainable, logp, 0.0)
    old = logp.detach() if old is None else torch.where(trainable, old, 0.0)
    ratio = torch.exp(logp - old)
    bounded = ratio.clamp(1 - clip_low, 1 + clip_high)
    losses = -torch.minimum(ratio * advantages, bounded * advantages)
    kl = None
    if ref is not None:
        gap = torch.where(trainable, ref, 0.0) - logp
        kl = torch.expm1(gap) - gap  # k3
        if beta:
            losses = losses + beta * kl * ratio
    losses = torch.where(trainable, losses, 0.0)
    with torch.no_grad():
        low = (ratio < 1 - clip_low) & (advantages < 0) & trainable
        high = (ratio > 1 + clip_high) & (advantages > 0) & trainable
        stats = TokenStats(
            trainable.sum(),
            low.sum(),
            high.sum(),
            logp.new_zeros(()) if kl is None else kl.detach().sum(),
            ratio.detach().amax() if ratio.numel() else logp.new_ones(()),
        )
    return losses, stats


def divergences(old: Tensor, new: Tensor, ref: Tensor) -> tuple[Tensor, Tensor]:
    """How far an update moved the policy, and how far that is from the reference.

    The means of both are estimates, without bias, of the divergence of next-token distributions
    after what the old weights sampled; each term is 0 or more. The second weighs a token with
    new / old, as it was not the new weights that sampled it. Where those have left what the old
    ones sample altogether it tells only that: the first then grows, and it stays near 1.

    Given are log-probabilities (N,) of sampled tokens under the weights that sampled them, the
    updated ones and the reference.

    Returns:
        (N,) float64 of KL(old || new) and of KL(new || ref), in nats.

    Source: k3, Schulman, "Approximating KL divergence" (2020).
    """
    old, new, ref = old.double(), new.double(), ref.double()
    step, gap = new - old, ref - new
    weight = torch.exp(step)
    far = torch.exp(ref - old) - weight * (1 + gap)  # weight times k3 of the gap
    return torch.expm1(step) - step, far


def aggregate(
    losses: Tensor,
    trainable: Tensor,
    how: Aggregation,
    *,
    max_completion_tokens: int | None = None,
    normaliser: float | None = None,
) -> Tensor:
    """Reduce token losses to one scalar.

    - grpo: the mean over sequences of each one's mean over its trainable tokens.
    - bnpo: the mean over the trainable tokens of one optimiser step.
    - dr_grpo: the sum over tokens, over sequences · max_completion_tokens.
    - dapo: the sum over tokens, over the trainable tokens of the whole generation batch.

    `losses` are (B, T) and 0 where not `trainable`, which is bool. Where these rows are only a
    part (a micro-batch, a rank's share), `normaliser` is what the whole is divided by: sequences
    for grpo and dr_grpo, trainable tokens for bnpo and dapo. The parts' results then add up to
    that of the whole.
    """
    sequences = len(losses) if normaliser is None else normaliser
    if how == "grpo":
        return (losses.sum(1) / trainable.sum(1).clamp(min=1)).sum() / sequences
    if how == "dr_grpo":
        if not max_completion_tokens:
            raise ValueError("dr_grpo divides by max_completion_tokens")
        return losses.sum() / (sequences * max_completion_tokens)
    if normaliser is None:
        return losses.sum() / trainable.sum().clamp(min=1)
    return losses.sum() / normaliser


def group_advantages(
    rewards: Tensor, known: Tensor, *, scale: AdvantageScale = "std", eps: float = 1e-4
) -> Tensor:
    """Centre rewards inside each group.

    Args:
        rewards: (B, G) floating; B groups of G rollouts. What stands where unknown is ignored.
        known: (B, G) bool; False where there is no reward.
        scale: "std" divides by the standard deviation (n - 1) of the known rewards, + eps.
        eps: keeps the quotient of nearly equal rewards small.

    Returns:
        (B, G) in the type of `rewards`. Zero where unknown, and across a group whose known
        rewards are equal, of which a single one is a case.

    Source: GRPO, arXiv:2402.03300 section 4.1.2; "none" follows Dr. GRPO, arXiv:2503.20783.
    """
    rewards = torch.where(known, rewards, 0.0)
    count = known.sum(1, keepdim=True)
    mean = rewards.sum(1, keepdim=True) / count.clamp(min=1)
    centred = torch.where(known, rewards - mean, 0.0)
    # A mean of equal rewards may miss them by a rounding: equality is asked of the rewards.
    highest = torch.where(known, rewards, -torch.inf).amax(1, keepdim=True)
    lowest = torch.where(known, rewards, torch.inf).amin(1, keepdim=True)
    centred = torch.where(highest > lowest, centred, 0.0)
    if scale == "none":
        return centred
    variance = centred.square().sum(1, keepdim=True) / (count - 1).clamp(min=1)
    return centred / (variance.sqrt() + eps)
