"""Advantages: how much better a rollout was than its siblings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from engines.grpo.settings import AdvantageScale


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
