"""A terminal for a child process: a pseudo-terminal, pyte as its screen, a line of given speed.

Owns bytes and their times, both ways. What the child draws arrives after half the round
trip and no faster than the line carries it, and so do keys and answers.
"""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyte

_SYNC = "\x1b[?2026$p"
_WHOLE = re.compile(r"\x1b(?:\[[0-9;?<>=$ ]*[@-~]|[^\[])")
_UNKNOWN = re.compile(r"\x1b\[(?:[<>=?][0-9;]*[a-zA-Z]|\?[0-9;]*\$p)")
_CHUNK = 1024


@dataclass(frozen=True)
class Line:
    """What lies between the child and the screen; None carries everything at once."""

    bytes_per_s: float | None = None
    rtt_s: float = 0.0


@dataclass
class Terminal:
    """The child's terminal.

    Without a line's limit what comes is taken at once, as a local terminal does.
    """

    columns: int
    rows: int
    line: Line = field(default_factory=Line)
    answers: bool = True  # knows synchronized output, as most do today

    def __post_init__(self) -> None:
        self.screen = pyte.Screen(self.columns, self.rows)
        self.stream = pyte.Stream(self.screen)
        self.taken = 0  # bytes drawn
        self._master = -1
        self._up: deque[tuple[float, bytes]] = deque()  # on the way to the child
        self._down: deque[tuple[float, bytes]] = deque()  # on the way to the screen
        self._free = 0.0  # when the line has room again
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._tail = ""

    def start(self, command: Sequence[str], environ: Mapping[str, str], cwd: str) -> None:
        master, slave = pty.openpty()
        size = struct.pack("HHHH", self.rows, self.columns, 0, 0)
        fcntl.ioctl(slave, termios.TIOCSWINSZ, size)
        self.child = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=dict(environ), cwd=cwd,
            start_new_session=True, close_fds=True,
        )  # fmt: skip
        os.close(slave)
        os.set_blocking(master, False)
        self._master = master

    def resize(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self.screen.resize(rows, columns)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        os.kill(self.child.pid, signal.SIGWINCH)

    def press(self, keys: str) -> None:
        self._up.append((time.monotonic() + self.line.rtt_s / 2, keys.encode()))

    def cpu_s(self) -> float:
        """What the child used so far."""
        fields = Path(f"/proc/{self.child.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def text(self) -> str:
        return "\n".join(self.screen.display)

    def until(self, done: Callable[[], bool], timeout_s: float) -> bool:
        """Go on until something holds; False where it never does."""
        end = time.monotonic() + timeout_s
        while not done():
            if time.monotonic() >= end or not self.step():
                return done()
        return True

    def run(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        self.until(lambda: time.monotonic() >= end, seconds + 1)

    def step(self, wait_s: float = 0.002) -> bool:
        """Carry what is due; False when the child is gone."""
        now = time.monotonic()
        while self._up and self._up[0][0] <= now:
            os.write(self._master, self._up.popleft()[1])
        while self._down and self._down[0][0] <= now:
            self._draw(self._down.popleft()[1])
        # A full line leaves its sender's bytes where they are: in the pseudo-terminal.
        busy = self.line.bytes_per_s is not None and self._free > now
        if busy:
            time.sleep(min(wait_s, self._free - now))
            return self.child.poll() is None
        ready, _, _ = select.select([self._master], [], [], wait_s)
        if not ready:
            return self.child.poll() is None
        size = 65536
        if self.line.bytes_per_s is not None:
            size = max(16, int(self.line.bytes_per_s * 0.01))
        try:
            data = os.read(self._master, size)
        except OSError:
            return False
        carried = len(data) / self.line.bytes_per_s if self.line.bytes_per_s else 0.0
        self._free = now + carried
        self._down.append((now + carried + self.line.rtt_s / 2, data))
        while self._down and self._down[0][0] <= time.monotonic():
            self._draw(self._down.popleft()[1])
        return True

    def _draw(self, data: bytes) -> None:
        self.taken += len(data)
        # A character or a sequence that is cut in two waits for its other half.
        text = self._tail + self._decoder.decode(data)
        cut = text.rfind("\x1b", max(0, len(text) - 24))
        if cut >= 0 and not _WHOLE.match(text, cut):
            text, self._tail = text[:cut], text[cut:]
        else:
            self._tail = ""
        if self.answers:
            for _ in range(text.count(_SYNC)):
                self._up.append((time.monotonic() + self.line.rtt_s / 2, b"\x1b[?2026;2$y"))
        self.stream.feed(_UNKNOWN.sub("", text))

    def stop(self) -> None:
        """End the child, politely first."""
        if self.child.poll() is None:
            self.child.terminate()
            end = time.monotonic() + 2
            while self.child.poll() is None and time.monotonic() < end:
                self.step()
            if self.child.poll() is None:
                self.child.kill()
        self.child.wait()
        os.close(self._master)
