"""What stands on the terminal while the screen loads: a line with a clock, and no typed key.

Imports nothing that takes time: on a slow machine the screen itself takes seconds to import.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l\x1b[2J", "\x1b[?1049l\x1b[?25h"
_shown: OpeningLine | None = None


class OpeningLine:
    """On the alternate screen until the app's driver takes the terminal over, or `close`."""

    def __init__(self) -> None:
        self.attributes = read_attributes()  # of the terminal as it was
        self._began = time.monotonic()
        self._lock = threading.Lock()  # of the terminal: nothing is written once it is stopped
        self._write: Callable[[str], object] | None = _write_now
        self._is_stopped = threading.Event()
        self._handlers: dict[int, Any] = {}

    def open(self) -> None:
        for name in ("SIGHUP", "SIGTERM"):
            if (number := getattr(signal, name, None)) is not None:
                self._handlers[number] = signal.signal(number, _exit_by_signal)
        _silence_keys(self.attributes)
        _write_now(_ENTER)
        self._draw()
        gc.disable()  # what is imported stays: looking through it takes a tenth of the time
        threading.Thread(target=self._count, name="opening", daemon=True).start()

    def hand_over(self, write: Callable[[str], object], start: Callable[[], None]) -> None:
        """Let the driver begin, which finds the terminal as it was; then go on through `write`."""
        with self._lock:
            self._write = None
        self._restore_keys()
        start()
        with self._lock:
            self._write = write
        self._draw()

    def stop(self) -> None:
        """The app draws from now on."""
        if not self._is_stopped.is_set():
            gc.freeze()
            gc.enable()
        self._is_stopped.set()
        with self._lock:
            self._write = None

    def close(self) -> None:
        """Give the terminal back, where no driver has it."""
        with self._lock:
            is_ours = self._write is _write_now
        self.stop()
        for number, handler in self._handlers.items():  # not before: the app has put in its own
            signal.signal(number, handler)
        if is_ours:
            _write_now(_LEAVE)
            self._restore_keys()

    def _restore_keys(self) -> None:
        with contextlib.suppress(Exception):
            import termios

            termios.tcflush(0, termios.TCIFLUSH)  # typed at what was not there
            termios.tcsetattr(0, termios.TCSANOW, self.attributes or [])

    def _draw(self) -> None:
        took_s = int(time.monotonic() - self._began)
        text = "studio: opening ..." + (f" {took_s} s" if took_s else "")
        with self._lock:
            if self._write is not None:
                self._write(f"\x1b[H {text}\x1b[K")

    def _count(self) -> None:
        while not self._is_stopped.wait(1.0):
            self._draw()


@contextlib.contextmanager
def opening_line() -> Iterator[None]:
    """Draw at once, and give the terminal back if nothing else comes of it."""
    global _shown
    is_terminal = os.isatty(0) and os.isatty(2)
    if _shown is not None or not is_terminal or os.environ.get("TERM", "") in ("", "dumb"):
        yield  # whoever opens the screen says why it cannot
        return
    _shown = shown = OpeningLine()
    try:
        shown.open()
        yield
    finally:
        shown.close()
        _shown = None


def current_line() -> OpeningLine | None:
    """The line that stands on the terminal now."""
    return _shown


def _exit_by_signal(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


def _write_now(text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, text.encode())  # where Textual draws, too


def read_attributes() -> list[Any] | None:
    """Of the terminal, as it was before anything of the screen stood on it."""
    if _shown is not None:
        return _shown.attributes
    with contextlib.suppress(Exception):
        import termios

        return list(termios.tcgetattr(sys.__stdin__.fileno())) if sys.__stdin__ else None
    return None


def _silence_keys(attributes: list[Any] | None) -> None:
    with contextlib.suppress(Exception):
        import termios

        if attributes is not None:
            flags = attributes[3] & ~(termios.ECHO | termios.ICANON)
            termios.tcsetattr(0, termios.TCSANOW, [*attributes[:3], flags, *attributes[4:]])
