"""Says what is waited for, where that takes more than a moment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SLOW_S = 1.0
"""A part that takes less says nothing."""


@contextmanager
def slow_stage(tell: Callable[[str], None], text: str) -> Iterator[None]:
    """Tell what goes on once it has taken a second; what blocks the event loop tells it itself.

    The line ends in an ellipsis, by which a screen that waits for the run knows it.
    """
    timer = asyncio.get_running_loop().call_later(SLOW_S, tell, f"{text} …")
    try:
        yield
    finally:
        timer.cancel()
