"""An event loop in a thread of its own, for a program that blocks at a prompt.

A session goes on while a person thinks: it follows its run, and the run's process never has
to wait for a slow reader.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """Runs coroutines for a thread that has no event loop. Used as a context manager."""

    def __enter__(self) -> LoopThread:
        self._runner = asyncio.Runner()
        self._loop = self._runner.get_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="session")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._runner.close()  # cancels the tasks that are left

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Wait for a coroutine and return its result."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()  # nobody waits for it any more
            raise
