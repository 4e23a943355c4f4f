"""Removing a run for good: its folder, its row; never its library.

A run is first renamed out of `runs/`, so that an interrupted removal leaves no partial run there.
Of a run whose folder is a link only the link goes.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from engines.core.errors import ConflictError, StudioError
from engines.core.events import RunStarted
from engines.record.derived.catalogue import load_run_rows
from engines.record.lock import write_lock
from engines.record.run_dir import RunDir, Workspace
from studio.session.control_socket import is_alive

_ASIDE = ".removed-"


def check_removable(run: RunDir, workspace: Workspace) -> None:
    """Refuse to remove a run whose process is alive, or from which another was forked."""
    if is_alive(run):
        move = f"Stop it first: studio ctl stop {run.run}"
        raise ConflictError(f"run {run.run}", "its process is alive.", move)
    if forks := _forks(run, workspace):
        cause = f"its first steps are also those of run {', '.join(forks)}."
        raise ConflictError(f"run {run.run}", cause, "Remove what was forked from it first.")


def remove_run(run: RunDir, workspace: Workspace) -> None:
    """Remove the folder and the catalogue's row of a run. Raises ConflictError or LockedError."""
    check_removable(run, workspace)
    aside = workspace.path / f"{_ASIDE}{run.run}-{os.getpid()}"
    with write_lock(run.path.resolve()):  # where it is a link, its note goes from there
        run.path.rename(aside)
    for left in workspace.path.glob(f"{_ASIDE}*"):
        if left.is_symlink():
            left.unlink()  # what it leads to is not the workspace's to remove
        else:
            shutil.rmtree(left)
    load_run_rows(workspace)  # drops rows whose run is gone


def linked_folder(run: RunDir) -> Path | None:
    """Where the files of a run are whose folder is a link; None: it is none."""
    return run.path.resolve() if run.path.is_symlink() else None


def library_of(run: RunDir) -> str | None:
    """The library a run commits to; None where its journal does not say."""
    started = _read_start(run)
    return started.library if started else None


def _forks(run: RunDir, workspace: Workspace) -> list[str]:
    starts = {other.run: _read_start(other) for other in workspace.runs() if other.run != run.run}
    return [name for name, started in starts.items() if started and started.forked_from == run.run]


def _read_start(run: RunDir) -> RunStarted | None:
    try:
        return run.state().started
    except StudioError:
        return None  # a damaged run does not say it, and may be removed as well
