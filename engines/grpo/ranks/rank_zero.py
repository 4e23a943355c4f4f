"""What rank 0 does beside practising: it has the other ranks do their part of every batch.

Owns who computes what: a group's rollouts stay on one rank, and so do its gradients. The run,
its journal and its checkpoints are rank 0's alone.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from engines.core.errors import PolicyError
from engines.core.types import Group, Lesson, Reflection, WeightUpdate
from engines.grpo.checkpoint.contents import EngineState, read_checkpoint, write_checkpoint
from engines.grpo.engine.optimiser import MOMENTS
from engines.grpo.ranks.distributed import BEAT_S
from engines.grpo.ranks.lendable_lock import LendableLock
from engines.grpo.ranks.rank_worker import (
    WEIGHTS,
    ApplyUpdate,
    ConsolidateBatch,
    DecodeFailure,
    DecodeShares,
    GatherMoments,
    Heartbeat,
    LoadState,
    OpenModel,
    SetTotalSteps,
    build_engine,
    decode_share,
    rank_moments,
    remap_hooks,
)
from engines.policies.hf_local.decoding import DecodedReply, DecodeHooks, DecodeRequest

if TYPE_CHECKING:
    from torch import Tensor

    from engines.core.library import Library
    from engines.grpo.ranks.distributed import DistributedRanks
    from engines.grpo.settings import GRPOSettings
    from engines.policies.hf_local.model import LocalModel
    from engines.policies.hf_local.policy import HFLocal

T = TypeVar("T")

OWN_DEVICES = ("auto", "cpu", "cuda")
"""Values of `device` that mean another one in each process, where there are several."""


class RankZeroEngine:
    """The engine of a run that trains on several ranks; implements `Engine`.

    What it does not say itself is the engine's own. A failure in the midst of common work
    leaves the ranks apart, so nothing can follow it but the end of the run.

    Args:
        others: of rank 0; `stop` lets them go once the run is over.
        local: the model, its adapter as the run begins with.
        settings: of the engine.
        total_steps: of the engine.
        seed: of the engine.
        tell: receives what the engine tells.

    Raises:
        PolicyError: the model was put on a device by name or on several, another rank is gone,
            or it did not come to the same weights.
    """

    def __init__(
        self,
        others: DistributedRanks,
        local: LocalModel,
        settings: GRPOSettings,
        *,
        total_steps: int,
        seed: int,
        tell: Callable[[str], None],
    ) -> None:
        if local.settings.device not in OWN_DEVICES:
            raise PolicyError(
                "policy.local.device",
                f"{local.settings.device} leaves no device of its own to each process.",
                "Set it to auto, or train with one process.",
            )
        self._others, self._local = others, local
        self._turn = LendableLock()
        local.lock = self._turn
        alike = replace(local.settings, threads=local.threads, device=local.device.type)
        opening = OpenModel(alike, settings, total_steps, seed)
        self.engine = build_engine(others, local, opening, tell)
        others.send(opening)
        self._send_state(self._with_all_moments(self.engine.state(), fresh=True))
        threading.Thread(target=self._send_heartbeats, daemon=True).start()

    def share_sampling(self, policy: HFLocal) -> None:
        """Have a policy of the same model decode over all ranks from now on."""
        self._local.max_batch *= self._others.size
        policy.decode = self.decode

    def __getattr__(self, name: str) -> Any:
        """What concerns this rank alone: facts, state, policy version, times."""
        return getattr(self.engine, name)

    def plan(self, total_steps: int) -> str:
        with self._turn:
            self._others.send(SetTotalSteps(total_steps))
            return self.engine.plan(total_steps)

    async def reflect(self, group: Group, library: Library) -> Reflection:
        return await self.engine.reflect(group, library)

    async def consolidate(
        self, batch: Sequence[Group], reflections: Sequence[Reflection], library: Library
    ) -> Lesson:
        async def work() -> Lesson:
            self._others.send(ConsolidateBatch(tuple(batch), tuple(reflections), library))
            return await self.engine.consolidate(batch, reflections, library)

        return await self._run_on_all_ranks(work)

    async def apply(self, update: WeightUpdate) -> int:
        """As the engine's own, on every rank.

        Raises:
            PolicyError: a rank has come to other weights.
        """

        async def work() -> int:
            self._others.send(ApplyUpdate(update))
            version = await self.engine.apply(update)
            self._others.check_agreement(self._local.weights_digest(), WEIGHTS)
            return version

        return await self._run_on_all_ranks(work)

    async def save(self, folder: Path) -> str:
        async def work() -> str:
            return await asyncio.to_thread(
                write_checkpoint, folder, self._local, self._gather_state()
            )

        return await self._run_on_all_ranks(work)

    async def restore(self, folder: Path) -> None:
        async def work() -> None:
            state = await asyncio.to_thread(read_checkpoint, folder, self._local)
            self.engine.load_state(state)
            self._send_state(state)

        await self._run_on_all_ranks(work)

    def state(self) -> EngineState:
        with self._turn:
            return self._gather_state()

    def load_state(self, state: EngineState) -> None:
        with self._turn:
            self.engine.load_state(state)
            self._send_state(state)

    def decode(
        self, local: LocalModel, rows: Sequence[DecodeRequest], watch: DecodeHooks | None = None
    ) -> list[DecodedReply]:
        """As `decode`, whole prompts to a rank; the caller holds the model's lock.

        Raises:
            DecodingCancelled: as `decode`, once the others are done.
            RuntimeError: a rank's memory ran out.
        """
        shares = split_by_prompt(rows, self._others.size)
        most = max(1, -(-local.max_batch // self._others.size))
        watch = watch or DecodeHooks()
        if not any(shares[1:]):
            return decode_share(local, rows, most, watch)
        self._others.send(
            DecodeShares(tuple(tuple(rows[i] for i in share) for share in shares), most)
        )
        own: list[DecodedReply] | Exception
        try:
            mine = [rows[i] for i in shares[0]]
            own = decode_share(local, mine, most, remap_hooks(watch, shares[0]))
        except Exception as error:  # the others are still to be heard, whatever it is
            own = error
        heard = [own, *self._others.gather(None)[1:]]
        drawn = [DecodedReply() for _ in rows]
        for share, told in zip(shares, heard, strict=True):
            if isinstance(told, Exception):
                raise told
            if isinstance(told, DecodeFailure):
                raise RuntimeError(told.reason)
            for place, one in zip(share, told, strict=True):
                drawn[place] = one
        return drawn

    async def _run_on_all_ranks(self, work: Callable[[], Awaitable[T]]) -> T:
        return await self._turn.run_holding_lock(self._mark_ranks_apart(work))

    async def _mark_ranks_apart(self, work: Callable[[], Awaitable[T]]) -> T:
        try:
            return await work()
        except Exception as error:  # of whatever kind: the others are elsewhere now
            self._others.apart = self._others.apart or f"{type(error).__name__}: {error}"
            raise

    def _send_state(self, state: EngineState) -> None:
        self._others.send(LoadState(state))
        self._others.check_agreement(self._local.weights_digest(), WEIGHTS)

    def _gather_state(self) -> EngineState:
        """The engine's state, its moments from every rank where each has a part."""
        if not self._others.sharded:
            return self.engine.state()
        self._others.send(GatherMoments())
        parts = self._others.gather(rank_moments(self.engine))
        return self._with_all_moments(self.engine.state(), parts=parts)

    def _with_all_moments(
        self,
        state: EngineState,
        *,
        fresh: bool = False,
        parts: Sequence[tuple[Tensor, ...]] = (),
    ) -> EngineState:
        if not self._others.sharded:
            return state
        made = dict(state.optimiser)
        for number, name in enumerate(MOMENTS):
            made[name] = (
                torch.zeros_like(made["master"])
                if fresh
                else torch.cat([part[number] for part in parts])
            )
        return replace(state, optimiser=made)

    def _send_heartbeats(self) -> None:
        """Keep the others from giving up while there is nothing to do."""
        while not self._others.over.wait(BEAT_S) and not self._others.apart:
            if self._turn.acquire(blocking=False):
                try:
                    self._others.send(Heartbeat())
                except PolicyError:
                    return  # whoever comes next with real work is told
                finally:
                    self._turn.release()


def split_by_prompt(rows: Sequence[DecodeRequest], size: int) -> list[list[int]]:
    """Which rows each rank decodes: those of one prompt together, numbers as even as that allows.

    Args:
        rows: of a batch.
        size: how many ranks.

    Returns:
        Indices of rows by rank, in ascending order.
    """
    prompts: dict[tuple[int, ...], list[int]] = {}
    for index, row in enumerate(rows):
        prompts.setdefault(row.prompt_ids, []).append(index)
    shares: list[list[int]] = [[] for _ in range(size)]
    for group in sorted(prompts.values(), key=len, reverse=True):
        min(shares, key=len).extend(group)
    return [sorted(share) for share in shares]
