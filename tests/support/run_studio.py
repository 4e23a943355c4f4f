"""The command line in this process: what it printed and its exit code."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess

from studio.cli import run


@dataclass(frozen=True)
class Result:
    stdout: str
    stderr: str
    code: int


class Terminal(io.StringIO):
    """Standard input with a person at it."""

    def isatty(self) -> bool:
        return True


def studio(*arguments: str, workspace: Path, cwd: Path | None = None, typed: str = "") -> Result:
    """Run `studio ARGUMENTS`.

    Args:
        arguments: words of the command line.
        workspace: its `--workspace`.
        cwd: the folder it runs in; default the one above the workspace.
        typed: what a person at a terminal types; "" for no terminal.
    """
    out, err = io.StringIO(), io.StringIO()
    given = Terminal(typed) if typed else io.StringIO()
    with (
        chdir(cwd or workspace.parent),
        stdin_from(given),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        code = run(["--workspace", str(workspace), *arguments])
    return Result(out.getvalue(), err.getvalue(), code)


def run_here(workspace: Path, *arguments: str, typed: str | None = None) -> CompletedProcess[str]:
    """As `tests.support.processes.studio`, without a process: a second is saved each time.

    For what is asked of a living run, or follows after one; `typed` comes through a pipe there,
    so nobody sits at a terminal.
    """
    out, err = io.StringIO(), io.StringIO()
    words = ["--workspace", str(workspace), *arguments]
    with stdin_from(io.StringIO(typed or "")), redirect_stdout(out), redirect_stderr(err):
        code = run(words)
    return CompletedProcess(words, code, out.getvalue(), err.getvalue())


@contextmanager
def stdin_from(stream: io.StringIO) -> Iterator[None]:
    before, sys.stdin = sys.stdin, stream
    try:
        yield
    finally:
        sys.stdin = before
