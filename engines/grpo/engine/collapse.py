"""The collapse guard: notices that a run has lost what it could do, and where to go back to.

Pure functions of the rewards that batches had; the engine keeps the weights that they name.
"""

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from engines.core.codec import from_dict
from engines.core.frozen import frozen
from engines.core.types import Group
from engines.grpo.settings import GRPOSettings

if TYPE_CHECKING:
    from torch import Tensor

    from engines.policies.hf_local.model import LocalModel

Z = 5.0
"""Standard errors by which two means must differ before noise is ruled out.

Many batches are compared with the luckiest of many windows. Of 1,000 level runs of 100 batches,
with 1, 2, 3, 4 and 16 groups to a batch and problems of like or of very unlike difficulty, this
took less than 1 in 100 for a collapse each time; a bound of 4 took up to one in 12.
"""

LEAST_LEVEL = 16
"""Groups without which a mean is no level to fall from: a window of small batches is longer."""

LEAST_FALL = 8
"""Groups without which nothing has fallen."""

REMEMBERED = 500
"""Batches whose rewards tell how large noise is."""

AT_HAND = 3
"""Weights of the newest window that are kept until one of them is chosen."""


@frozen
class BatchReward:
    """What a batch scored under the weights that made its rollouts."""

    step: int
    weights: int  # the step whose update those weights came from; 0: those of the beginning
    reward: float  # mean over groups of the mean known reward
    spread: float  # variance of the group means (n - 1); 0 for a single group
    groups: int


def batch_reward(step: int, weights: int, group_means: Sequence[float]) -> BatchReward | None:
    """A batch's entry, or None where nothing was judged."""
    if not group_means:
        return None
    spread = statistics.variance(group_means) if len(group_means) > 1 else 0.0
    return BatchReward(step, weights, statistics.fmean(group_means), spread, len(group_means))


@frozen
class Candidate:
    """Weights that can be gone back to, and the level that they stand for.

    `reward` is the mean of the window that they were chosen from. Theirs was the best batch of
    it, for the newest may be ruined already.
    """

    weights: int
    reward: float
    groups: int


@frozen
class CollapseState:
    """What the guard remembers.

    `candidates` are the weights that the run began with, as soon as there is a level at all, and
    behind them the best ones, where those are others. Windows begin after step `turned`, at which
    weights were gone back to; only batches after step `since` can tell of a fall.
    """

    history: tuple[BatchReward, ...] = ()
    candidates: tuple[Candidate, ...] = ()
    since: int = 0
    turned: int = 0
    gone_to: int | None = None  # weights that were last gone back to
    given_up: int | None = None  # step at which nothing was left to go back to


@frozen
class Collapse:
    """That a run has collapsed, and the weights to go back to; None: none are left."""

    why: str
    to: int | None


def add_batch(
    watch: CollapseState, batch: BatchReward, kept: Collection[int], *, patience: int
) -> CollapseState:
    """Take the newest batch in; one that is taken in again changes nothing.

    `kept` are the steps of the weights that are still there, those of this batch among them.
    `patience` batches make a window, more where they are small.
    """
    if watch.given_up is not None and watch.given_up < batch.step:
        return CollapseState(given_up=watch.given_up)
    before = [known for known in watch.history if known.step < batch.step]
    watch = replace(watch, history=(*before[-REMEMBERED:], batch))
    found = _newest_window(watch, patience)
    if not found:
        return watch
    reward, groups = mean_level(found)
    if watch.candidates and reward <= watch.candidates[-1].reward:
        return watch
    there = [known for known in found if known.weights in kept]
    best = Candidate(max(there, key=lambda known: known.reward).weights, reward, groups)
    first = next(iter(watch.candidates), replace(best, weights=watch.history[0].weights))
    candidates = (best,) if best.weights == first.weights else (first, best)
    return replace(watch, candidates=candidates, since=batch.step)


def weights_to_keep(watch: CollapseState, *, patience: int) -> frozenset[int]:
    """Steps of the weights that may be gone back to, a handful at most.

    Of the window they are the newest and the best few: one of those is chosen if it turns out to
    be the best of all.
    """
    if watch.given_up is not None:
        return frozenset()
    found = _newest_batches(watch, patience)
    best = sorted(found[:-1], key=lambda known: -known.reward)[: AT_HAND - 1]
    known = watch.candidates or watch.history[:1]  # of which the beginning is the first
    return frozenset(one.weights for one in (*best, *found[-1:], *known))


def find_collapse(watch: CollapseState, *, drop: float, patience: int) -> Collapse | None:
    """Whether a run has collapsed, and where to go back to.

    It has where each of the last `patience` or more batches scored below `drop` times the best
    level, and their mean is below it by more than noise between problems explains. Weights that
    were gone back to and did no better are not gone back to again: those before them are.
    """
    if not watch.candidates or not drop:
        return None
    best = watch.candidates[-1]
    counted = [batch for batch in watch.history if batch.step > watch.since]
    good = [n for n, batch in enumerate(counted, 1) if batch.reward >= drop * best.reward]
    recent = counted[max(good, default=0) :]
    if len(recent) < patience:
        return None
    reward, groups = mean_level(recent)
    error = math.sqrt(problem_variance(watch.history) * (1 / best.groups + 1 / groups))
    if groups < LEAST_FALL or best.reward - reward <= Z * error:
        return None
    why = (
        f"practice reward fell from {best.reward:.2f} to {reward:.2f} over the last "
        f"{len(recent)} batches ({groups} groups), more than noise explains"
    )
    left = watch.candidates[:-1] if _has_rollback_failed(watch, best, drop) else watch.candidates
    return Collapse(why, left[-1].weights if left else None)


