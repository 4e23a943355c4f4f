"""Fine-tuning as an engine of the loop: a batch of demonstrations becomes one weight update.

Owns what is current and what is computed but undecided. Its groups have no rollouts: what is
learnt stands beside each problem. `consolidate` trains in place and puts everything back; only
`apply` changes the policy.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from engines.core.errors import ConflictError
from engines.core.library import Library
from engines.core.types import Group, Lesson, LostWork, Reflection, WeightUpdate
from engines.grpo.checkpoint.contents import EngineState, read_checkpoint, write_checkpoint
from engines.grpo.engine.optimiser import Optimiser, Snapshot, clip_gradient
from engines.grpo.engine.run_to_completion import run_in_thread
from engines.grpo.engine.schedule import learning_rate, learning_rate_rise_text
from engines.grpo.loss.sft import (
    FORWARD_TOKENS,
    accumulate,
    is_out_of_memory,
    is_packing_exact,
)
from engines.grpo.loss.sft_data import (
    Example,
    fits_window,
    parse_demonstration,
    tokenise_demonstration,
)
from engines.grpo.settings import GRPOSettings, SFTSettings

if TYPE_CHECKING:
    from engines.policies.hf_local.model import LocalModel

KIND = "sft"
"""What its checkpoints say, so that no other engine goes on from them."""


@dataclass(frozen=True, slots=True)
class _PendingUpdate:
    """A computed update that nobody has decided yet."""

    weights: Snapshot
    optimiser_steps: int


class _UpdateCancelled(Exception):
    """Nobody waits for the result any more."""


class SFTEngine:
    """Implements `engines.core.protocols.Engine` by learning what it is shown.

    The same demonstrations in the same order give the same weights, bit for bit on one CPU
    with as many threads.

    Args:
        settings: see `SFTSettings`.
        local: the model; its lock is held while it is used.
        total_steps: batches of the whole run, each an optimiser step of the schedule.
        instructions: the system prompt of demonstrations without messages of their own.
        tell: receives one line for each thing that a person should know of.
        forward_tokens: of one pass, padding included; it changes no figure but the time.

    Raises:
        PolicyError: the model has nothing to train.
    """

    def __init__(
        self,
        settings: SFTSettings,
        local: LocalModel,
        *,
        total_steps: int,
        instructions: str = "",
        tell: Callable[[str], None] = print,
        forward_tokens: int = FORWARD_TOKENS,
    ) -> None:
        self._settings, self._local, self._tell = settings, local, tell
        self._planned, self._instructions = total_steps, instructions
        self._optimiser = Optimiser(
            local,
            GRPOSettings(learning_rate=settings.learning_rate, weight_decay=settings.weight_decay),
        )
        self._pending: dict[str, _PendingUpdate] = {}
        self._optimiser_steps = 0
        self._forward_tokens, self._halved = forward_tokens, False
        self._packs: bool | None = None  # None: not looked at yet
        self.policy_version = 0

    def plan(self, total_steps: int) -> str:
        """Let the schedule span so many batches; what that does to the learning rate, or ""."""
        before, self._planned = self._planned, total_steps
        return learning_rate_rise_text(self._settings, self._optimiser_steps, before, self._planned)

    async def reflect(self, group: Group, library: Library) -> Reflection:
        """Every demonstration is learnt from."""
        return Reflection(group.step, group.position, "used")

    async def consolidate(
        self, batch: Sequence[Group], reflections: Sequence[Reflection], library: Library
    ) -> Lesson:
        """Compute one optimiser step, and leave weights and optimiser as they were.

        One that cannot be used gives the loss.
        """
        step = batch[0].step
        found = await run_in_thread(lambda stop: self._consolidate(batch, stop))
        if isinstance(found, str):
            lost = LostWork("update", f"step {step}", found)
            return Lesson(step, library.version, losses=(lost,))
        return Lesson(step, library.version, update=found)

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
            StudioError: it is damaged, of another model, or was not made by fine-tuning.
        """
        await asyncio.to_thread(self._restore, folder)

    def state(self) -> EngineState:
        """Everything that decides what comes next; an undecided update is no part of it."""
        now = self._optimiser.snapshot()
        return EngineState(
            adapter=self._local.adapter_state(),
            optimiser=now.tensors(),
            plain={
                "kind": KIND,
                "policy_version": self.policy_version,
                "optimiser_steps": self._optimiser_steps,
                "moments": now.moments,
                "forward_tokens": self._forward_tokens,
                "halved": self._halved,
            },
        )

    def load_state(self, state: EngineState) -> None:
        """Go on from a state; the model's adapter must be of the same shape."""
        plain = state.plain
        self._local.load_adapter_state(state.adapter)
        self._optimiser.load(Snapshot.from_tensors(state.optimiser, int(plain["moments"])))
        self.policy_version = int(plain["policy_version"])
        self._optimiser_steps = int(plain["optimiser_steps"])
        self._forward_tokens, self._halved = int(plain["forward_tokens"]), bool(plain["halved"])
        self._pending = {}
        self._local.mark_changed()

    def _consolidate(self, batch: Sequence[Group], stop: threading.Event) -> WeightUpdate | str:
        """The update, or why there is none."""
        with self._local.lock:
            return self._compute_update(batch, stop)

    def _compute_update(self, batch: Sequence[Group], stop: threading.Event) -> WeightUpdate | str:
        step, settings = batch[0].step, self._settings
        self._pending = {}
        every = (
            tokenise_demonstration(
                self._local, parse_demonstration(group.problem), self._instructions
            )
            for group in batch
        )
        examples = [example for example in every if fits_window(self._local, example)]
        if not examples:
            return f"none of its demonstrations fits the model's window of {self._local.window}."
        before = self._optimiser.snapshot()
        try:
            found = self._compute_gradients(examples, stop)
            if isinstance(found, str):
                return found
            loss, tokens = found
            gradient, norm = clip_gradient(self._optimiser.gradient(), settings.max_grad_norm)
            if not (math.isfinite(loss) and math.isfinite(norm)):
                return (
                    f"loss {loss:g} and gradient norm {norm:g}; the weights stay as they were. "
                    f"Set sft.learning_rate lower than {settings.learning_rate:g}, or look for odd "
                    "demonstrations."
                )
            rate = learning_rate(settings, self._optimiser_steps, self._planned)
            self._optimiser.step(gradient, rate)
            after = self._optimiser.snapshot()
        finally:
            self._optimiser.load(before)
            self._optimiser.zero_grad()
        handle = f"step-{step}"
        self._pending = {handle: _PendingUpdate(after, self._optimiser_steps + 1)}
        metrics = {
            "loss": loss,
            "grad_norm": norm,
            "learning_rate": rate,
            "tokens": float(tokens),
            "examples": float(len(examples)),
            "left_out": float(len(batch) - len(examples)),
            "length": tokens / len(examples),
            "optimiser_steps": 1.0,
        }
        return WeightUpdate(metrics, handle)

    def _compute_gradients(
        self, examples: Sequence[Example], stop: threading.Event
    ) -> tuple[float, int] | str:
        """Loss and learnt tokens; once in a run, with half as many tokens after running out."""

        def check_stop() -> None:
            if stop.is_set():
                raise _UpdateCancelled

        while True:
            self._optimiser.zero_grad()
            try:
                return accumulate(
                    self._local,
                    examples,
                    packs=self._can_pack(examples),
                    forward_tokens=self._forward_tokens,
                    before_each=check_stop,
                )
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                if self._halved:
                    return (
                        f"out of memory with {self._forward_tokens} tokens to a forward, also "
                        "after halving; set policy.local.gradient_checkpointing=true, or take "
                        "shorter demonstrations."
                    )
            self._halved = True  # the traceback, which held what did not fit, is gone here
            self._forward_tokens //= 2
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            self._tell(
                f"Out of memory: trying again with {self._forward_tokens} tokens to a forward, "
                "which stays so."
            )

    def _apply(self, update: WeightUpdate) -> int:
        pending = self._pending.pop(update.handle, None)
        if pending is None:
            raise ValueError(f"no computed update is called {update.handle!r}")
        with self._local.lock:
            self._optimiser.load(pending.weights)
            self._local.mark_changed()
        self._optimiser_steps = pending.optimiser_steps
        self.policy_version += 1
        return self.policy_version

    def _can_pack(self, examples: Sequence[Example]) -> bool:
        """Looked at once, on the two shortest of the first batch that has two."""
        if self._packs is None and len(examples) > 1:
            self._packs = is_packing_exact(self._local, *sorted(examples, key=len)[:2])
            if not self._packs:
                self._tell(
                    "Examples are not packed: this model does not keep those of a row apart."
                )
        return bool(self._packs)

    def _save(self, folder: Path) -> str:
        with self._local.lock:
            return write_checkpoint(folder, self._local, self.state())

    def _restore(self, folder: Path) -> None:
        with self._local.lock:
            state = read_checkpoint(folder, self._local)
            if state.plain.get("kind") != KIND:
                raise ConflictError(
                    str(folder),
                    "it was not made by fine-tuning, whose optimiser would have to go on from it.",
                    "Begin from its weights instead: policy.adapter=run:RUN and another --name.",
                )
            self.load_state(state)
