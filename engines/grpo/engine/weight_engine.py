"""The engine of a run whose weights learn: a batch of groups becomes one weight update.

Owns what is current, and what is computed but undecided. `consolidate` trains in place and puts
everything back; only `apply` changes the policy. What is computed is a subclass's: GRPO or
fine-tuning.
"""

import asyncio
import contextlib
import shutil
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from engines.core import errors, protocols
from engines.core.frozen import frozen
from engines.core.library import Library
from engines.core.types import Group, GroupOutcome, Lesson, LostWork, Reflection, Tell, WeightUpdate
from engines.grpo.checkpoint.contents import EngineState, read_checkpoint, write_checkpoint
from engines.grpo.engine.optimiser import Optimiser, Snapshot
from engines.grpo.ranks.ranks import ALONE, Ranks
from engines.policies.hf_local.model import LocalModel, empty_gpu_cache

if TYPE_CHECKING:
    from torch import Tensor

    from engines.policies.vllm import VLLMRollouts


T = TypeVar("T")


class NonFiniteUpdate(Exception):
    """A loss or a gradient is no finite number; says where."""


class OutOfMemory(Exception):
    """A forward or backward pass did not fit; `size` is the most that one held."""

    def __init__(self, size: int) -> None:
        self.size = size
        super().__init__(size)


@frozen
class TrainedBatch:
    """What training did, the weights apart."""

    metrics: Mapping[str, float]
    optimiser_steps: int
    note: str = ""


@frozen
class PreparedBatch:
    """What a batch gives to train on.

    `train` moves the weights, and the engine puts them back. It may ask the function that it is
    given whether the result is unwanted by now. Where the weights are of no use it raises
    NonFiniteUpdate, OutOfMemory or UpdateCancelled.
    """

    train: Callable[[Callable[[], bool]], TrainedBatch] | None  # None: nothing to train on
    losses: tuple[LostWork, ...] = ()
    rollback: WeightUpdate | None = None  # proposed instead of training


@frozen
class _PendingUpdate:
    """A computed update that nobody has decided yet."""

    step: int
    weights: Snapshot | None  # None: back to those of an earlier step
    optimiser_steps: int = 0