def record_rollback(watch: CollapseState, to: int, step: int) -> CollapseState:
    """Weights were gone back to: what was seen so far does not count against them again."""
    places = [n for n, candidate in enumerate(watch.candidates, 1) if candidate.weights == to]
    left = watch.candidates[: max(places, default=0)]
    return replace(watch, candidates=left, since=step, turned=step, gone_to=to)


def mean_level(batches: Sequence[BatchReward]) -> tuple[float, int]:
    """The mean over batches, each group counting the same, and the number of groups."""
    groups = sum(batch.groups for batch in batches)
    return sum(batch.reward * batch.groups for batch in batches) / groups, groups


def problem_variance(history: Sequence[BatchReward]) -> float:
    """Variance of a group's mean reward between problems, over a whole history.

    A collapsed batch varies little, and the best one was chosen for its luck too, so neither is
    asked alone. Inside batches it is their spread; between two in a row, half the square of how
    far they differ (von Neumann 1941), which a slow rise or one fall hardly enters. So it is
    known where each batch is a single group.
    """
    squares = sum(batch.spread * (batch.groups - 1) for batch in history)
    free = sum(batch.groups - 1 for batch in history)
    for one, other in pairwise(history):
        squares += (one.reward - other.reward) ** 2 / (1 / one.groups + 1 / other.groups)
        free += 1
    return squares / free if free else 0.0


def _newest_batches(watch: CollapseState, patience: int) -> Sequence[BatchReward]:
    """The newest batches, as many as a window has or fewer."""
    found = [batch for batch in watch.history if batch.step > watch.turned]
    size = groups = 0
    for batch in reversed(found):
        if size >= patience and groups >= LEAST_LEVEL:
            break
        size, groups = size + 1, groups + batch.groups
    return found[len(found) - size :]


def _newest_window(watch: CollapseState, patience: int) -> Sequence[BatchReward]:
    """The newest window; () before there are as many batches."""
    found = _newest_batches(watch, patience)
    return found if len(found) >= patience and mean_level(found)[1] >= LEAST_LEVEL else ()


def _has_rollback_failed(watch: CollapseState, best: Candidate, drop: float) -> bool:
    """Whether weights that were gone back to are themselves below what they stood for."""
    since = [batch for batch in watch.history if batch.step > watch.turned]
    own = [batch for batch in since if batch.weights == best.weights]
    return watch.gone_to == best.weights and bool(own) and mean_level(own)[0] < drop * best.reward


class CollapseRollback:
    """Watches the reward, and keeps the adapters that a fall may lead back to."""

    def __init__(self, settings: GRPOSettings, local: "LocalModel") -> None:
        self._drop, self._patience = settings.collapse_drop, settings.collapse_patience
        self._local = local
        self._watch = CollapseState()
        self._kept: dict[int, dict[str, Tensor]] = {}  # by the step that made them

    def observe_batch(self, batch: Sequence[Group], weights: int) -> Collapse | None:
        """Take a batch in, with the step whose weights made it; whether the run has collapsed."""
        means = [statistics.fmean(group.rewards) for group in batch if group.rewards]
        entry = batch_reward(batch[0].step, weights, means)
        if entry is None or self._drop is None:
            return None
        if weights not in self._kept:
            now = self._local.adapter_state()
            self._kept[weights] = {name: tensor.cpu() for name, tensor in now.items()}
        self._watch = add_batch(self._watch, entry, self._kept.keys(), patience=self._patience)
        needed = weights_to_keep(self._watch, patience=self._patience)
        self._kept = {step: kept for step, kept in self._kept.items() if step in needed}
        return find_collapse(self._watch, drop=self._drop, patience=self._patience)

    def give_up(self, step: int) -> None:
        """Watch no more: with the weights of the beginning it is no better."""
        self._watch = replace(self._watch, given_up=step)
        self._kept = {}

    def roll_back(self, to: int, step: int) -> "dict[str, Tensor]":
        """The adapter of step `to`, which is gone back to; `step` is the one that asked for it."""
        self._watch = record_rollback(self._watch, to, step)
        return self._kept[to]

    def state(self) -> "tuple[dict[str, Any], dict[str, Tensor]]":
        """Plain values, and the kept adapters, each tensor's name behind `STEP/`."""
        kept = {
            f"{step}/{name}": tensor
            for step, adapter in sorted(self._kept.items())
            for name, tensor in adapter.items()
        }
        return asdict(self._watch), kept

    def load(self, remembered: Mapping[str, Any], tensors: "Mapping[str, Tensor]") -> None:
        """Go on from what `state` gave."""
        self._watch, self._kept = from_dict(CollapseState, remembered), {}
        for key, tensor in tensors.items():
            step, _, name = key.partition("/")
            self._kept.setdefault(int(step), {})[name] = tensor
