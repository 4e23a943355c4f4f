"""Long work on the event loop in slices, so that requests are answered in between."""

from __future__ import annotations

import asyncio
import time

SLICE_S = 0.02


class TimeSlice:
    """The time since the loop last had a turn; for one piece of work that awaits nothing else."""

    def __init__(self) -> None:
        self._began = time.perf_counter()

    async def give_way(self) -> None:
        """Let the loop run once where the slice is over; costs next to nothing where it is not."""
        if time.perf_counter() - self._began >= SLICE_S:
            await asyncio.sleep(0)
            self._began = time.perf_counter()
