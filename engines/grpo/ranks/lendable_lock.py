"""The model's lock on rank 0: whoever holds it may also speak to the other ranks.

Owns the order in which they hear of work: it is that in which the lock was taken here, so a
batch to be decoded never comes between an update's sums.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from contextvars import ContextVar, copy_context
from typing import Any, TypeVar

T = TypeVar("T")

_LENT: ContextVar[LendableLock | None] = ContextVar("turn", default=None)


class LendableLock:
    """A lock that its holder can lend to work which takes it itself.

    Lending follows the context of a task and of the threads that `asyncio.to_thread` starts for
    it, so that nobody else passes.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        return _LENT.get() is self or self._lock.acquire(blocking, timeout)

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
