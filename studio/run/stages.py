"""What a run says while it is opened: a line for each part that takes more than a moment.

A line ends in an ellipsis, by which the screen that waits for the run knows it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SLOW_S = 1.0
"""A part that takes less says nothing."""


@contextmanager
def slow_stage(tell: Callable[[str], None], text: str) -> Iterator[None]:
    """Tell what goes on once it has taken a second; what blocks the event loop tells it itself."""
    timer = asyncio.get_running_loop().call_later(SLOW_S, tell, f"{text} …")
    try:
        yield
    finally:
        timer.cancel()
