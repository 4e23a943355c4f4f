"""Real `studio` processes that are forked from one that has imported the studio already.

Each has a pid, memory, signals, streams and an exit code of its own; what is saved is the second
that every start would take to import the same modules. Where the start itself is tested (its
imports, warnings or locale), `python -m studio` is started instead.
"""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import runpy
import subprocess
import sys
import termios
import warnings
from multiprocessing import reduction
from pathlib import Path
from threading import Lock
from typing import Any

STUDIO = (sys.executable, "-W", "error", "-m", "studio")
"""How a process is started anew; what is forked is given the words that follow."""
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.support.studio_modules"])


class _Descriptor:
    """A descriptor that a forked process gets a copy of."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __reduce__(self) -> tuple[Any, ...]:
        return _take_descriptor, (reduction.DupFd(self._number),)


def _take_descriptor(copied: Any) -> int:
    taken: int = copied.detach()
    return taken


class ForkedStudio(subprocess.Popen[Any]):
    """`Popen([*STUDIO, …])` without the imports; of its options those that tests use.

    It also stands in where `studio.run.detached` starts a process. With `terminal`, its standard
    input is a terminal that it takes as its controlling one.
    """

    def __init__(self, command: Any, *, terminal: bool = False, **options: Any) -> None:
        assert tuple(command[: len(STUDIO)]) == STUDIO or "-P" in command, "no studio is started"
        self._terminal = terminal
        self._awaited = Lock()  # the exit code can be read once, and several threads may wait
        super().__init__(command, **options)

    def _execute_child(self, *given: Any) -> None:
        """Fork instead of executing a program; the arguments are those of Python 3.11 to 3.14."""
        args, preexec_fn, passed, cwd, env = given[0], given[2], given[4], given[5], given[6]
        assert preexec_fn is None, "start a new process for it"
        p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite = given[10:16]
        streams = [p2cread, c2pwrite, errwrite]
        self._process = _CONTEXT.Process(  # type: ignore[attr-defined]
            target=_be_studio,
            args=(
                list(args[len(STUDIO) :]),  # `start` has as many words before those of the studio
                Path(cwd or Path.cwd()),
                dict(os.environ if env is None else env),
                [_Descriptor(at if own == -1 else own) for at, own in enumerate(streams)],
                {number: _Descriptor(number) for number in passed},
                self._terminal,
                given[21],
            ),
        )
        self._process.start()
        self.pid = self._process.pid
        self._child_created = True
        self._close_pipe_fds(  # type: ignore[attr-defined]
            p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite
        )

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        if self.returncode is None and self._awaited.acquire(blocking=False):
            self._join(0)
        return self.returncode

    def _wait(self, timeout: float | None) -> int:
        if self._awaited.acquire(timeout=-1 if timeout is None else timeout):
            self._join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return int(self.returncode)

    def _join(self, timeout: float | None) -> None:
        """Wait for the exit code while nobody else does."""
        try:
            self._process.join(timeout)
            self.returncode = self._process.exitcode
        finally:
            self._awaited.release()


def run_forked(
    command: Any, *, input: str | None = None, timeout: float = 60, **options: Any
) -> Any:
    """`subprocess.run` of a `studio` that is forked."""
    with ForkedStudio(command, **options) as process:
        try:
            out, err = process.communicate(input, timeout=60)
        finally:
            process.kill()
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def _be_studio(
    words: list[str],
    folder: Path,
    environ: dict[str, str],
    streams: list[int],
    passed: dict[int, int],
    terminal: bool,
    own_session: bool,
) -> None:
    """In the forked process: become what `python -W error -m studio WORDS` would be."""
    # The server passes over what it cannot import, and every process then takes a second more.
    assert "studio.cli" in sys.modules, "the server has not imported the studio"
    for number, copied in enumerate(streams):
        os.dup2(copied, number)
        os.close(copied)
    if terminal or own_session:
        os.setsid()
    if terminal:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environ)
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", 1, encoding="utf-8", closefd=False)  # noqa: SIM115
    # A descriptor that is passed on has another number here.
    numbers = {f"--ready-fd={given}": f"--ready-fd={own}" for given, own in passed.items()}
    sys.argv = ["studio", *(numbers.get(word, word) for word in words)]
    warnings.simplefilter("error")
    try:
        runpy.run_module("studio", run_name="__main__", alter_sys=True)
    except Exception:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        sys.exit(1)
