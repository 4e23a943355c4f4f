"""Deadlines that stand still while something is waited for that is nobody's fault.

A model that is slow counts, waiting for money or for a slot does not. Every deadline that a piece
of work runs under is known in its context, also to tasks it starts.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import NoReturn

from engines.core.types import Usage

_RUNNING: ContextVar[tuple[Deadline, ...]] = ContextVar("deadlines", default=())


class Deadline:
    """One deadline under way, as `deadline` gives it."""

    def __init__(self, timeout: asyncio.Timeout) -> None:
        self._timeout = timeout
        self._waiting = 0
        self._left_s: float | None = None  # once it goes on; None: it runs

    @property
    def ends_at(self) -> float | None:
        """In the time of the loop; None while it stands still."""
        return self._timeout.when()

    @property
    def expired(self) -> bool:
        return self._timeout.expired()

    def expire(self) -> None:
        """End now, as if the time were over."""
        self._timeout.reschedule(asyncio.get_running_loop().time())

    def pause(self) -> None:
        """Stand still until `go_on` was called as often."""
        ends = self._timeout.when()
        if ends is not None and not self.expired:
            self._left_s = ends - asyncio.get_running_loop().time()
            self._timeout.reschedule(None)
        self._waiting += 1

    def go_on(self) -> None:
        self._waiting -= 1
        if not self._waiting and self._left_s is not None:
            self._timeout.reschedule(asyncio.get_running_loop().time() + self._left_s)
            self._left_s = None


@asynccontextmanager
async def deadline(limit_s: float) -> AsyncIterator[Deadline]:
    """As `asyncio.timeout`: raises TimeoutError where the block takes longer."""
    async with asyncio.timeout(limit_s) as timeout:
        made = Deadline(timeout)
        token = _RUNNING.set((*_RUNNING.get(), made))
        try:
            yield made
        finally:
            _RUNNING.reset(token)


@contextmanager
def pause_deadlines() -> Iterator[None]:
    """Stop every deadline that the work at hand runs under, for as long as the block takes."""
    running = _RUNNING.get()
    for one in running:
        one.pause()
    try:
        yield
    finally:
        for one in running:
            one.go_on()


def expired_deadline() -> int | None:
    """Which of the deadlines that this work runs under is over, the outermost being 0."""
    return next((at for at, one in enumerate(_RUNNING.get()) if one.expired), None)


async def expire_deadline(at: int, usage: Usage) -> NoReturn:
    """Have that deadline end this work, as a call that has cost `usage`."""
    running = _RUNNING.get()
    if at >= len(running):
        raise TimeoutError
    running[at].expire()
    try:
        await asyncio.get_running_loop().create_future()
    except asyncio.CancelledError:
        raise asyncio.CancelledError(usage) from None
    raise AssertionError("nobody fulfils it")
