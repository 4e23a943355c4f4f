"""How many calls run at once, when they may start, and how fast scripted replies stream.

Owns the slots, given out by priority, and their congestion control: how many calls run falls when
an endpoint says "too many", and recovers. Additive increase, multiplicative decrease, as senders on
a network do it: half at each round of refusals, one more after as many answered calls as run at a
time. Needs no clock: a round is known by which calls had begun before the last cut. All of it
lives in one event loop, so no lock is needed.

Source: Chiu and Jain, Analysis of the increase and decrease algorithms for congestion
    avoidance in computer networks, 1989.
"""

import asyncio
import heapq
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Self

from engines.core.frozen import frozen
from engines.core.protocols import OnText, Policy
from engines.core.types import Completion, Job, Message, Sampling, Tell
from engines.core.waiting import pause_deadlines

CROWDED = (429, 503)
"""Statuses that mean: not so many at a time."""


Priority = tuple[int, ...]
"""Compared from the left; the smallest goes first."""
FIRST: Priority = (-1,)
"""Of a call that has been under way before."""


class Slots:
    """A semaphore whose free slots go to the waiter with the smallest priority.

    Among equals the one that came first goes first. The limit may change while
    slots are held: when it shrinks, running holders finish and no new one starts
    until fewer are held than the new limit. The limit shrinks while an endpoint refuses calls, and
    the first one is the most there ever will be; `tell` is told once, when it first falls.
    """

    def __init__(self, limit: int, tell: Tell | None = None) -> None:
        self.held_count = 0
        self._arrivals = 0
        self._waiting: list[tuple[Priority, int, asyncio.Future[None]]] = []
        self._most = limit
        self._answered = 0  # calls since the limit last changed
        self._cuts = 0
        self.tell = tell
        self.resize(limit)

    @property
    def waiting_count(self) -> int:
        return sum(not future.done() for _, _, future in self._waiting)

    def resize(self, limit: int) -> None:
        if limit < 1:
            raise ValueError(f"a limit of {limit} slots would wait for ever")
        self.limit = limit
        self._grant()

    def note_request(self) -> int:
        """A request goes out. What this returns is given back with what became of it."""
        return self._cuts

    def note_answer(self) -> None:
        self._answered += 1
        if self._answered >= self.limit and self.limit < self._most:
            self._answered = 0
            self.resize(self.limit + 1)

    def note_refusal(self, began: int) -> None:
        """An endpoint had too much to do. Requests from before the last cut tell nothing new."""
        if began < self._cuts:
            return
        if self.tell is not None and not self._cuts:
            self.tell(
                f"the endpoint refuses some calls as too many; fewer than {self.limit} run at a "
                "time until it takes them again"
            )
        self._cuts += 1
        self._answered = 0
        self.resize(max(1, self.limit // 2))

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


def with_slots(policy: Policy, slots: Slots) -> Policy:
    """The policy as it tells slots how its calls fare, where it has this method."""
    # Asked for by name: `isinstance` with a protocol costs 20 µs, several times a rollout.
    bind: Callable[[Slots], Policy] | None = getattr(policy, "with_slots", None)
    return policy if bind is None else bind(slots)


def bind_to_job(policy: Policy, job: Job) -> Policy:
    """A policy that must know which rollout it answers for has `for_job` (see `replay`)."""
    bind: Callable[[Job], Policy] | None = getattr(policy, "for_job", None)
    return policy if bind is None else bind(job)


@frozen
class WrappedPolicy:
    """Its subclasses own `complete`. Bound to a job or to slots, it is the same round `inner`."""

    inner: Policy

    @property
    def name(self) -> str:
        return self.inner.name

    def with_slots(self, slots: Slots) -> Self:
        return self._around(with_slots(self.inner, slots))

    def for_job(self, job: Job) -> Self:
        return self._around(bind_to_job(self.inner, job))

    def _around(self, inner: Policy) -> Self:
        return self if inner is self.inner else replace(self, inner=inner)

    async def ping(self) -> None:
        await self.inner.ping()

    async def aclose(self) -> None:
        await self.inner.aclose()


@frozen
class Throttled(WrappedPolicy):
    """A policy that holds a slot for the whole of each call, its retries included."""

    slots: Slots
    priority: Priority = ()

    def __post_init__(self) -> None:
        inner = with_slots(self.inner, self.slots)
        object.__setattr__(self, "inner", inner)

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, on_text: OnText | None = None
    ) -> Completion:
        async with self.slots.acquire(self.priority):
            return await self.inner.complete(messages, sampling, on_text)


BEAT_S = 0.1
"""Between two pieces: screens are told no more often."""
CHARS_PER_TOKEN = 4


@frozen
class StreamPacedPolicy(WrappedPolicy):
    """Asks at once, and hands the reply on little by little.

    It belongs above whatever reserves, limits or parks calls: who watches holds no money.
    Where nobody listens to the text (`on_text` is None) nothing is paced. `cleared` is waited
    for before each piece, so that a pause on the spot stops the text where it is.
    """

    tokens_per_s: float
    cleared: Callable[[], Awaitable[object]] | None = None
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, on_text: OnText | None = None
    ) -> Completion:
        """Answer once; where it is cancelled midway, `lost_to` tells what the reply cost."""
        if on_text is None:
            return await self.inner.complete(messages, sampling)
        said: list[str] = []
        made = await self.inner.complete(messages, sampling, said.append)
        try:
            with pause_deadlines():
                await self._stream_text("".join(said), on_text)
        except asyncio.CancelledError:
            raise asyncio.CancelledError(made.usage) from None
        return made

    async def _stream_text(self, text: str, on_text: OnText) -> None:
        step = CHARS_PER_TOKEN * max(1, int(self.tokens_per_s * BEAT_S))
        for start in range(0, len(text), step):
            if self.cleared is not None:
                await self.cleared()
            piece = text[start : start + step]
            on_text(piece)
            await self.sleep(len(piece) / CHARS_PER_TOKEN / self.tokens_per_s)


@frozen
class PausablePolicy(WrappedPolicy):
    """Waits before each call until `cleared` returns; that is no part of any deadline."""

    cleared: Callable[[], Awaitable[object]]

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, on_text: OnText | None = None
    ) -> Completion:
        with pause_deadlines():
            await self.cleared()
        return await self.inner.complete(messages, sampling, on_text)
