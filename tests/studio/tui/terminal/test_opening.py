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
LFLAG = 3


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
        shown = read_until(ours, b"opening ...")
        assert shown.startswith(b"\x1b[?1049h") and b"studio: opening" in shown
        assert not termios.tcgetattr(theirs)[LFLAG] & termios.ECHO
        if number is None:
            os.write(ours, b"q\n")
        else:
            process.send_signal(number)
        rest = read_until(ours, b"\x1b[?1049l")  # with what a traceback may say after it
        assert b"q" not in rest[: rest.index(b"\x1b[?1049l")]  # what is typed is not echoed
        assert process.wait(20) in (code, -(number or 0))
        assert termios.tcgetattr(theirs) == before
    finally:
        os.close(theirs)
        os.close(ours)


LEFT = """
import select, sys
from studio.tui.terminal.opening import current_line, opening_line
with opening_line():
    while not select.select([0], [], [], 0.05)[0]:
        pass
    current_line().hand_over(sys.stderr.write, lambda: None)
    print(current_line().was_left)
"""


@pytest.mark.parametrize(("typed", "left"), [(b"q", "True"), (b"16q", "True"), (b"qx", "False")])
def test_a_q_that_is_typed_meanwhile_is_meant_and_no_other_key(typed: bytes, left: str) -> None:
    ours, theirs = pty.openpty()
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", LEFT], stdin=theirs, stdout=subprocess.PIPE, stderr=theirs,
            env={**os.environ, "TERM": "xterm"}, text=True,
        )  # fmt: skip
        read_until(ours, b"opening ...")
        os.write(ours, typed)
        assert process.communicate(timeout=20)[0].strip() == left
    finally:
        os.close(theirs)
        os.close(ours)
