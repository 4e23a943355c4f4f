"""A real command in a pseudo-terminal, as a person at it: types, and reads what is drawn.

Owns bytes both ways, pyte as the picture, and a deadline for whatever is waited for. Every
terminal that is open is read while one is waited for, so that none stands still because
nobody looks at it. Knows no screen of the studio.
"""

from __future__ import annotations

import codecs
import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyte

from tests.support.forked_studio import STUDIO, ForkedStudio

LONGEST_S = 15.0
_LOOK_S = 0.02
"""At least so often it is looked whether a command has ended."""
_LAUNCH = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "os.execvp(sys.argv[1], sys.argv[1:])"
)
"""Makes the terminal the controlling one; a function between fork and exec would warn."""
_QUERY = re.compile(r"\x1b\[(?:[<>=][0-9;]*[a-zA-Z]|\?[0-9;]*(?:\$p|u))")
"""Keyboard modes and questions that pyte does not know and would print in part."""
_CUT = re.compile(r"\x1b(?:\[[0-9;?<>=$ ]*|\][^\x07\x1b]*)?\Z")
_LEFT = "\x1b[?1049l"
_OPEN: list[Terminal] = []


class Terminal:
    """One command at a terminal of its own, which it has as its controlling one.

    Args:
        command: what is started.
        columns: cells of a line.
        rows: lines.
        environ: changes of this process's own environment; None takes a variable away.
        cwd: where it is started.
        stderr: where its stderr goes instead of the terminal.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        columns: int = 120,
        rows: int = 36,
        environ: Mapping[str, str | None] | None = None,
        cwd: Path | None = None,
        stderr: int | None = None,
    ) -> None:
        self.raw = bytearray()  # everything the terminal was sent
        self.screen = pyte.Screen(columns, rows)
        self._stream = pyte.Stream(self.screen)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._tail = ""
        # The other end stays open, so that its modes can be looked at in the end.
        self._master, self._slave = os.openpty()
        os.set_blocking(self._master, False)
        self.modes_before = self.modes()
        self._sized(columns, rows)
        given: dict[str, str | None] = {**os.environ, **_PLAIN, **(environ or {})}
        options: dict[str, Any] = {
            "stdin": self._slave,
            "stdout": self._slave,
            "stderr": self._slave if stderr is None else stderr,
            "env": {name: value for name, value in given.items() if value is not None},
            "cwd": cwd,
        }
        # What Python asks the environment for as it starts takes a start.
        asked = any(name.startswith(("LC_", "LANG", "PYTHON")) for name in environ or {})
        if tuple(command[: len(STUDIO)]) == STUDIO and not asked:
            self.child: subprocess.Popen[Any] = ForkedStudio(command, terminal=True, **options)
        else:
            launched = [sys.executable, "-I", "-S", "-c", _LAUNCH, *command]
            self.child = subprocess.Popen(launched, start_new_session=True, **options)
        _OPEN.append(self)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- the person --------------------------------------------------------------------------

    def type(self, keys: str | bytes) -> None:
        """Press keys, or paste; the terminal is read meanwhile, since its buffer is small."""
        left = keys.encode() if isinstance(keys, str) else keys
        until = time.monotonic() + LONGEST_S
        while left:
            with suppress(BlockingIOError):
                left = left[os.write(self._master, left) :]
            if left:
                self._go_on(until, "to be typed into")

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.screen.display)

    def until(
        self, wanted: str | Callable[[Terminal], object], timeout_s: float = LONGEST_S
    ) -> Terminal:
        """Read until the picture holds a text, or something holds of it.

        Raises:
            AssertionError: it never did, with what is on the screen instead.
        """
        until = time.monotonic() + timeout_s
        named = repr(wanted) if isinstance(wanted, str) else _named(wanted)
        while not self.show_runs(wanted):
            self._go_on(until, named)
        return self

    def until_gone(self, unwanted: str, timeout_s: float = LONGEST_S) -> Terminal:
        return self.until(lambda here: unwanted not in here.text, timeout_s)

    def show_runs(self, wanted: str | Callable[[Terminal], object]) -> bool:
        return wanted in self.text if isinstance(wanted, str) else bool(wanted(self))

    # -- the terminal --------------------------------------------------------------------------

    def resize(self, columns: int, rows: int) -> None:
        """Another size; the system tells the command by SIGWINCH."""
        self.screen.resize(rows, columns)
        self._sized(columns, rows)

    def _sized(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def modes(self) -> list[Any]:
        """Echo, line editing and the like, as `termios` gives them."""
        return list(termios.tcgetattr(self._slave))

    @property
    def is_sane(self) -> bool:
        """Whether what was switched on is off again: screen, cursor, mouse, paste, modes."""
        if self.modes() != self.modes_before:
            return False
        return all(self._last_of(on) <= self._last_of(off) for on, off in _SWITCHES)

    def _last_of(self, sequence: bytes) -> int:
        return self.raw.rfind(sequence)

    def hang_up(self) -> None:
        """The person's window is closed: the kernel sends SIGHUP."""
        _OPEN.remove(self)
        os.close(self._slave)
        os.close(self._master)
        self._master = self._slave = -1

    # -- its end -------------------------------------------------------------------------------

    def kill(self, number: int = signal.SIGKILL) -> None:
        self.child.send_signal(number)

    def ended(self, timeout_s: float = LONGEST_S) -> int:
        """Read until the command has ended; its exit code, below 0 for a signal."""
        until = time.monotonic() + timeout_s
        while self.child.poll() is None:
            self._go_on(until, "to end", must_live=False)
        if self._master >= 0:
            while self._read():
                pass
        return self.child.returncode

    def close(self) -> None:
        """End what is left, and let go of the terminal."""
        if self.child.poll() is None:
            self.child.kill()
        self.child.wait()
        if self._master >= 0:
            self.hang_up()

    def _go_on(self, until: float, wanted: str, *, must_live: bool = True) -> None:
        """Read what comes, for a moment.

        Raises:
            AssertionError: the deadline has passed, or the command is gone.
        """
        left = until - time.monotonic()
        dead = must_live and self.child.poll() is not None
        # A process's end makes no descriptor readable while its terminal is held open here.
        came = read(0.0 if dead else min(_LOOK_S, max(left, 0)))
        if dead and not came:
            code = self.child.returncode
            raise AssertionError(f"{wanted}: the command ended with {code}\n{self.text}")
        if left <= 0:
            raise AssertionError(f"{wanted}: not within the time\n{self.text}")

    def _read(self) -> bool:
        try:
            data = os.read(self._master, 65536)
        except OSError:
            return False
        self.raw += data
        text = self._tail + self._decoder.decode(data)
        cut = _CUT.search(text)
        at = cut.start() if cut else len(text)
        text, self._tail = text[:at], text[at:]
        *before, text = text.split(_LEFT)
        if before:
            self.screen.reset()  # pyte has one screen only; the other one is what came before
        self._stream.feed(_QUERY.sub("", text))
        return bool(data)


