"""What rank 0 does beside practising: it has the other ranks do their part of every batch.

A group's rollouts stay on one rank, and so do its gradients. All that is written is rank 0's.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextvars import ContextVar, copy_context
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from engines.core.errors import PolicyError
from engines.core.types import Group, Lesson, Reflection, WeightUpdate
from engines.grpo.checkpoint.contents import EngineState, read_checkpoint, write_checkpoint
from engines.grpo.engine.optimiser import MOMENTS
from engines.grpo.ranks.distributed import BEAT_S, HEARTBEAT
from engines.grpo.ranks.rank_worker import (
    WEIGHTS,
    DecodeShares,
    EngineCall,
    OpenModel,
    build_engine,
    decode_share,
    rank_moments,
    remap_hooks,
)
from engines.policies.hf_local.decoding import DecodedReply, DecodeHooks, DecodeRequest

if TYPE_CHECKING:
    from engines.core.library import Library
    from engines.grpo.ranks.distributed import DistributedRanks
    from engines.grpo.settings import GRPOSettings
    from engines.policies.hf_local.model import LocalModel
    from engines.policies.hf_local.policy import HFLocal

T = TypeVar("T")

OWN_DEVICES = ("auto", "cpu", "cuda")
"""Values of `device` that mean another one in each process, where there are several."""


_LENT: ContextVar[LendableLock | None] = ContextVar("turn", default=None)


class LendableLock:
    """A lock that its holder can lend to work which takes it itself.

    It is the model's lock on rank 0. The other ranks hear of work in the order in which it was
    taken, so that no batch to be decoded comes between an update's sums. Lending follows the
    context of a task and of the threads that `asyncio.to_thread` starts for it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def acquire(self, blocking: bool = True) -> bool:
        return _LENT.get() is self or self._lock.acquire(blocking)

    def release(self) -> None:
        if _LENT.get() is not self:
            self._lock.release()

    def locked(self) -> bool:
        return self._lock.locked()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *exc: object) -> None:
        self.release()

    async def run_holding_lock(self, work: Coroutine[Any, Any, T]) -> T:
        """Do work in this turn. A cancelled caller cancels the work and waits for its end."""
        taking = asyncio.ensure_future(asyncio.to_thread(self._lock.acquire))
        try:
            await asyncio.shield(taking)
        except asyncio.CancelledError:
            taking.add_done_callback(lambda _: self._lock.release())
            work.close()
            raise
        lent = copy_context()
        lent.run(_LENT.set, self)
        working = asyncio.get_running_loop().create_task(work, context=lent)
        working.add_done_callback(lambda _: self._lock.release())
        return await working


class RankZeroEngine:
    """The engine of a run that trains on several ranks; implements `Engine`.

    A failure in the midst of common work leaves the ranks apart, so nothing can follow it but
    the end of the run. `others.stop` lets the other ranks go once it is over.

    Raises PolicyError: the model was put on a device by name or on several, another rank is gone,
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
        self.reflect = self.engine.reflect
        others.send(opening)
        self._send_state(self._gather_state())
        threading.Thread(target=self._send_heartbeats, daemon=True).start()

    def share_sampling(self, policy: HFLocal) -> None:
        """Have a policy of the same model decode over all ranks from now on."""
        self._local.max_batch *= self._others.size
        policy.decode = self.decode

    def plan(self, total_steps: int) -> str:
        with self._turn:
            self._others.send(EngineCall("plan", (total_steps,)))
            return self.engine.plan(total_steps)

    async def consolidate(
        self, batch: Sequence[Group], reflections: Sequence[Reflection], library: Library
    ) -> Lesson:
        async def work() -> Lesson:
            self._others.send(
                EngineCall("consolidate", (tuple(batch), tuple(reflections), library))
            )
            return await self.engine.consolidate(batch, reflections, library)

        return await self._run_on_all_ranks(work)

    async def apply(self, update: WeightUpdate) -> int:
        """As the engine's own, on every rank.

        Raises PolicyError: a rank has come to other weights.
        """

        async def work() -> int:
            self._others.send(EngineCall("apply", (update,)))
            version = await self.engine.apply(update)
            self._others.check_agreement(self._local.weights_digest(), WEIGHTS)
            return version

        return await self._run_on_all_ranks(work)

    async def save(self, folder: Path) -> str:
        async def work() -> str:
            state = self._gather_state()
            return await asyncio.to_thread(write_checkpoint, folder, self._local, state)

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
        of_ranks = tuple(tuple(rows[i] for i in share) for share in shares)
        self._others.send(DecodeShares(of_ranks, most))
        own: list[DecodedReply] | Exception
        try:
            own = decode_share(local, of_ranks[0], most, remap_hooks(watch, shares[0]))
        except Exception as error:  # the others are still to be heard, whatever it is
            own = error
        answers = [own, *self._others.gather(None)[1:]]
        replies = [DecodedReply() for _ in rows]
        for share, answer in zip(shares, answers, strict=True):
            if isinstance(answer, Exception):
                raise answer
            for place, reply in zip(share, answer, strict=True):
                replies[place] = reply
        return replies

    async def _run_on_all_ranks(self, work: Callable[[], Awaitable[T]]) -> T:
        async def mark_ranks_apart() -> T:
            try:
                return await work()
            except Exception as error:  # of whatever kind: the others are elsewhere now
                self._others.apart = self._others.apart or f"{type(error).__name__}: {error}"
                raise

        return await self._turn.run_holding_lock(mark_ranks_apart())

    def _send_state(self, state: EngineState) -> None:
        self._others.send(EngineCall("load_state", (state,)))
        self._others.check_agreement(self._local.weights_digest(), WEIGHTS)

    def _gather_state(self) -> EngineState:
        """The engine's state, its moments from every rank where each has a part."""
        state = self.engine.state()
        if not self._others.sharded:
            return state
        self._others.send("moments")
        parts = self._others.gather(rank_moments(self.engine))
        whole = {
            name: torch.cat(of_ranks)
            for name, of_ranks in zip(MOMENTS, zip(*parts, strict=True), strict=True)
        }
        return replace(state, optimiser={**state.optimiser, **whole})

    def _send_heartbeats(self) -> None:
        """Keep the others from giving up while there is nothing to do."""
        while not self._others.over.wait(BEAT_S) and not self._others.apart:
            if self._turn.acquire(blocking=False):
                try:
                    self._others.send(HEARTBEAT)
                except PolicyError:
                    return  # whoever comes next with real work is told
                finally:
                    self._turn.release()


def split_by_prompt(rows: Sequence[DecodeRequest], size: int) -> list[list[int]]:
    """Ascending indices of the rows that each of `size` ranks decodes.

    Those of one prompt stay together, and numbers are as even as that allows.
    """
    prompts: dict[tuple[int, ...], list[int]] = {}
    for index, row in enumerate(rows):
        prompts.setdefault(row.prompt_ids, []).append(index)
    shares: list[list[int]] = [[] for _ in range(size)]
    for group in sorted(prompts.values(), key=len, reverse=True):
        min(shares, key=len).extend(group)
    return [sorted(share) for share in shares]
