"""The collapse guard: notices that a run has lost what it could do.

Owns the judgement, as a pure function of the rewards that batches had. The engine keeps the
best weights and goes back to them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

Z = 5.0
"""Standard errors by which two means must differ before noise is ruled out.

Many batches are compared with the luckiest of many windows. Of 1,000 level runs of 100 batches
this took 1 for a collapse with 16 groups to a batch, and at most 9 with 4; a bound of 4 took one
in 20.
"""


@dataclass(frozen=True, slots=True)
class BatchReward:
    """What a batch scored under the weights that made its rollouts."""

    step: int
    weights: int  # the step whose update those weights came from; 0: those of the beginning
    reward: float  # mean over groups of the mean known reward
    spread: float  # variance of the group means (n - 1); 0 for a single group
    groups: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def batch_reward_from(data: Mapping[str, Any]) -> BatchReward:
    return BatchReward(**data)


def batch_reward(step: int, weights: int, group_means: Sequence[float]) -> BatchReward | None:
    """A batch's entry, or None where nothing was judged."""
    if not group_means:
        return None
    spread = statistics.variance(group_means) if len(group_means) > 1 else 0.0
    return BatchReward(step, weights, statistics.fmean(group_means), spread, len(group_means))


@dataclass(frozen=True, slots=True)
class Level:
    """The mean reward of a few batches in a row."""

    reward: float
    groups: int
    last: BatchReward  # the newest of them


def level(batches: Sequence[BatchReward]) -> Level:
    """The mean over batches, each group counting the same."""
    groups = sum(batch.groups for batch in batches)
    reward = sum(batch.reward * batch.groups for batch in batches) / groups
    return Level(reward, groups, batches[-1])


def best_level(history: Sequence[BatchReward], *, patience: int) -> Level | None:
    """The highest mean over `patience` batches in a row; None before there are as many."""
    windows = [level(history[end - patience : end]) for end in range(patience, len(history) + 1)]
    return max(windows, key=lambda window: window.reward, default=None)


def collapsed(
    history: Sequence[BatchReward], best: Level | None, *, drop: float, patience: int
) -> str:
    """Why a run has collapsed, or "".

    It has where each of the last `patience` or more batches scored below `drop` times the best
    level, and their mean is below it by more than noise between problems explains. That noise is
    measured over the whole history: a collapsed batch varies little, and the best one was
    chosen for its luck too. Where nothing ever varied, any difference counts.

    Args:
        history: batches in order, the newest last.
        best: the highest level before them.
        drop: share of the best level, 0 switches the guard off.
        patience: batches in a row.
    """
    if best is None or not drop:
        return ""
    since = [batch for batch in history if batch.step > best.last.step]
    kept = [n for n, batch in enumerate(since, 1) if batch.reward >= drop * best.reward]
    recent = since[max(kept, default=0) :]
    if len(recent) < patience:
        return ""
    now = level(recent)
    groups = sum(batch.groups for batch in history)
    variance = sum(batch.spread * batch.groups for batch in history) / groups
    error = math.sqrt(variance * (1 / best.groups + 1 / now.groups))
    if best.reward - now.reward <= Z * error:
        return ""
    return (
        f"practice reward fell from {best.reward:.2f} to {now.reward:.2f} over the last "
        f"{len(recent)} batches ({now.groups} groups), more than noise explains"
    )