class WeightEngine(ABC):
    """Implements `engines.core.protocols.Engine` with weights that learn.

    The same batches in the same order give the same weights, bit for bit on one CPU with as
    many threads. Where ranks train together, an engine on each does what rank 0's does: the
    methods under `Ranks.together`. The model's lock is held whenever a method of a subclass works.

    `total_steps` counts batches of the whole run, which the schedule spans until `plan` says
    otherwise; `tell` receives one line for each thing that a person should know of. A model
    with nothing to train is refused with a PolicyError.
    """

    steps_per_batch = 1
    kind: str | None = None  # how a checkpoint names its way to learn; GRPO's has no name
    learns_by = "GRPO"
    learning_scale = 1.0  # what the learning rate is multiplied with besides its schedule
    unit = "sequences"  # what the size of a forward is counted in
    memory_advice = "set grpo.micro_batch lower, or shorten the rollouts"

    def __init__(
        self,
        local: LocalModel,
        optimiser: Optimiser,
        *,
        total_steps: int,
        tell: Tell,
        ranks: Ranks = ALONE,
    ) -> None:
        self._ranks = ranks
        self.optimiser = optimiser
        self._local, self._tell = local, tell
        self._planned = total_steps * self.steps_per_batch
        self._optimiser_steps = 0
        self.forward_limit: int | None = None  # of one forward, since memory ran out
        self._weights = 0  # the step whose update the weights come from; 0: those of the beginning
        self.pending: dict[str, _PendingUpdate] = {}
        self.policy_version = 0

    def plan(self, total_steps: int) -> None:
        """Let the schedule span so many batches."""
        with self._local.lock, self._ranks.together("plan", total_steps):
            self._planned = total_steps * self.steps_per_batch

    async def reflect(
        self, group: Group, library: Library, earlier: protocols.Earlier = ()
    ) -> Reflection:
        """Say what the group is worth; what its tokens do is `consolidate`'s."""
        return Reflection(group.step, group.position, self._reflection_outcome(group))

    async def consolidate(
        self, batch: Sequence[Group], reflections: Sequence[Reflection], library: Library
    ) -> Lesson:
        """Compute the batch's update, and leave weights and optimiser as they were.

        A batch that teaches nothing gives a lesson without update; one whose update cannot be
        used gives the loss. Computing a batch again gives the same.
        """
        update, losses = await run_in_thread(lambda stop: self.compute(tuple(batch), stop.is_set))
        return Lesson(batch[0].step, library.version, update=update, losses=losses)

    async def apply(self, update: WeightUpdate) -> int:
        """Make a computed update the current weights; returns the new policy version.

        Raises:
            ValueError: the last `consolidate` did not compute this update.
            PolicyError: another rank is gone, or has come to other weights.
        """
        return await asyncio.to_thread(self.commit, update)

    async def save(self, folder: Path) -> str:
        """Write a checkpoint from which `restore` goes on; returns the digest of all its files."""
        return await asyncio.to_thread(self._save, folder)

    async def restore(self, folder: Path) -> None:
        """Go back to a checkpoint.

        Raises StudioError: it is damaged, of another model, or of another way to learn.
        """
        await asyncio.to_thread(self._restore, folder)

    def state(self) -> EngineState:
        """Everything that decides what comes next; an undecided update is no part of it."""
        with self._ranks.together("state"):
            plain, kept = self._own_state()
            return EngineState(
                adapter=self.optimiser.adapter(),
                optimiser=self.optimiser.moment_vectors(),
                plain={
                    "policy_version": self.policy_version,
                    "optimiser_steps": self._optimiser_steps,
                    "forward_limit": self.forward_limit,
                    "moments": self.optimiser.moments,
                    **plain,
                },
                guard=kept,
            )

    def load_state(self, state: EngineState) -> None:
        """Go on from a state; the model's adapter must be of the same shape."""
        with self._ranks.together("load_state", state):
            plain = state.plain
            self.optimiser.restart(state.adapter)
            self.optimiser.load_moments(state.optimiser, int(plain["moments"]))
            self.policy_version = int(plain["policy_version"])
            self._optimiser_steps = int(plain["optimiser_steps"])
            self.forward_limit = plain["forward_limit"]
            self._load_own_state(plain, state.guard)
            self.pending = {}
            self._agree()

    @abstractmethod
    def _reflection_outcome(self, group: Group) -> GroupOutcome:
        """What a group is worth, before anything is computed."""

    @abstractmethod
    def _prepare(self, batch: Sequence[Group]) -> PreparedBatch: ...

    @abstractmethod
    def _own_state(self) -> "tuple[dict[str, Any], dict[str, Tensor]]":
        """Plain values of a checkpoint beside those of every engine, and adapters that it keeps."""

    @abstractmethod
    def _load_own_state(self, plain: Mapping[str, Any], kept: "Mapping[str, Tensor]") -> None: ...

    def _roll_back(self, to: int, step: int) -> None:
        """Go back to the weights of step `to`, as step `step` proposed."""
        raise AssertionError("this engine proposes no rollback")

    def compute(
        self, batch: Sequence[Group], is_stopped: Callable[[], bool] = lambda: False
    ) -> tuple[WeightUpdate | None, tuple[LostWork, ...]]:
        """`consolidate`, in the calling thread. Raises UpdateCancelled: on every rank."""
        with self._local.lock, self._ranks.together("compute", batch):
            step, self.pending = batch[0].step, {}
            prepared = self._prepare(batch)
            back = prepared.rollback
            if back is not None:
                self.pending = {back.handle: _PendingUpdate(step, None)}
                return back, prepared.losses
            if prepared.train is None:
                return None, prepared.losses
            try:
                trained, weights = self._train_and_undo(prepared.train, step, is_stopped)
            except (NonFiniteUpdate, OutOfMemory) as error:
                reason = str(error)
                if isinstance(error, OutOfMemory):
                    reason = (
                        f"out of memory with {error.size} {self.unit} to a forward, also after "
                        f"halving; {self.memory_advice}."
                    )
                lost = LostWork("update", f"step {step}", reason)
                return None, (*prepared.losses, lost)
            done = self._optimiser_steps + trained.optimiser_steps
            handle = f"step-{step}"
            self.pending = {handle: _PendingUpdate(step, weights, done)}
            return WeightUpdate(trained.metrics, handle, trained.note), prepared.losses

    def _train_and_undo(
        self,
        train: Callable[[Callable[[], bool]], TrainedBatch],
        step: int,
        is_stopped: Callable[[], bool],
    ) -> tuple[TrainedBatch, Snapshot]:
        """Train, and put the weights back; once in a run again with half as much at a time."""
        before = self.optimiser.snapshot()
        try:
            while True:
                try:
                    return train(is_stopped), self.optimiser.snapshot()
                except OutOfMemory as error:
                    if self.forward_limit is not None or error.size < 2:
                        raise
                    self.forward_limit = error.size // 2
                # Outside the handler: the error's traceback held what did not fit.
                self.optimiser.load(before)
                self.optimiser.zero_grad()
                empty_gpu_cache()
                self._tell(
                    f"Out of memory in step {step}: trying again with {self.forward_limit} "
                    f"{self.unit} to a forward, which stays so."
                )
        finally:
            self.optimiser.load(before)
            self.optimiser.zero_grad()

    def commit(self, update: WeightUpdate) -> int:
        """`apply`, in the calling thread."""
        pending = self.pending.pop(update.handle, None)
        if pending is None:
            raise ValueError(f"no computed update is called {update.handle!r}")
        with self._local.lock, self._ranks.together("commit", update):
            if pending.weights is None:
                assert update.rollback_to is not None
                self._roll_back(update.rollback_to, pending.step)
            else:
                self.optimiser.load(pending.weights)
                self._optimiser_steps = pending.optimiser_steps
                self._weights = pending.step
            self._agree()
        self.policy_version += 1
        return self.policy_version

    def _agree(self) -> None:
        """After a change of the weights that stays: all ranks have come to the same."""
        self.optimiser.share_weights()
        self._local.mark_changed()
        self._ranks.check_agreement(self._local.weights_digest)

    def _save(self, folder: Path) -> str:
        with self._local.lock:
            return write_checkpoint(folder, self._local, self.state())

    def _restore(self, folder: Path) -> None:
        with self._local.lock:
            state = read_checkpoint(folder, self._local)
            if state.plain.get("kind") != self.kind:
                raise errors.ConflictError(
                    str(folder),
                    f"it was not made by {self.learns_by}, whose optimiser would have to go on "
                    "from it.",
                    "Begin from its weights instead: policy.adapter=run:RUN and another --name.",
                )
            self.load_state(state)


