"""Updates by GRPO: a batch of scored groups becomes optimiser steps on its tokens.

Source: arXiv:2402.03300, Group Relative Policy Optimization.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from engines.core.types import Group, GroupOutcome, LostWork, WeightUpdate
from engines.grpo.engine.collapse import CollapseRollback
from engines.grpo.engine.optimiser import Optimiser
from engines.grpo.engine.update import BatchUpdate, UpdateMetrics, UpdatePlan
from engines.grpo.engine.weight_engine import OutOfMemory, PreparedBatch, TrainedBatch, WeightEngine
from engines.grpo.loss.collate import CollatedBatch, batch_advantages, collate, is_known
from engines.grpo.ranks.ranks import ALONE, Ranks
from engines.grpo.settings import GRPOSettings

if TYPE_CHECKING:
    from torch import Tensor

    from engines.policies.hf_local.model import LocalModel

SLOWER = 0.5
"""What the learning rate is multiplied with after each collapse, for the rest of the run."""
GAPS = {torch.float32: 0.01}
ROUGH_GAP = 0.5
"""Largest difference between log-probabilities as sampled and as trained that is not reported."""


class GRPOEngine(WeightEngine):
    """An engine that learns from rewards. `seed` decides the order of minibatches."""

    def __init__(
        self,
        settings: GRPOSettings,
        local: "LocalModel",
        *,
        total_steps: int,
        seed: int,
        ranks: Ranks = ALONE,
        tell: Callable[[str], None] = print,
        make_optimiser: "Callable[[LocalModel, GRPOSettings], Optimiser]" = Optimiser,
    ) -> None:
        self.steps_per_batch = settings.optimiser_steps_per_batch
        optimiser = make_optimiser(local, settings)
        super().__init__(
            settings, local, optimiser, total_steps=total_steps, tell=tell, ranks=ranks
        )
        self._settings, self._seed = settings, seed
        self._halved_to: int | None = None  # sequences to a forward since memory ran out
        self._guard = CollapseRollback(settings, local)

    def _reflection_outcome(self, group: Group) -> GroupOutcome:
        return group.reward_outcome

    def _prepare(self, batch: Sequence[Group]) -> PreparedBatch:
        """Only the collapse guard remembers the batch: seeing it again changes nothing."""
        settings, step = self._settings, batch[0].step
        metrics = _batch_metrics(batch, settings)
        collapse = self._guard.observe_batch(batch, self._weights)
        if collapse is not None and collapse.to is not None:
            back = self._propose_rollback(step, collapse.to, metrics, collapse.why)
            return PreparedBatch(None, rollback=back)
        given_up = () if collapse is None else (self._rollback_exhausted(step, collapse.why),)
        collated = collate(
            batch,
            scale=settings.advantage_scale,
            discount=settings.discount,
            keep_equal=settings.beta > 0,
        )
        train = partial(self._train, collated, metrics, step) if collated.samples else None
        return PreparedBatch(train, (*collated.left_out, *given_up))

    def _train(
        self,
        collated: CollatedBatch,
        batch_metrics: Mapping[str, float],
        step: int,
        is_stopped: Callable[[], bool],
    ) -> TrainedBatch:
        plan = UpdatePlan(
            settings=self._settings,
            step=step,
            seed=self._seed,
            done=self._optimiser_steps,
            planned=self._planned,
            learning_scale=self.learning_scale,
            rows=self._forward_rows(),
            ranks=self._ranks,
        )
        figures = BatchUpdate(self._local, self.optimiser, collated, plan, is_stopped).run()
        tokens = sum(sample.tokens for sample in collated.samples)
        metrics = {**batch_metrics, **figures.metrics(tokens)}
        return TrainedBatch(metrics, len(figures.loss), self._sampler_gap_note(figures))

    def _halve(self, error: OutOfMemory, step: int) -> str | None:
        if self._halved_to is not None or error.size < 2:
            return None
        self._halved_to = error.size // 2
        return (
            f"Out of memory in step {step}: trying again with {self._forward_rows()} sequences to "
            "a forward, which stays so. Set grpo.micro_batch to begin there."
        )

    def _roll_back(self, to: int, step: int) -> None:
        self.optimiser.restart(self._guard.roll_back(to, step))
        self._weights = to
        self.learning_scale *= SLOWER

    def _own_state(self) -> "tuple[dict[str, Any], dict[str, Tensor]]":
        guard, kept = self._guard.state()
        plain = {
            "weights": self._weights,
            "learning_scale": self.learning_scale,
            "halved_to": self._halved_to,
            "guard": guard,
        }
        return plain, kept

    def _load_own_state(self, plain: Mapping[str, Any], kept: "Mapping[str, Tensor]") -> None:
        self._weights = int(plain["weights"])
        self.learning_scale = float(plain["learning_scale"])
        self._halved_to = plain["halved_to"]
        self._guard.load(plain["guard"], kept)

    def _forward_rows(self) -> int | None:
        """Sequences to a forward: as set, or fewer where that has proved too many."""
        known = [n for n in (self._settings.micro_batch, self._halved_to) if n is not None]
        return min(known, default=None)

    def _sampler_gap_note(self, figures: UpdateMetrics) -> str:
        if figures.sampler_gap <= GAPS.get(self._local.dtype, ROUGH_GAP):
            return ""
        note = (
            f"log-probabilities differ from those at sampling by up to {figures.sampler_gap:.2g}: "
            "other weights, another temperature, or processed scores"
        )
        self._tell(f"{note[0].upper()}{note[1:]}.")
        return note

    def _rollback_exhausted(self, step: int, why: str) -> LostWork:
        self._guard.give_up(step)
        reason = (
            f"{why}, with the weights of the beginning too, so training goes on without going "
            "back: look at rewards and answers, or begin anew with grpo.learning_rate lower."
        )
        self._tell(f"Step {step}: {reason}")
        return LostWork("update", f"step {step}", reason)

    def _propose_rollback(
        self, step: int, to: int, metrics: Mapping[str, float], why: str
    ) -> WeightUpdate:
        where = f"step {to}" if to else "the beginning"
        scale = self.learning_scale * SLOWER
        note = (
            f"{why}: back to the weights of {where}, optimiser restarted, learning rate at "
            f"{scale:g} of its schedule from here on"
        )
        self._tell(f"Step {step}: {note}.")
        return WeightUpdate(
            {**metrics, "learning_scale": scale}, f"rollback-{to}", note, rollback_to=to
        )


def _batch_metrics(batch: Sequence[Group], settings: GRPOSettings) -> dict[str, float]:
    """Figures of the rollouts themselves: `length` and `truncated` are over the known ones."""
    known = [
        (rollout, verdict.reward)
        for group in batch
        for rollout, verdict in zip(group.rollouts, group.verdicts, strict=True)
        if is_known(rollout, verdict.reward)
    ]
    rewards = [reward for _, reward in known if reward is not None]
    used = batch_advantages(batch, scale=settings.advantage_scale).abs().amax(1) > 0
    count = max(1, len(known))
    return {
        "reward": statistics.fmean(rewards) if rewards else 0.0,
        "reward_std": statistics.stdev(rewards) if len(rewards) > 1 else 0.0,
        "contrast": float(used.double().mean()),
        "length": sum(len(t.token_ids) for r, _ in known for t in r.attempt.turns) / count,
        "truncated": sum(r.attempt.status == "truncated" for r, _ in known) / count,
    }
