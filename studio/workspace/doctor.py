"""`studio doctor`: whether the files of a workspace are intact; written only with `repair`.

Owns the order of repairs: libraries before the runs that use them, and the catalogue, which is made
from both, last. What is wrong inside a file is `engines.record.repair`'s; each kind of other checks
is a file of `checks/`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from engines.core.errors import StudioError
from engines.record import lines
from engines.record.catalogue.rows import run_row
from engines.record.libraries import LibraryFolder
from engines.record.lock import is_held
from engines.record.repair.indexes import index_troubles
from engines.record.repair.libraries import library_troubles
from engines.record.repair.runs import run_troubles
from engines.record.repair.scores import score_troubles
from engines.record.repair.trouble import Trouble
from engines.record.run_dir import RunDir, Workspace
from engines.record.run_index import read_run
from studio.data.catalogue import listed_data
from studio.workspace.checks.catalogue import catalogue_troubles
from studio.workspace.checks.checkpoints import checkpoint_troubles
from studio.workspace.checks.contents import data_troubles, permission_troubles
from studio.workspace.checks.finding import Finding
from studio.workspace.checks.strays import (
    leftover_troubles,
    pid_text,
    stale_troubles,
    stray_troubles,
)
from studio.workspace.written_files import run_file_troubles, written_troubles


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What was looked at, in numbers, and what was found."""

    looked_at: dict[str, int]
    findings: tuple[Trouble, ...]
    living: dict[str, str] = field(default_factory=dict)  # runs at work, each with its process
    is_read_only: bool = False  # no repair can be written
    checks: tuple[Finding, ...] = ()  # of all beside the workspace's files

    @property
    def is_healthy(self) -> bool:
        """Nothing is damaged, or what was is mended; and nothing else fails to work."""
        damaged = any(found.damage and not found.mended for found in self.findings)
        return not damaged and not any(found.grade == "fix" for found in self.checks)


def diagnose(workspace: Workspace, *, repair: bool) -> Diagnosis:
    """Check everything in a workspace, and repair it where asked and no living process writes.

    Raises RecordError: a repair cannot be written; earlier ones stay.
    """
    if not workspace.path.is_dir():
        return Diagnosis({}, ())
    runs = workspace.runs()
    folders = sorted((workspace.path / "libraries").glob("*/journal.jsonl"))
    libraries = [workspace.library(path.parent.name) for path in folders]
    living = _live_folders(runs, libraries)
    is_read_only = not os.access(workspace.path, os.W_OK)
    repair = repair and not is_read_only
    found: list[Trouble] = []
    rows: dict[str, dict[str, Any]] = {}

    def examine(look: Callable[[], Iterable[Trouble]], folder: Path | None = None) -> None:
        if folder in living:
            found.extend(_postpone_repairs(_find_and_repair(look, False), living[folder]))
        else:
            found.extend(_find_and_repair(look, repair))

    examine(partial(stray_troubles, workspace))
    for library in libraries:
        examine(partial(library_troubles, library), library.path)
    for run in runs:
        examine(partial(run_troubles, run, workspace), run.path)
        examine(partial(leftover_troubles, run), run.path)
        examine(partial(run_file_troubles, run))
        examine(partial(_beside_troubles, run, workspace, libraries), run.path)
        examine(partial(index_troubles, run.path))
        with suppress(StudioError, OSError):  # told of where its journal was read
            rows[run.run] = run_row(run, anew=True)
    for library in libraries if repair else ():  # a run's repair cuts their journals, too
        examine(partial(library_troubles, library), library.path)
    at_work = {run.run: living[run.path] for run in runs if run.path in living}
    for path in sorted(workspace.evaluations.glob("*/scores.jsonl")):
        # A run at work may be adding to it, and holds no lock on it.
        found.extend(_find_and_repair(partial(score_troubles, path), repair and not at_work))
    examine(partial(stale_troubles, workspace))
    examine(partial(permission_troubles, workspace, runs))
    examine(partial(data_troubles, workspace))
    examine(partial(catalogue_troubles, workspace, rows))
    for library in libraries:
        examine(partial(index_troubles, library.path))
    sets = sum(data.where == "workspace" for data in listed_data(workspace, bundled=False))
    looked_at = {"runs": len(runs), "libraries": len(libraries), "data sets": sets}
    once = {(each.place, each.cause): each for each in found}
    return Diagnosis(looked_at, tuple(once.values()), at_work, is_read_only)


def _beside_troubles(
    run: RunDir, workspace: Workspace, libraries: Iterable[LibraryFolder]
) -> Iterator[Trouble]:
    """What is wrong with files beside a run's journal, by what that adds up to."""
    if is_held(run.path):
        return  # its process writes and removes some meanwhile
    try:
        state = read_run(run.journal, anew=True).state
    except StudioError:
        return  # found before, where its journal was read
    yield from checkpoint_troubles(run, state)
    yield from written_troubles(run, state, workspace, libraries)


def _find_and_repair(look: Callable[[], Iterable[Trouble]], repair: bool) -> list[Trouble]:
    """The troubles of one run, library or file; each is repaired at once where asked.

    A repair can uncover another trouble, so the check is repeated; nothing is repaired twice.
    """
    found: dict[tuple[str, str], Trouble] = {}
    mended = True
    while mended:
        mended = False
        for trouble in _catch_unreadable(look()):
            key = (trouble.place, trouble.cause)
            if key in found and (found[key].mended or not repair):
                continue
            done = trouble.mend() if repair and trouble.mend is not None else ""
            found[key] = replace(trouble, mended=done)
            if done and not trouble.alone:  # what follows may look different now
                mended = True
                break
    return list(found.values())


def _catch_unreadable(troubles: Iterable[Trouble]) -> Iterator[Trouble]:
    """Troubles as they come; an unreadable file is one of them."""
    try:
        yield from troubles
    except (StudioError, OSError) as error:
        if isinstance(error, OSError):
            error = lines.unreadable_error(Path(error.filename or "."), error)
        yield Trouble(error.place, error.cause, error.move)


def _live_folders(runs: Iterable[RunDir], libraries: Iterable[LibraryFolder]) -> dict[Path, str]:
    """Folders in which a living process writes, runs' libraries included, with the process."""
    found: dict[Path, str] = {}
    every = {folder.name: folder for folder in libraries}
    for run in runs:
        if not is_held(run.path):
            continue
        found[run.path] = pid_text(run.path)
        try:
            started = read_run(run.journal, anew=True).state.started
            used = [every[started.library]] if started and started.library in every else []
        except StudioError:
            used = list(every.values())  # which one it commits to is not known
        found.update({folder.path: pid_text(run.path) for folder in used})
    held = (folder.path for folder in every.values() if is_held(folder.path))
    return found | {path: pid_text(path) for path in held}


def _postpone_repairs(found: list[Trouble], pid: str) -> list[Trouble]:
    """The same findings; damage is repaired once the process that writes there has ended."""
    return [
        replace(finding, move=f"A living process{pid} writes here: end it, then repair.", mend=None)
        if finding.damage and not finding.mended
        else finding
        for finding in found
    ]
