"""Removing a run for good: its folder, its row; never its library.

Owns the refusals. A run is first renamed out of `runs/`, so that a
removal that is interrupted leaves no partial run there.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress

from engines.core.errors import ConflictError, StudioError
from engines.record.catalogue import load_run_rows
from engines.record.lock import write_lock
from engines.record.run_dir import RunDir, Workspace
from studio.session.client import is_alive

_ASIDE = ".removed-"


def check_removable(run: RunDir, workspace: Workspace) -> None:
    """Refuse what must not be removed now.

    Raises:
        ConflictError: its process is alive, or another run was forked from it.
    """
    if is_alive(run):
        move = f"Stop it first: studio ctl stop {run.run}"
        raise ConflictError(f"run {run.run}", "its process is alive.", move)
    if forks := list(_forks(run, workspace)):
        cause = f"its first steps are also those of run {', '.join(forks)}."
        raise ConflictError(f"run {run.run}", cause, "Remove what was forked from it first.")


def remove_run(run: RunDir, workspace: Workspace) -> None:
    """Remove the folder and the catalogue's row of a run.

    Raises:
        ConflictError: see `check_removable`.
        LockedError: another process writes to the run.
    """
    check_removable(run, workspace)
    aside = workspace.path / f"{_ASIDE}{run.run}-{os.getpid()}"
    with write_lock(run.path):
        run.path.rename(aside)
    for left in workspace.path.glob(f"{_ASIDE}*"):
        shutil.rmtree(left)
    # Drops rows whose run is gone; where another run is damaged, it follows once that is mended.
    with suppress(StudioError):
        load_run_rows(workspace)


def library_of(run: RunDir) -> str | None:
    """The library a run commits to; None where its journal does not say."""
    try:
        started = run.state().started
    except StudioError:
        return None  # a damaged run may be removed as well
    return started.library if started else None


def _forks(run: RunDir, workspace: Workspace) -> Iterator[str]:
    for other in workspace.runs():
        if other.run == run.run:
            continue
        try:
            started = other.state().started
        except StudioError:
            continue  # a damaged run does not say what it was forked from
        if started is not None and started.forked_from == run.run:
            yield other.run