def read(longest_s: float) -> bool:
    """Take what comes on any terminal that is open; False where nothing did for so long."""
    masters = {one._master: one for one in _OPEN}
    ready, _, _ = select.select(list(masters), [], [], longest_s)
    return any([masters[master]._read() for master in ready])


_PLAIN: dict[str, str | None] = {
    "TERM": "xterm-256color",
    "LC_ALL": "C.UTF-8",
    **dict.fromkeys(("NO_COLOR", "COLORTERM", "COLORFGBG", "TMUX", "SSH_CONNECTION", "EDITOR")),
    **dict.fromkeys(("COLUMNS", "LINES")),  # the terminal says how large it is
}
"""A terminal of its own, whatever the one is that the tests are started from."""
_SWITCHES = (
    (b"\x1b[?1049h", b"\x1b[?1049l"),  # alternate screen
    (b"\x1b[?25l", b"\x1b[?25h"),  # cursor hidden
    (b"\x1b[?1000h", b"\x1b[?1000l"),  # mouse
    (b"\x1b[?2004h", b"\x1b[?2004l"),  # bracketed paste
    (b"\x1b[?1004h", b"\x1b[?1004l"),  # focus
)


def _named(wanted: Callable[[Terminal], object]) -> str:
    return getattr(wanted, "__name__", str(wanted))
