"""`studio doctor`: whether the files of a workspace are intact; written only with `repair`.

Owns the order of repairs: libraries before the runs that use them. Each takes the lock of its
folder, so that nothing is repaired where a living process writes. What is wrong inside a file is
told by `engines.record.repair`, what is wrong with the machine and a run's models by `checkup`.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from engines.core.errors import StudioError
from engines.core.state.run_state import RunState
from engines.record import lines
from engines.record.derived.run_state import read_run
from engines.record.lock import is_held
from engines.record.repair import Finding, library_findings, run_findings, score_findings
from engines.record.run_dir import RunDir, Workspace
from studio.data.catalogue import listed_data
from studio.facts.diagnosis import Diagnosis
from studio.workspace.stray_files import (
    catalogue_findings,
    data_findings,
    leftover_findings,
    permission_findings,
    pid_text,
    stray_findings,
    unfinished_findings,
)
from studio.workspace.written_files import run_file_findings, written_findings

_Look = Callable[[], Iterable[Finding]]


def diagnose(workspace: Workspace, *, repair: bool) -> Diagnosis:
    """Check everything in a workspace, and repair it where asked."""
    if not workspace.path.is_dir():
        return Diagnosis()
    runs = workspace.runs()
    folders = sorted((workspace.path / "libraries").glob("*/journal.jsonl"))
    libraries = [workspace.library(path.parent.name) for path in folders]
    living = {run.run: pid_text(run.path) for run in runs if is_held(run.path)}
    is_read_only = not os.access(workspace.path, os.W_OK)
    repair = repair and not is_read_only
    findings: list[Finding] = []

    def look(at: _Look, *, repair: bool = repair) -> None:
        findings.extend(_find(at, repair=repair))

    look(partial(stray_findings, workspace))
    look(partial(catalogue_findings, workspace))
    for library in libraries:
        # A living run holds its own lock alone, and goes on with a version of its library.
        look(partial(library_findings, library), repair=repair and not living)
    for run in runs:
        look(partial(run_findings, run, workspace))
        look(partial(leftover_findings, run.path, run))
        look(partial(run_file_findings, run))
        state = _read_state(run)
        if state is not None and not is_held(run.path):  # its process writes some meanwhile
            look(partial(written_findings, run, state, workspace))
    for library in libraries:
        if repair:  # a run's repair cuts their journals, too
            look(partial(library_findings, library), repair=not living)
        look(partial(leftover_findings, library.path))
    for path in sorted(workspace.evaluations.glob("*/scores.jsonl")):
        look(partial(score_findings, path))
    look(partial(unfinished_findings, workspace))
    look(partial(permission_findings, workspace, runs))
    look(partial(data_findings, workspace))
    sets = sum(data.where == "workspace" for data in listed_data(workspace, bundled=False))
    once = {(finding.place, finding.cause): finding for finding in findings}
    return Diagnosis(
        looked_at={"runs": len(runs), "libraries": len(libraries), "data sets": sets},
        findings=tuple(once.values()),
        living=living,
        is_read_only=is_read_only,
    )


def _read_state(run: RunDir) -> RunState | None:
    """Return what a run's journal adds up to; None where that is told to be damaged."""
    try:
        return read_run(run.journal, anew=True).state
    except StudioError:
        return None


def _find(look: _Look, *, repair: bool) -> list[Finding]:
    """Return the findings of one run, library or file; each is repaired at once where asked.

    A repair can uncover another finding, so the look is repeated; nothing is repaired twice.
    """
    findings: dict[tuple[str, str], Finding] = {}
    again = True
    while again:
        again = False
        for finding in _catch_unreadable(look):
            key = (finding.place, finding.cause)
            if key in findings and (findings[key].repaired or not repair):
                continue
            if repair:
                finding = _repair(finding)
            findings[key] = finding
            if finding.repaired and not finding.alone:  # what follows may look different now
                again = True
                break
    return list(findings.values())


def _repair(finding: Finding) -> Finding:
    if finding.repair is None:
        return finding
    try:
        return replace(finding, repaired=finding.repair())
    except StudioError as error:
        return replace(finding, move=f"It cannot be repaired: {error}", repair=None)


def _catch_unreadable(look: _Look) -> Iterator[Finding]:
    """Findings as they come; an unreadable file is one of them."""
    try:
        yield from look()
    except (StudioError, OSError) as error:
        if isinstance(error, OSError):
            error = lines.unreadable_error(Path(error.filename or "."), error)
        yield Finding("fix", error.place, error.cause, error.move)
