"""GRPO as an engine of the loop: a batch of scored groups becomes one weight update.

Owns what is current and what is computed but undecided. `consolidate` trains in place and puts
everything back; only `apply` changes the policy.

Source: arXiv:2402.03300, Group Relative Policy Optimization.
"""

from __future__ import annotations

import asyncio
import statistics
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from engines.core.library import Library
from engines.core.types import Group, Lesson, LostWork, Reflection, WeightUpdate
from engines.grpo.checkpoint.contents import EngineState, read_checkpoint, write_checkpoint
from engines.grpo.engine.collapse_rollback import CollapseRollback
from engines.grpo.engine.optimiser import Optimiser, Snapshot
from engines.grpo.engine.run_to_completion import run_in_thread
from engines.grpo.engine.schedule import learning_rate_rise_text, planned_steps
from engines.grpo.engine.update import (
    BatchUpdate,
    NonFiniteUpdate,
    OutOfMemory,
    UpdateMetrics,
    UpdatePlan,
)
from engines.grpo.loss.collate import CollatedBatch, batch_advantages, collate, is_known
from engines.grpo.ranks.ranks import ALONE, Ranks
from engines.grpo.settings import GRPOSettings

if TYPE_CHECKING:
    from engines.policies.hf_local.model import LocalModel

FIRST_STEP = 0
"""Stands for the weights that a run begins with, wherever a step's weights are named."""

SLOWER = 0.5
"""What the learning rate is multiplied with after each collapse, for the rest of the run."""

GAPS = {torch.float32: 0.01}
ROUGH_GAP = 0.5
"""Largest difference between log-probabilities as sampled and as trained that is not told of."""


@dataclass(frozen=True, slots=True)
class _PendingUpdate:
    """A computed update that nobody has decided yet."""

    step: int
    weights: Snapshot | None  # None: back to those of step `to`
    optimiser_steps: int = 0
    to: int = FIRST_STEP


