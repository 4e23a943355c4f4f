"""Waiting until an event loop has nothing left to do, in place of Textual's measure of idleness.

Textual's pilot sleeps in steps of 20 ms until the process uses no CPU, which is half of what
a test of the screen takes. Here the loop itself is asked: nothing is ready, nothing is due
within a frame of the screen, and no thread works for it.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from textual.pilot import Pilot

FRAME_S = 1 / 50
"""What is due later, such as the beat of a clock, is no work left over; Textual draws at 60 Hz."""


async def wait_until_quiet(min_sleep: float = FRAME_S, max_sleep: float = 5) -> None:
    """Wait until nothing is left to do; at most `max_sleep` seconds.

    It takes the place of `textual.pilot.wait_for_idle`.
    """
    loop: Any = asyncio.get_running_loop()
    begin, beats = loop.time(), 0
    while (now := loop.time()) - begin < max_sleep:
        await asyncio.sleep(0)
        if loop._ready:
            continue
        due = [handle._when for handle in loop._scheduled if not handle._cancelled]
        # A clock that beats faster than frames are drawn is never through: two frames suffice,
        # and as many beats as they hold: on a busy machine the time is over before they come.
        if (now - begin < 2 * FRAME_S or beats < 3) and due and min(due) <= now + FRAME_S:
            beats += 1
            await asyncio.sleep(max(0.0, min(due) - now))
        elif _has_work(loop._default_executor):
            await asyncio.sleep(0.001)  # the thread says so to the loop when it is done
        else:
            return


async def wait_for_screen(pilot: Pilot[object], timeout: float = 30.0) -> bool:
    """Wait until every widget waits for a message; takes the place of `Pilot._wait_for_screen`.

    That one sends a message through each of 80 widgets, at every key.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + timeout
    app: Any = pilot.app
    while loop.time() < end and not app._exception_event.is_set():
        shown = app.screen.walk_children(with_self=True) if app.screen_stack else ()
        if all(_waits(pump) for pump in (app, *shown)):
            return True
        # Where nothing is ready, a handler awaits what comes from a thread or from outside.
        await asyncio.sleep(0 if loop._ready else 0.002)  # type: ignore[attr-defined]
    return not app._exception_event.is_set()


def _waits(pump: Any) -> bool:
    queue = pump._message_queue
    return not pump._running or (queue.empty() and bool(queue.ready_event._waiters))


def _has_work(executor: ThreadPoolExecutor | None) -> bool:
    if executor is None:
        return False
    idle = executor._idle_semaphore._value  # type: ignore[attr-defined]
    return executor._work_queue.qsize() > 0 or idle < len(executor._threads)
