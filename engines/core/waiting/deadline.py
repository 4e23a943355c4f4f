"""Deadlines that stand still while something is waited for that is nobody's fault.

A model that is slow counts, waiting for money or for a slot does not. Every deadline that a piece
of work runs under is known in its context, also to tasks it starts.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from contextvars import ContextVar

_RUNNING: ContextVar[tuple[Deadline, ...]] = ContextVar("deadlines", default=())


class Deadline:
    """One deadline under way, as `deadline` gives it."""

    def __init__(self, timeout: asyncio.Timeout) -> None:
        self._timeout = timeout
        self._waiting = 0
        self._left_s = 0.0

    @property
    def ends_at(self) -> float | None:
        """In the time of the loop; None while it stands still."""
        return self._timeout.when()

    @property
    def expired(self) -> bool:
        return self._timeout.expired()

    @contextmanager
    def pause(self) -> Iterator[None]:
        now = asyncio.get_running_loop().time
        ends = self._timeout.when()
        if self.expired or (ends is None and not self._waiting):
            yield
            return
        if ends is not None:
            self._left_s = ends - now()
            self._timeout.reschedule(None)
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._timeout.reschedule(now() + self._left_s)


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
    with ExitStack() as stack:
        for running in _RUNNING.get():
            stack.enter_context(running.pause())
        yield
