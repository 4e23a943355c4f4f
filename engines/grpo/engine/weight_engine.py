"""The engine of a run whose weights learn: a batch of groups becomes one weight update.

Owns what is current, and what is computed but undecided. `consolidate` trains in place and puts
everything back; only `apply` changes the policy. What is computed is the updater's: GRPO or
fine-tuning.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import torch

from engines.core.library import Library
from engines.core.types import Group, GroupOutcome, Lesson, LostWork, Reflection, WeightUpdate
from engines.grpo.checkpoint.contents import EngineState, read_checkpoint, write_checkpoint
from engines.grpo.engine.failures import NonFiniteUpdate, OutOfMemory
from engines.grpo.engine.optimiser import Optimiser, Snapshot
from engines.grpo.engine.run_to_completion import run_in_thread
from engines.grpo.engine.schedule import LearningRateSettings, learning_rate_rise_text

if TYPE_CHECKING:
    from torch import Tensor

    from engines.policies.hf_local.model import LocalModel

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class PreparedBatch(Generic[S]):
    """What a batch gives to train on."""

    samples: S | None  # None: nothing to train on
    losses: tuple[LostWork, ...] = ()
    rollback: WeightUpdate | None = None  # proposed instead of training


@dataclass(frozen=True, slots=True)
class TrainedBatch:
    """What training did, the weights apart."""

    metrics: Mapping[str, float]
    optimiser_steps: int
    note: str = ""


class Updater(Protocol[S]):
    """How weights learn from a batch. The model's lock is held whenever it works."""

    steps_per_batch: int
    learning_scale: float  # what the learning rate is multiplied with besides its schedule

    @property
    def schedule(self) -> LearningRateSettings: ...

    def reflection_outcome(self, group: Group) -> GroupOutcome:
        """What a group is worth, before anything is computed."""
        ...

    def prepare(self, batch: Sequence[Group]) -> PreparedBatch[S]: ...

    def train(
        self, samples: S, step: int, *, done: int, planned: int, is_stopped: Callable[[], bool]
    ) -> TrainedBatch:
        """Move the weights; the caller puts them back.

        Args:
            samples: of `prepare`.
            step: of the batch.
            done: optimiser steps before it.
            planned: optimiser steps of the whole run.
            is_stopped: whether the result is unwanted by now.

        Raises:
            NonFiniteUpdate, OutOfMemory, UpdateCancelled: the weights are of no use.
        """
        ...

    def halve(self, error: OutOfMemory, step: int) -> str | None:
        """Take half as much to a forward from now on; the line to tell, None: not again."""
        ...

    def note_applied(self, step: int) -> None:
        """The update of `step` is what the weights are now."""
        ...

    def roll_back(self, to: int, step: int) -> None:
        """Go back to the weights of step `to`, as step `step` proposed."""
        ...

    def state(self) -> dict[str, Any]:
        """Plain values of a checkpoint, beside those of the engine."""
        ...

    def kept_tensors(self) -> dict[str, Tensor]: ...

    def check_state(self, plain: Mapping[str, Any], folder: Path) -> None:
        """Raises StudioError: a checkpoint's plain values are of another way to learn."""
        ...

    def load(self, plain: Mapping[str, Any], kept: Mapping[str, Tensor]) -> None: ...


@dataclass(frozen=True, slots=True)
class _PendingUpdate:
    """A computed update that nobody has decided yet."""

    step: int
    weights: Snapshot | None  # None: back to those of step `to`
    optimiser_steps: int = 0
    to: int = 0


