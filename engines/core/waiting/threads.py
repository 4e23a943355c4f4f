"""Work that takes long, away from the event loop: requests are answered meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def run_to_end(work: Callable[[], T]) -> T:
    """Work in a thread; who is cancelled meanwhile goes on once it is done."""
    working = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        await asyncio.wait([working])
        raise
