"""Programs as agents and graders start them, and the private folder as one left it.

The boxes are the sandbox's; nothing here is imported by what implements them: the tiers that
contain programs fit by their shape. Nothing in a folder that was left is trusted: links are not
followed and pipes not waited for, and what is read is a plain file in the folder itself.
"""

import json
import os
import re
import shutil
import socket
import stat
from collections.abc import Awaitable, Callable, Mapping
from math import isfinite
from pathlib import Path
from typing import Any, Protocol

from engines.core.codec import digest
from engines.core.types import Problem


class ProgramResult(Protocol):
    """How a program ended. Of its outputs the last part is kept."""

    status: str  # "ok", "error" (it failed by itself), "timeout" or "killed"
    returncode: int | None
    stdout: str
    stderr: str
    error: str  # what its box says of it; "" where that is nothing


class Program(Protocol):
    """A program that was started."""

    listener: socket.socket | None
    """Listens on 127.0.0.1 of the program's own network; None where it shares ours."""

    async def wait(self) -> ProgramResult: ...

    async def kill(self) -> None:
        """End it and all that it started; returns once nothing of it runs."""


class ProgramRunner(Protocol):
    """Starts programs, each in a box of its own."""

    @property
    def start_program(self) -> Callable[..., Awaitable[Any]]:
        """Starts a `Program`; takes what `Sandbox.start_program` takes."""


MOST_CHARS = 1_000_000
MOST_KEPT_BYTES, MOST_KEPT_FILES = 64_000_000, 10_000
_MOST_METRICS = 32
_METRIC = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def folder_name(problem: Problem, *place: int) -> str:
    """Of a try at `place` (epoch, step, position, index): the same whenever it is made."""
    return "-".join([*map(str, place), digest(problem.id, 6)])


def task_folder(problem: Problem) -> Path | None:
    """Where the task of a problem lies, in the Harbor layout; None for any other problem."""
    task = Path(str(problem.meta.get("task") or "/"))
    # A row of any data set may have such a field: it must name no folder but a task's.
    return task if (task / "task.toml").is_file() and (task / "tests").is_dir() else None


def read_left_file(folder: Path, name: str) -> str | None:
    """The text of a file, cut at `MOST_CHARS`; None where there is no such plain file."""
    try:
        descriptor = os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # fdopen refuses a folder
        os.close(descriptor)
        return None
    with os.fdopen(descriptor, "rb") as file:
        return file.read(MOST_CHARS).decode(errors="replace")


def parse_reward(text: str) -> Mapping[str, float]:
    """Figures of a `reward.json`: a number, or an object of numbers. ValueError for all else."""
    value = json.loads(text)
    figures = value if isinstance(value, dict) else {"reward": value}
    metrics = {
        name: float(figure)
        for name, figure in list(figures.items())[:_MOST_METRICS]
        if isinstance(figure, int | float) and isfinite(figure) and _METRIC.fullmatch(name)
    }
    if "reward" not in metrics:
        raise ValueError('it is no number and has no number "reward"')
    return metrics


def keep_folder(folder: Path, kept: Path) -> None:
    """Move a folder to where its grader finds it; one that is too large is not kept."""
    files = [Path(at, name) for at, _, names in os.walk(folder) for name in names]
    size = sum(file.lstat().st_size for file in files)
    remove_folder(kept)
    if len(files) <= MOST_KEPT_FILES and size <= MOST_KEPT_BYTES:
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(folder, kept)


def copy_folder(source: Path, target: Path) -> None:
    """Copy folders, plain files and links (as links); anything else is left out."""

    def others(at: str, names: list[str]) -> list[str]:
        modes = {name: os.lstat(os.path.join(at, name)).st_mode for name in names}
        kinds = (stat.S_ISREG, stat.S_ISDIR, stat.S_ISLNK)
        return [name for name, mode in modes.items() if not any(kind(mode) for kind in kinds)]

    shutil.copytree(source, target, symlinks=True, ignore=others, dirs_exist_ok=True)


def remove_folder(folder: Path) -> None:
    """Remove a folder, also one whose parts the program has closed to itself."""
    shutil.rmtree(folder, ignore_errors=True)
    if folder.is_dir():
        for at, names, _ in os.walk(folder):
            for name in ("", *names):
                inner = os.path.join(at, name)
                if not os.path.islink(inner):
                    os.chmod(inner, 0o700)
        shutil.rmtree(folder, ignore_errors=True)