class WeightEngine(Generic[S]):
    """Implements `engines.core.protocols.Engine` with weights that learn.

    The same batches in the same order give the same weights, bit for bit on one CPU with as
    many threads. Where ranks train together, each is given the same calls with the same batch.

    Args:
        updater: computes the updates.
        local: the model; its lock is held while it is used.
        optimiser: moves the model's weights; the updater's own.
        total_steps: batches of the whole run, which the schedule spans until `plan` says
            otherwise.
        tell: receives one line for each thing that a person should know of.
    """

    def __init__(
        self,
        updater: Updater[S],
        local: LocalModel,
        optimiser: Optimiser,
        *,
        total_steps: int,
        tell: Callable[[str], None],
    ) -> None:
        self.updater, self.optimiser = updater, optimiser
        self._local, self._tell = local, tell
        self._planned = total_steps * updater.steps_per_batch
        self._optimiser_steps = 0
        self.pending: dict[str, _PendingUpdate] = {}
        self.policy_version = 0

    def plan(self, total_steps: int) -> str:
        """Let the schedule span so many batches; what that does to the learning rate, or ""."""
        updater, before = self.updater, self._planned
        self._planned = total_steps * updater.steps_per_batch
        return learning_rate_rise_text(
            updater.schedule, self._optimiser_steps, before, self._planned, updater.learning_scale
        )

    async def reflect(self, group: Group, library: Library) -> Reflection:
        """Say what the group is worth; what its tokens do is `consolidate`'s."""
        return Reflection(group.step, group.position, self.updater.reflection_outcome(group))

    async def consolidate(
        self, batch: Sequence[Group], reflections: Sequence[Reflection], library: Library
    ) -> Lesson:
        """Compute the batch's update, and leave weights and optimiser as they were.

        A batch that teaches nothing gives a lesson without update; one whose update cannot be
        used gives the loss. Computing a batch again gives the same.
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
        """Write a checkpoint from which `restore` goes on to the same numbers.

        Returns:
            The digest over all its files.
        """
        return await asyncio.to_thread(self._save, folder)

    async def restore(self, folder: Path) -> None:
        """Go back to a checkpoint.

        Raises:
            StudioError: it is damaged, of another model, or of another way to learn.
        """
        await asyncio.to_thread(self._restore, folder)

    def state(self) -> EngineState:
        """Everything that decides what comes next; an undecided update is no part of it."""
        now = self.optimiser.snapshot()
        return EngineState(
            adapter=self._local.adapter_state(),
            optimiser=now.tensors(),
            plain={
                "policy_version": self.policy_version,
                "optimiser_steps": self._optimiser_steps,
                "moments": now.moments,
                **self.updater.state(),
            },
            guard=self.updater.kept_tensors(),
        )

    def load_state(self, state: EngineState) -> None:
        """Go on from a state; the model's adapter must be of the same shape."""
        plain = state.plain
        self._local.load_adapter_state(state.adapter)
        self.optimiser.load(Snapshot.from_tensors(state.optimiser, int(plain["moments"])))
        self.policy_version = int(plain["policy_version"])
        self._optimiser_steps = int(plain["optimiser_steps"])
        self.updater.load(plain, state.guard)
        self.pending = {}
        self._local.mark_changed()

    def _consolidate(
        self, batch: Sequence[Group], stop: threading.Event
    ) -> tuple[WeightUpdate | None, tuple[LostWork, ...]]:
        with self._local.lock:
            step, self.pending = batch[0].step, {}
            prepared = self.updater.prepare(batch)
            back = prepared.rollback
            if back is not None:
                assert back.rollback_to is not None
                self.pending = {back.handle: _PendingUpdate(step, None, to=back.rollback_to)}
                return back, prepared.losses
            if prepared.samples is None:
                return None, prepared.losses
            try:
                trained, weights = self._train(prepared.samples, step, stop)
            except (NonFiniteUpdate, OutOfMemory) as error:
                lost = LostWork("update", f"step {step}", str(error))
                return None, (*prepared.losses, lost)
            done = self._optimiser_steps + trained.optimiser_steps
            handle = f"step-{step}"
            self.pending = {handle: _PendingUpdate(step, weights, done)}
            return WeightUpdate(trained.metrics, handle, trained.note), prepared.losses

    def _train(self, samples: S, step: int, stop: threading.Event) -> tuple[TrainedBatch, Snapshot]:
        """Train, and put the weights back; once in a run again with half as much at a time."""
        before = self.optimiser.snapshot()
        try:
            while True:
                try:
                    trained = self.updater.train(
                        samples,
                        step,
                        done=self._optimiser_steps,
                        planned=self._planned,
                        is_stopped=stop.is_set,
                    )
                    return trained, self.optimiser.snapshot()
                except OutOfMemory as error:
                    line = self.updater.halve(error, step)
                    if line is None:
                        raise
                # Outside the handler: the error's traceback held what did not fit.
                self.optimiser.load(before)
                self.optimiser.zero_grad()
                if torch.cuda.is_available():
                    torch.cuda.empty_cache()
                self._tell(line)
        finally:
            self.optimiser.load(before)
            self.optimiser.zero_grad()

    def _apply(self, update: WeightUpdate) -> int:
        pending = self.pending.pop(update.handle, None)
        if pending is None:
            raise ValueError(f"no computed update is called {update.handle!r}")
        with self._local.lock:
            if pending.weights is None:
                self.updater.roll_back(pending.to, pending.step)
            else:
                self.optimiser.load(pending.weights)
                self._optimiser_steps = pending.optimiser_steps
                self.updater.note_applied(pending.step)
            self._local.mark_changed()
        self.policy_version += 1
        return self.policy_version

    def _save(self, folder: Path) -> str:
        with self._local.lock:
            return write_checkpoint(folder, self._local, self.state())

    def _restore(self, folder: Path) -> None:
        with self._local.lock:
            state = read_checkpoint(folder, self._local)
            self.updater.check_state(state.plain, folder)
            self.load_state(state)