async def run_in_thread(work: Callable[[threading.Event], T]) -> T:
    """Do work in a thread. Where the caller is cancelled, `stop` is set and the end awaited.

    So what the work touches is whole when this ends; it looks at `stop` now and then.
    """
    stop = threading.Event()
    working = asyncio.ensure_future(asyncio.to_thread(work, stop))
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        stop.set()
        while not working.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([working])
        working.exception()  # looked at, so that nobody warns of it
        raise


class VLLMSyncedEngine:
    """Implements `Engine`; what leaves the weights alone is the engine's own.

    The servers must see the same `folder`, from which they read adapters.
    """

    def __init__(
        self, engine: protocols.Engine, local: "LocalModel", rollouts: "VLLMRollouts", folder: Path
    ) -> None:
        self.engine = engine
        self.plan, self.reflect = engine.plan, engine.reflect
        self.consolidate, self.save = engine.consolidate, engine.save
        self._local, self._rollouts, self._folder = local, rollouts, folder

    async def apply(self, update: WeightUpdate) -> int:
        """As the engine's own; then rollouts come from the new weights.

        Raises PolicyError: the server does not take them. The update is applied here all the same.
        """
        version = await self.engine.apply(update)
        await self.publish()
        return version

    async def restore(self, folder: Path) -> None:
        await self.engine.restore(folder)
        await self.publish()

    async def publish(self) -> None:
        """Have the server answer with the weights as they are; call it before practice begins.

        Raises:
            PolicyError: the server does not take them.
            RecordError: they cannot be written.
        """
        name = await asyncio.to_thread(self._write_adapter)
        await self._rollouts.serve_adapter(name, self._folder / name)
        for older in self._folder.glob("studio-*"):  # the server has unloaded them
            if older.name != name:
                shutil.rmtree(older, ignore_errors=True)

    def _write_adapter(self) -> str:
        """The adapter's name, which follows from its content, once it is on disk."""
        with self._local.lock:
            name = f"studio-{self._local.weights_digest()[:16]}"
            if not (self._folder / name).is_dir():
                write_checkpoint(
                    self._folder / name, self._local, EngineState(self._local.adapter_state())
                )
        return name
