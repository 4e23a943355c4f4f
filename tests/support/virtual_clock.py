"""An event loop whose time jumps: what takes hours there is over at once, and the same each time.

When nothing is ready, its clock moves to the next timer instead of waiting for it. Work
for threads runs in place, so that an fsync takes no time. Meant for code that waits for
nothing but timers: no sockets, no other processes.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class VirtualClockLoop(asyncio.SelectorEventLoop):
    """Its `time()` begins with 0 and knows nothing of the world's."""

    def __init__(self) -> None:
        self._now = 0.0
        super().__init__(_Jumping(self._jump))

    def time(self) -> float:
        return self._now

    def run_in_executor(  # type: ignore[override]
        self, executor: object, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        done: asyncio.Future[T] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done

    def _jump(self, timeout_s: float) -> None:
        self._now += timeout_s


class _Jumping(selectors.DefaultSelector):  # type: ignore[valid-type, misc]
    """Looks at what is ready, and where nothing is, lets the clock jump."""

    def __init__(self, jump: Callable[[float], None]) -> None:
        super().__init__()
        self._jump_by = jump

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            raise RuntimeError("everything waits for something that no timer will bring")
        self._jump_by(timeout)
        return ready


def on_virtual_clock(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end on a loop of its own."""
    with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
        return runner.run(main)
