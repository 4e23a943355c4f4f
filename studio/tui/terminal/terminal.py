"""How the terminal is left in every case."""

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType
from typing import Any

from textual import events
from textual.app import App
from textual.geometry import Size

PATIENCE_S = 5.0
"""For leaving in good order once the terminal is gone; then the process just ends."""
_RESET = (
    "\x1b[?1000l\x1b[?1003l\x1b[?1015l\x1b[?1006l\x1b[?1016l"  # mouse
    "\x1b[?2004l\x1b[?2048l\x1b[?1004l\x1b[?2026l"  # paste, size, focus, frames
    "\x1b[<u\x1b[?7h\x1b[?1049l\x1b[?25h\x1b[0m"  # keys, wrap, screen, cursor, colours
)


@contextlib.contextmanager
def exit_on_hangup(
    app: App[Any], *, save: Callable[[], None], leave: Callable[[], None]
) -> Iterator[None]:
    """Leave in good order on SIGHUP and SIGTERM, and with a sane terminal in any case.

    `save` writes what must not be lost, inside the signal's handler; `leave` ends the app, from its
    event loop.
    """
    before = _read_attributes()
    handlers: dict[int, Any] = {}
    timers: list[threading.Timer] = []

    def handle_signal(number: int, frame: FrameType | None) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise SystemExit(128 + number) from None
        giving_up = threading.Timer(PATIENCE_S, _force_exit, (before, 128 + number))
        giving_up.daemon = True
        giving_up.start()
        timers.append(giving_up)
        save()
        if number == getattr(signal, "SIGHUP", None):
            _stop_drawing(app)
        loop.call_soon_threadsafe(app.call_later, leave)

    for name in ("SIGHUP", "SIGTERM"):
        if (number := getattr(signal, name, None)) is not None:
            handlers[number] = signal.signal(number, handle_signal)
    if (stream := sys.__stderr__) is not None:
        stream.reconfigure(errors="replace")  # type: ignore[attr-defined, unused-ignore]
    try:
        yield
    except BaseException:
        restore_terminal(before)
        raise
    finally:
        for timer in timers:
            timer.cancel()
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _read_attributes() -> list[Any] | None:
    with contextlib.suppress(Exception):
        import termios

        return list(termios.tcgetattr(sys.__stdin__.fileno())) if sys.__stdin__ else None
    return None


def stop_between_events(app: App[Any]) -> None:
    """Let Textual leave the terminal on `kill -TSTP`, and come back, from the event loop.

    Textual writes within the signal's handler: where that interrupts the writing of a frame, both
    wait for ever, since the queue of what is written is locked. To be called in the loop.
    """
    loop, driver = asyncio.get_running_loop(), app._driver

    def handle_now(handler: Any, number: int, frame: FrameType | None) -> None:
        if signal.getsignal(number) is not signal.SIG_IGN:  # see `_stop_drawing`
            handler(number, frame)

    def handle_soon(handler: Any, number: int, frame: FrameType | None) -> None:
        if driver is None or not driver._auto_restart or loop.is_closed():
            handler(number, frame)  # an editor has the terminal: nothing is drawn
        else:
            loop.call_soon_threadsafe(handle_now, handler, number, frame)

    for name in ("SIGTSTP", "SIGCONT"):
        number = getattr(signal, name, None)
        if number is not None and callable(handler := signal.getsignal(number)):
            signal.signal(number, partial(handle_soon, handler))


def with_current_size(app: App[Any], event: events.Resize) -> events.Resize:
    """The event with the size that the terminal has by now.

    Textual asks for the size in a signal handler. The next signal can interrupt that between
    asking and telling, and then the older size is told last.
    """
    driver: Any = app._driver
    ask = getattr(driver, "_get_terminal_size", None)
    if ask is None or getattr(driver, "_in_band_window_resize", False):
        return event  # where the terminal itself tells its size, it does so in order
    size = Size(*ask())
    return event if size == event.size else events.Resize(size, size)


def _stop_drawing(app: App[Any]) -> None:
    """Draw no more: the terminal is gone, and Textual's writer has died of it or will.

    What is drawn would wait for room in its queue, for ever. The kernel also sends SIGCONT,
    which Textual takes for the way back from ctrl+z.
    """
    signal.signal(signal.SIGCONT, signal.SIG_IGN)
    if (driver := app._driver) is not None and hasattr(driver, "_writer_thread"):
        driver.write = lambda data: None  # type: ignore[method-assign]
        driver._writer_thread = None


def restore_terminal(attributes: list[Any] | None) -> None:
    """Give a terminal back that the screen could not."""
    with contextlib.suppress(Exception):
        if sys.__stderr__ is not None and sys.__stderr__.isatty():
            os.write(sys.__stderr__.fileno(), _RESET.encode())
    with contextlib.suppress(Exception):
        import termios

        if attributes is not None and sys.__stdin__ is not None:
            termios.tcsetattr(sys.__stdin__.fileno(), termios.TCSANOW, attributes)


def _force_exit(attributes: list[Any] | None, code: int) -> None:
    """The run is another process and its journal is whole: nothing is lost by ending here."""
    restore_terminal(attributes)
    os._exit(code)
