"""What lies in a workspace and is nobody's, may be read by others, or cannot be read."""

import os
import re
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from engines.record import lines
from engines.record.derived.catalogue import refresh_catalogue, write_dataset_row
from engines.record.libraries import LibraryFolder
from engines.record.lock import holder_pid, is_held
from engines.record.repair import Finding, move_aside, remove
from engines.record.run_dir import RunDir, Workspace
from engines.record.seal import read_sealed
from studio.data.catalogue import dataset_row, listed_data
from studio.session.control_socket import is_alive

_LEFT_BY = re.compile(r"^\..+\.(\d+)\.tmp$|^\.removed-.+-(\d+)$|^\..+\.tmp$")
"""What a process is about to rename, or to remove, with its number; some do not say theirs."""
OLD_S = 86_400.0
"""No process takes a day to write a file."""
_PRIVATE = (
    *("journal*.json*", "run.yaml", "agent*.yaml", "studio.log", "records/*", "evals/*"),
    "derived/*",
)


def stray_findings(workspace: Workspace) -> Iterator[Finding]:
    """What stands among the runs and libraries, and is none."""
    for name, what in (("runs", "run"), ("libraries", "library")):
        folder = workspace.path / name
        if folder.is_dir():
            for path in sorted(folder.iterdir()):
                yield from _entry_findings(path, what)
        elif os.path.lexists(folder):
            move = "Move it away: the folder is made when it is needed."
            yield Finding("fix", str(folder), "it is no folder.", move)


def _entry_findings(path: Path, what: str) -> Iterator[Finding]:
    journal = path / "journal.jsonl"
    if path.name.startswith(".") or (path.is_dir() and journal.is_file()):
        if path.is_symlink():
            cause = f"it is a link to {path.resolve()}, where the {what} is read and written."
            move = "Nothing need be done: whatever removes it here removes the link alone."
            yield Finding("note", str(path), cause, move)
    elif path.is_dir() and journal.is_dir():
        if what == "run":  # of a library it is told where its journal is read
            move = "Move it away, or put the file back from a copy."
            yield Finding("fix", str(journal), "cannot be read: it is a folder.", move)
    elif what == "run" and any(path.glob("records/*.jsonl")):
        move = "Put it back from a copy: without it nothing goes on from these records."
        yield Finding("fix", str(journal), "it is gone, and its run's records are there.", move)
    else:
        cause = "it has no journal." if path.is_dir() else "it is a file."
        if not path.exists():
            cause = "it is a link that leads nowhere."
        move = f"Move it away, or restore its journal if it was a {what}."
        if survivors := LibraryFolder(path).describe_survivors():
            move += f" Or {survivors}"
        yield Finding("note", str(path), f"it is no {what}: {cause}", move)


def catalogue_findings(workspace: Workspace) -> Iterator[Finding]:
    """A catalogue that people cannot query; the studio makes it again when it is needed."""
    path = workspace.catalogue
    if os.path.lexists(path) and (not path.is_file() or read_sealed(path) is None):
        move = f"{lines.REPAIR} makes it again, as whatever lists runs does."
        repair = partial(_make_catalogue, workspace)
        yield Finding("note", str(path), "it is damaged or altered.", move, repair, alone=True)


def _make_catalogue(workspace: Workspace) -> str:
    if not workspace.catalogue.is_file():
        move_aside(workspace.catalogue)
    refresh_catalogue(workspace)
    for data in listed_data(workspace, bundled=False):
        path = Path(data.path)
        if data.where == "workspace" and data.n is not None and path.is_file():
            write_dataset_row(workspace, dataset_row(path, path.read_bytes(), data.n))
    return "made again from the journals"


def leftover_findings(folder: Path, run: RunDir | None = None) -> Iterator[Finding]:
    """A socket or a holder's note of a process that is gone; nothing behind a link is removed."""
    if folder.is_symlink() or is_held(folder):
        return
    if run is not None and os.path.lexists(run.socket) and not is_alive(run):
        yield _removable_finding(run.socket, "the process that made this socket is gone.")
    if (holder := folder / ".holder").exists():
        yield _removable_finding(holder, f"the process that wrote here{pid_text(folder)} is gone.")


def pid_text(folder: Path) -> str:
    pid = holder_pid(folder)
    return "" if pid is None else f" (pid {pid})"


def unfinished_findings(workspace: Workspace) -> Iterator[Finding]:
    """Files that a killed process was about to rename, and runs it was about to remove."""
    for path in sorted(workspace.path.rglob(".*")):
        if (match := _LEFT_BY.match(path.name)) and _is_left(path, match[1] or match[2]):
            yield _removable_finding(path, "a process that is gone left this half done.")


def _is_left(path: Path, pid: str | None) -> bool:
    """Whether no process is at it: none of that number lives, or another has the number by now."""
    if pid is not None and not _is_process_alive(int(pid)):
        return True
    with suppress(OSError):
        return time.time() - path.lstat().st_mtime > OLD_S
    return False


def _removable_finding(path: Path, cause: str) -> Finding:
    move = f"It is in nobody's way; {lines.REPAIR} removes it."
    return Finding("note", str(path), cause, move, partial(remove, path), alone=True)


def _is_process_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass  # somebody else's, or no process of this machine
    return True


def permission_findings(workspace: Workspace, runs: Iterable[RunDir]) -> Iterator[Finding]:
    """Files that others may read."""
    places = [workspace.catalogue, *workspace.evaluations.glob("*/*")]
    for run in runs:
        places += [path for pattern in _PRIVATE for path in run.path.glob(pattern)]
    for path in sorted(places):
        if not path.is_file():
            continue
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            cause = f"others may read it (mode {mode:04o}), and it could hold secrets."
            repair = partial(_restrict, path)
            yield Finding("note", str(path), cause, f"chmod 600 {path}", repair, alone=True)


def _restrict(path: Path) -> str:
    path.chmod(0o600)
    return "now 0600"


def data_findings(workspace: Workspace) -> Iterator[Finding]:
    """Data sets that cannot be read."""
    for data in listed_data(workspace, bundled=False):
        if data.where == "workspace" and data.n is None:
            place, _, cause = data.trouble.partition(": ")
            yield Finding("fix", place, cause or data.trouble, f"studio data check {data.path}")
