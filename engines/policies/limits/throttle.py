"""Slots that limit how much runs at once, given out by priority.

All of it lives in one event loop, so no lock is needed.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from engines.core.protocols import OnText, Policy
from engines.core.types import Completion, Job, Message, Sampling
from engines.core.waiting.deadline import pause_deadlines
from engines.policies.limits.congestion import Congestion, with_congestion

Priority = tuple[int, ...]
"""Compared from the left; the smallest goes first."""
FIRST: Priority = (-1,)
"""Of a call that has been under way before."""


class Slots:
    """A semaphore whose free slots go to the waiter with the smallest priority.

    Among equals the one that came first goes first. The limit may change while
    slots are held: when it shrinks, running holders finish and no new one starts
    until fewer are held than the new limit. `tell` is told when an endpoint has it lowered.
    """

    def __init__(self, limit: int, tell: Callable[[str], None] | None = None) -> None:
        self.held_count = 0
        self._arrivals = 0
        self._waiting: list[tuple[Priority, int, asyncio.Future[None]]] = []
        self.tell = tell
        self.resize(limit)
        self.congestion = Congestion(self, tell)  # of all whose calls hold these slots

    @property
    def waiting_count(self) -> int:
        return sum(not future.done() for _, _, future in self._waiting)

    def resize(self, limit: int) -> None:
        if limit < 1:
            raise ValueError(f"a limit of {limit} slots would wait for ever")
        self.limit = limit
        self._grant()

    @asynccontextmanager
    async def acquire(self, priority: Priority = ()) -> AsyncIterator[None]:
        await self._take(priority)
        try:
            yield
        finally:
            self._give_back()

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[None]:
        """Give a held slot back, and take one again before everybody who has begun nothing.

        Whoever holds a slot makes one call at a time, so that there is one to give back.
        Waiting for it again is no part of the call's deadline, as it was none at first.
        """
        self._give_back()
        try:
            yield
            with pause_deadlines():
                await self._take(FIRST)
        except BaseException:
            self.held_count += 1  # its holder gives it back on the way out
            raise

    async def _take(self, priority: Priority) -> None:
        if self.held_count < self.limit:
            # Whenever a slot is free nobody waits: `_grant` runs after each change.
            self.held_count += 1
            return
        future = asyncio.get_running_loop().create_future()
        self._arrivals += 1
        heapq.heappush(self._waiting, (priority, self._arrivals, future))
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                # Granted and cancelled in the same turn of the loop: pass it on.
                self._give_back()
            raise

    def _give_back(self) -> None:
        self.held_count -= 1
        self._grant()

    def _grant(self) -> None:
        while self.held_count < self.limit and self._waiting:
            _, _, future = heapq.heappop(self._waiting)
            if not future.done():  # done here means its waiter was cancelled
                self.held_count += 1
                future.set_result(None)


def bind_to_job(policy: Policy, job: Job) -> Policy:
    """A policy that must know which rollout it answers for has `for_job` (see `replay`)."""
    bind: Callable[[Job], Policy] | None = getattr(policy, "for_job", None)
    return policy if bind is None else bind(job)


class Throttled:
    """A policy that holds a slot for the whole of each call, its retries included."""

    def __init__(self, policy: Policy, slots: Slots, priority: Priority = ()) -> None:
        self._policy = with_congestion(policy, slots.congestion)
        self._slots = slots
        self._priority = priority
        self.name, self.ping, self.aclose = policy.name, policy.ping, policy.aclose

    def for_job(self, job: Job) -> Policy:
        bound = bind_to_job(self._policy, job)
        return self if bound is self._policy else Throttled(bound, self._slots, self._priority)

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, on_text: OnText | None = None
    ) -> Completion:
        async with self._slots.acquire(self._priority):
            return await self._policy.complete(messages, sampling, on_text)
