"""The line that stands on the terminal while the screen loads, and how it gives that back."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import termios

import pytest

PROGRAM = """
import gc, select, sys
from studio.tui.terminal.opening import opening_line
heavy = {"textual", "rich", "asyncio"} & set(sys.modules)
try:
    with opening_line():
        assert not heavy, heavy
        assert not gc.isenabled()  # while all is imported
        # A signal just before a read that waits for ever would be heard of with the next key.
        while not select.select([0], [], [], 0.05)[0]:
            pass
        sys.stdin.readline()
        %s
finally:
    assert gc.isenabled() and gc.get_freeze_count()
"""


def read_until(fd: int, wanted: bytes) -> bytes:
    got = b""
    while wanted not in got:
        got += os.read(fd, 4096)
    return got


@pytest.mark.parametrize(
    ("end", "number", "code"),
    [("raise ImportError('none')", None, 1), ("", signal.SIGINT, 130), ("", signal.SIGTERM, 143)],
)
def test_a_line_stands_there_at_once_and_the_terminal_is_given_back(
    end: str, number: int | None, code: int
) -> None:
    ours, theirs = pty.openpty()
    try:
        before = termios.tcgetattr(theirs)
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM % (end or "pass")],
            stdin=theirs, stdout=subprocess.DEVNULL, stderr=theirs,
            env={**os.environ, "TERM": "xterm"},
        )  # fmt: skip
        read_until(ours, b"studio: opening ...")
        if number is None:
            os.write(ours, b"q\n")
        else:
            process.send_signal(number)
        if number != signal.SIGTERM:
            read_until(ours, b"\r\x1b[K")
        assert process.wait(20) in (code, -(number or 0))
        assert termios.tcgetattr(theirs) == before
    finally:
        os.close(theirs)
        os.close(ours)