class GRPOEngine:
    """Implements `engines.core.protocols.Engine` with weights that learn.

    The same seed, token ids and rewards give the same weights, bit for bit on one CPU with as
    many threads. Where ranks train together, each is given the same calls with the same batch.

    Args:
        settings: see `GRPOSettings`.
        local: the model; its lock is held while it is used.
        total_steps: batches of the whole run, which the schedule spans until `plan` says
            otherwise.
        seed: of the order of minibatches.
        ranks: the processes that train together.
        tell: receives one line for each thing that a person should know of.
        optimiser: makes what moves the weights.

    Raises:
        PolicyError: the model has nothing to train.
    """

    def __init__(
        self,
        settings: GRPOSettings,
        local: LocalModel,
        *,
        total_steps: int,
        seed: int,
        ranks: Ranks = ALONE,
        tell: Callable[[str], None] = print,
        optimiser: Callable[[LocalModel, GRPOSettings], Optimiser] = Optimiser,
    ) -> None:
        self._settings, self._local, self._ranks, self._tell = settings, local, ranks, tell
        self._planned, self._seed = planned_steps(total_steps, settings), seed
        self._optimiser = optimiser(local, settings)
        self._pending: dict[str, _PendingUpdate] = {}
        self._optimiser_steps = 0
        self._weights = FIRST_STEP
        self._learning_scale = 1.0
        self._halved_to: int | None = None  # sequences to a forward since memory ran out
        self._retreat = CollapseRollback(settings, local)
        self.policy_version = 0

    def plan(self, total_steps: int) -> str:
        """Let the schedule span so many batches; what that does to the learning rate, or ""."""
        before, self._planned = self._planned, planned_steps(total_steps, self._settings)
        scale = self._learning_scale
        return learning_rate_rise_text(
            self._settings, self._optimiser_steps, before, self._planned, scale
        )

    async def reflect(self, group: Group, library: Library) -> Reflection:
        """Say what the group's rewards tell; what its tokens do is `consolidate`'s."""
        return Reflection(group.step, group.position, group.reward_outcome)

    async def consolidate(
        self, batch: Sequence[Group], reflections: Sequence[Reflection], library: Library
    ) -> Lesson:
        """Compute the batch's update, and leave weights and optimiser as they were.

        A batch that teaches nothing gives a lesson without update; one whose update cannot be
        used gives the loss. Only the guard remembers the batch: seeing it again changes nothing.
        """
        update, losses = await run_in_thread(lambda stop: self._consolidate(batch, stop))
        return Lesson(batch[0].step, library.version, update=update, losses=losses)

    async def apply(self, update: WeightUpdate) -> int:
        """Make a computed update the current weights; returns the new policy version.

        Raises:
            ValueError: the last `consolidate` did not compute this update.
        """
        return await asyncio.to_thread(self._apply, update)

    async def save(self, folder: Path) -> str:
        """Write a checkpoint from which `restore` goes on to the same numbers; its digest."""
        return await asyncio.to_thread(self._save, folder)

    async def restore(self, folder: Path) -> None:
        """Go back to a checkpoint.

        Raises:
            StudioError: it is damaged, or of another model.
        """
        await asyncio.to_thread(self._restore, folder)

    def state(self) -> EngineState:
        """Everything that decides what comes next; an undecided update is no part of it."""
        now = self._optimiser.snapshot()
        return EngineState(
            adapter=self._local.adapter_state(),
            optimiser=now.tensors(),
            plain={
                "policy_version": self.policy_version,
                "weights": self._weights,
                "optimiser_steps": self._optimiser_steps,
                "moments": now.moments,
                "learning_scale": self._learning_scale,
                "halved_to": self._halved_to,
                "guard": self._retreat.state_dict(),
            },
            guard=self._retreat.adapter_tensors(),
        )

    def load_state(self, state: EngineState) -> None:
        """Go on from a state; the model's adapter must be of the same shape."""
        plain = state.plain
        self._local.load_adapter_state(state.adapter)
        self._optimiser.load(Snapshot.from_tensors(state.optimiser, int(plain["moments"])))
        self.policy_version, self._weights = int(plain["policy_version"]), int(plain["weights"])
        self._optimiser_steps = int(plain["optimiser_steps"])
        self._learning_scale = float(plain["learning_scale"])
        self._halved_to = plain["halved_to"]
        self._retreat.load(plain["guard"], state.guard)
        self._pending = {}
        self._local.mark_changed()

    def _consolidate(
        self, batch: Sequence[Group], stop: threading.Event
    ) -> tuple[WeightUpdate | None, tuple[LostWork, ...]]:
        with self._local.lock:
            return self._compute_lesson(batch, stop)

    def _compute_lesson(
        self, batch: Sequence[Group], stop: threading.Event
    ) -> tuple[WeightUpdate | None, tuple[LostWork, ...]]:
        settings, step = self._settings, batch[0].step
        self._pending = {}
        seen = _batch_metrics(batch, settings)
        fallen = self._retreat.observe_batch(batch, self._weights)
        if fallen is not None and fallen.to is not None:
            return self._propose_rollback(step, fallen.to, seen, fallen.why), ()
        given_up = () if fallen is None else (self._rollback_exhausted(step, fallen.why),)
        update, losses = self._train(batch, seen, stop)
        return update, (*losses, *given_up)

    def _train(
        self, batch: Sequence[Group], seen: Mapping[str, float], stop: threading.Event
    ) -> tuple[WeightUpdate | None, tuple[LostWork, ...]]:
        settings, step = self._settings, batch[0].step
        collated = collate(
            batch,
            scale=settings.advantage_scale,
            eps=settings.advantage_eps,
            discount=settings.discount,
            keep_equal=settings.beta > 0,
        )
        if not collated.samples:
            return None, collated.left_out
        before = self._optimiser.snapshot()
        try:
            figures = self._compute_update(collated, step, before, stop)
            after = self._optimiser.snapshot()
        except (NonFiniteUpdate, OutOfMemory) as error:
            reason = (
                f"{error}; the weights stay as they were."
                if isinstance(error, NonFiniteUpdate)
                else f"out of memory with {error.rows} sequences to a forward, also after halving; "
                "set grpo.micro_batch lower, or shorten the rollouts."
            )
            return None, (*collated.left_out, LostWork("update", f"step {step}", reason))
        finally:
            self._optimiser.load(before)
            self._optimiser.zero_grad()
        tokens = sum(sample.tokens for sample in collated.samples)
        handle = f"step-{step}"
        done = self._optimiser_steps + len(figures.loss)
        self._pending = {handle: _PendingUpdate(step, after, done)}
        note = self._sampler_gap_note(figures)
        return WeightUpdate({**seen, **figures.metrics(tokens)}, handle, note), collated.left_out

    def _compute_update(
        self, collated: CollatedBatch, step: int, before: Snapshot, stop: threading.Event
    ) -> UpdateMetrics:
        """Train; once in a run, with half as many sequences to a forward after running out."""
        while True:
            plan = UpdatePlan(
                self._settings,
                step,
                self._seed,
                self._optimiser_steps,
                self._planned,
                self._learning_scale,
                self._forward_rows(),
            )
            update = BatchUpdate(
                self._local, self._optimiser, collated, plan, self._ranks, stop.is_set
            )
            try:
                return update.run()
            except OutOfMemory as error:
                if self._halved_to is not None or error.rows < 2:
                    raise
                self._halved_to = error.rows // 2
            self._optimiser.load(before)
            self._optimiser.zero_grad()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            self._tell(
                f"Out of memory in step {step}: trying again with {self._forward_rows()} "
                f"sequences to a "
                "forward, which stays so. Set grpo.micro_batch to begin there."
            )

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
        self._retreat.give_up(step)
        reason = (
            f"{why}, with the weights of the beginning too, so training goes on without going "
            "back: look at rewards and answers, or begin anew with grpo.learning_rate lower."
        )
        self._tell(f"Step {step}: {reason}")
        return LostWork("update", f"step {step}", reason)

    def _propose_rollback(
        self, step: int, to: int, seen: Mapping[str, float], why: str
    ) -> WeightUpdate:
        where = f"step {to}" if to else "the beginning"
        scale = self._learning_scale * SLOWER
        note = (
            f"{why}: back to the weights of {where}, optimiser restarted, learning rate at "
            f"{scale:g} of its schedule from here on"
        )
        self._tell(f"Step {step}: {note}.")
        handle = f"rollback-{to}"
        self._pending = {handle: _PendingUpdate(step, None, to=to)}
        return WeightUpdate({**seen, "learning_scale": scale}, handle, note, rollback_to=to)

    def _apply(self, update: WeightUpdate) -> int:
        pending = self._pending.pop(update.handle, None)
        if pending is None:
            raise ValueError(f"no computed update is called {update.handle!r}")
        with self._local.lock:
            if pending.weights is None:
                self._apply_rollback(pending)
            else:
                self._optimiser.load(pending.weights)
                self._optimiser_steps = pending.optimiser_steps
                self._weights = pending.step
            self._local.mark_changed()
        self.policy_version += 1
        return self.policy_version

    def _apply_rollback(self, pending: _PendingUpdate) -> None:
        self._retreat.roll_back(pending.to, pending.step)
        self._optimiser.restart()
        self._weights = pending.to
        self._learning_scale *= SLOWER

    def _save(self, folder: Path) -> str:
        with self._local.lock:
            return write_checkpoint(folder, self._local, self.state())

    def _restore(self, folder: Path) -> None:
        with self._local.lock:
            self.load_state(read_checkpoint(folder, self._local))


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
