"""What lies in a workspace and is nobody's: strangers, and what ended processes left."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from engines.record import lines
from engines.record.libraries import LibraryFolder
from engines.record.lock import holder_pid, is_held
from engines.record.repair.cut import move_aside, remove
from engines.record.repair.trouble import Trouble
from engines.record.run_dir import RunDir, Workspace
from studio.session.control_socket import is_alive

_LEFT_BY = re.compile(r"^\..+\.(\d+)\.tmp$|^\.removed-.+-(\d+)$|^\..+\.tmp$")
"""What a process is about to rename, or to remove, with its number; some do not say theirs."""
OLD_S = 86_400.0
"""No process takes a day to write a file."""


def stray_troubles(workspace: Workspace) -> Iterator[Trouble]:
    """What stands among the runs and libraries, or in the place of a file, and is none."""
    path = workspace.catalogue
    if os.path.lexists(path) and not path.is_file():
        move = f"{lines.REPAIR} moves it aside: the file is made when it is needed."
        yield Trouble(str(path), "it is no file.", move, partial(move_aside, path), alone=True)
    for name, what in (("runs", "run"), ("libraries", "library")):
        folder = workspace.path / name
        if not folder.is_dir():
            if os.path.lexists(folder):
                move = "Move it away: the folder is made when it is needed."
                yield Trouble(str(folder), "it is no folder.", move)
            continue
        for path in sorted(folder.iterdir()):
            journal = path / "journal.jsonl"
            if path.name.startswith(".") or (path.is_dir() and journal.is_file()):
                if path.is_symlink():
                    yield _link_trouble(path, what)
                continue
            if path.is_dir() and journal.is_dir():
                if name == "runs":  # of a library it is told where its journal is read
                    move = "Move it away, or put the file back from a copy."
                    yield Trouble(str(journal), "cannot be read: it is a folder.", move)
                continue
            if name == "runs" and any(path.glob("records/*.jsonl")):
                move = "Put it back from a copy: without it nothing goes on from these records."
                yield Trouble(str(journal), "it is gone, and its run's records are there.", move)
                continue
            cause = "it has no journal." if path.is_dir() else "it is a file."
            cause = cause if path.exists() else "it is a link that leads nowhere."
            move = f"Move it away, or restore its journal if it was a {what}."
            survivors = LibraryFolder(path).describe_survivors()
            move += f" Or {survivors}" if survivors else ""
            yield Trouble(str(path), f"it is no {what}: {cause}", move, damage=False)


def _link_trouble(path: Path, what: str) -> Trouble:
    cause = f"it is a link to {path.resolve()}, where the {what} is read and written."
    move = "Nothing need be done: whatever removes it here removes the link alone."
    return Trouble(str(path), cause, move, damage=False)


def leftover_troubles(run: RunDir) -> Iterator[Trouble]:
    """A socket or a holder's note of a process that is gone; nothing behind a link is removed."""
    if run.path.is_symlink():
        return
    if os.path.lexists(run.socket) and not is_held(run.path) and not is_alive(run):
        yield _removable_trouble(run.socket, "the process that made this socket is gone.")
    yield from _holder_troubles(run.path)


def pid_text(folder: Path) -> str:
    pid = holder_pid(folder)
    return "" if pid is None else f" (pid {pid})"


def _holder_troubles(folder: Path) -> Iterator[Trouble]:
    holder = folder / ".holder"
    if holder.exists() and not is_held(folder):
        cause = f"the process that wrote here{pid_text(folder)} is gone."
        yield _removable_trouble(holder, cause)


def stale_troubles(workspace: Workspace) -> Iterator[Trouble]:
    """Files that a killed process was about to rename, and runs it was about to remove."""
    for path in sorted(workspace.path.rglob(".*")):
        if (match := _LEFT_BY.match(path.name)) and _is_left(path, match[1] or match[2]):
            yield _removable_trouble(path, "a process that is gone left this half done.")
    for folder in workspace.libraries():
        yield from _holder_troubles(folder.path)


def _is_left(path: Path, pid: str | None) -> bool:
    """Whether no process is at it: none of that number lives, or another has the number by now."""
    if pid is not None and not _is_process_alive(int(pid)):
        return True
    with suppress(OSError):
        return time.time() - path.lstat().st_mtime > OLD_S
    return False


def _removable_trouble(path: Path, cause: str) -> Trouble:
    move = f"It is in nobody's way; {lines.REPAIR} removes it."
    return Trouble(str(path), cause, move, partial(remove, path), damage=False, alone=True)


def _is_process_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass  # somebody else's, or no process of this machine
    return True
