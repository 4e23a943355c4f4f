"""A process that holds keys cannot be read by another one of the same user."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has the dumpable flag")
CHILD = (
    "import os, sys\n"
    "from studio.process import harden, is_hardened\n"
    "before = is_hardened()\n"
    "if sys.argv[1] == 'harden': harden(); harden()\n"
    "print(before, is_hardened(), os.stat('/proc/self/environ').st_uid, flush=True)\n"
    "sys.stdin.read()\n"
)


@contextmanager
def child(what: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, what],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PLANTED_API_KEY": "planted-words"},
    )
    try:
        yield process
    finally:
        process.communicate("", timeout=30)


def told(process: subprocess.Popen[str]) -> list[str]:
    assert process.stdout is not None
    return process.stdout.readline().split()


@linux
def test_the_flag_is_cleared_for_good_and_proc_belongs_to_the_administrator() -> None:
    with child("harden") as process:
        assert told(process) == ["False", "True", "0"]


@linux
def test_a_process_is_readable_until_then() -> None:
    with child("leave") as process:
        assert told(process) == ["False", "False", str(os.getuid())]


@linux
@pytest.mark.skipif(os.getuid() == 0, reason="the administrator may read every process")
def test_another_process_of_the_same_user_cannot_read_the_environment() -> None:
    with child("harden") as process:
        told(process)
        with pytest.raises(PermissionError):
            open(f"/proc/{process.pid}/environ", "rb").close()


@linux
def test_the_command_line_hardens_itself_before_a_command_begins() -> None:
    code = (
        "import sys, studio.cli as cli\n"
        "from studio.process import is_hardened\n"
        "cli.run = lambda words: print(is_hardened()) or 0\n"
        "sys.argv = ['studio', 'presets', 'list']\n"
        "cli.main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.strip() == "True", done.stderr


def test_nothing_happens_on_a_platform_without_the_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    from studio import process

    monkeypatch.setattr(process.sys, "platform", "darwin")
    process.harden()
    assert process.is_hardened() is None
