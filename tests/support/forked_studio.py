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

    With `terminal`, its standard input is a terminal that it takes as its controlling one.
    """

    def __init__(self, command: Any, *, terminal: bool = False, **options: Any) -> None:
        assert tuple(command[: len(STUDIO)]) == STUDIO
        self._terminal = terminal
        super().__init__(command, **options)

    def _execute_child(self, *given: Any) -> None:
        """Fork instead of executing a program; the arguments are those of Python 3.11 to 3.14."""
        args, preexec_fn, cwd, env = given[0], given[2], given[5], given[6]
        assert preexec_fn is None, "start a new process for it"
        p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite = given[10:16]
        streams = [p2cread, c2pwrite, errwrite]
        self._process = _CONTEXT.Process(  # type: ignore[attr-defined]
            target=_be_studio,
            args=(
                list(args[len(STUDIO) :]),
                Path(cwd or Path.cwd()),
                dict(os.environ if env is None else env),
                [_Descriptor(at if own == -1 else own) for at, own in enumerate(streams)],
                self._terminal,
            ),
        )
        self._process.start()
        self.pid = self._process.pid
        self._child_created = True
        self._close_pipe_fds(  # type: ignore[attr-defined]
            p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite
        )

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        if self.returncode is None:
            self.returncode = self._process.exitcode
        return self.returncode

    def _wait(self, timeout: float | None) -> int:
        self._process.join(timeout)
        if self._internal_poll() is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return int(self.returncode)


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
    words: list[str], folder: Path, environ: dict[str, str], streams: list[int], terminal: bool
) -> None:
    """In the forked process: become what `python -W error -m studio WORDS` would be."""
    # The server passes over what it cannot import, and every process then takes a second more.
    assert "studio.cli" in sys.modules, "the server has not imported the studio"
    for number, copied in enumerate(streams):
        os.dup2(copied, number)
        os.close(copied)
    if terminal:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environ)
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", 1, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.argv = ["studio", *words]
    warnings.simplefilter("error")
    try:
        runpy.run_module("studio", run_name="__main__", alter_sys=True)
    except Exception:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        sys.exit(1)
