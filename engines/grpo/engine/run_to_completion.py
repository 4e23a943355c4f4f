"""Work in a thread that a cancelled caller waits for: what it touches is whole when it ends.

Owns that order. The work itself looks at `stop` now and then, and puts back what it changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def run_in_thread(work: Callable[[threading.Event], T]) -> T:
    """Do work in a thread. Where the caller is cancelled, `stop` is set and the end awaited."""
    stop = threading.Event()
    working = asyncio.ensure_future(asyncio.to_thread(work, stop))
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        stop.set()
        while not working.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([working])
        working.exception()  # looked at, so that nobody warns of it
        raise
