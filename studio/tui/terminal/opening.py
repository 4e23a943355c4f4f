"""What stands on the terminal while the screen loads: a line, and no typed key but `q`.

Imports nothing that takes time: on a slow machine the screen itself takes seconds to import.
"""

import contextlib
import gc
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l\x1b[2J", "\x1b[?1049l\x1b[?25h"
_TEXT = "\x1b[H studio: opening ...\x1b[K"
_shown: "OpeningLine | None" = None


class OpeningLine:
    """On the alternate screen until the app's driver takes the terminal over, or `close`."""

    def __init__(self) -> None:
        self.attributes = read_attributes()  # of the terminal as it was
        self.was_left = False  # by `q`, before there was anything to leave
        self._is_ours = True  # and no driver's yet
        self._handlers: dict[int, Any] = {}

    def open(self) -> None:
        for name in ("SIGHUP", "SIGTERM"):
            if (number := getattr(signal, name, None)) is not None:
                self._handlers[number] = signal.signal(number, _exit_by_signal)
        gc.disable()  # what is imported stays: looking through it takes a tenth of the time
        _silence_keys(self.attributes)
        _write_now(_ENTER + _TEXT)

    def hand_over(self, write: Callable[[str], object], start: Callable[[], None]) -> None:
        """Let the driver begin, which finds the terminal as it was; the line goes on standing."""
        self._is_ours = False
        self._restore_keys()
        start()
        write(_TEXT)

    def stop(self) -> None:
        """The app draws from now on."""
        if not gc.isenabled():
            gc.freeze()
            gc.enable()

    def close(self) -> None:
        """Give the terminal back, where no driver has it."""
        self.stop()
        for number, handler in self._handlers.items():  # not before: the app has put in its own
            signal.signal(number, handler)
        if self._is_ours:
            _write_now(_LEAVE)
            self._restore_keys()

    def _restore_keys(self) -> None:
        with contextlib.suppress(Exception):
            import termios

            typed = b""  # at what was not there
            while select.select([0], [], [], 0)[0] and (more := os.read(0, 1024)):
                typed += more
            self.was_left = typed[-1:] == b"q"
            termios.tcsetattr(0, termios.TCSANOW, self.attributes or [])


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
