"""`studio doctor`: whether the files of a workspace are intact; written only with `repair`.

Owns the order of repairs: libraries before the runs that use them. Each takes the lock of its
folder, so that nothing is repaired where a living process writes. What is wrong inside a file is
told by `engines.record.repair`, what is wrong with the machine by `machine`, with what a run file
needs by `run_checks`.
"""

import asyncio
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from engines.core.errors import ConflictError, StudioError
from engines.core.state.run_state import RunState
from engines.grpo.checkpoint.folders import check_seal
from engines.pipeline.evaluation.evaluate import format_result, result_path
from engines.pipeline.replay_training import Checkpoints
from engines.record import lines, lock, seal, yaml_text
from engines.record.derived import catalogue, run_state
from engines.record.libraries import LibraryFolder
from engines.record.repair import (
    Finding,
    Grade,
    library_findings,
    move_aside,
    read_written,
    remove,
    run_findings,
    score_findings,
    written_finding,
)
from engines.record.run_dir import RunDir, Workspace
from studio.data.catalogue import dataset_row, listed_data
from studio.facts.diagnosis import Diagnosis
from studio.session.control_socket import is_alive
from studio.workspace import machine

_Look = Callable[[], Iterable[Finding]]


async def check_up(
    workspace: Path,
    facts: Mapping[str, Any],
    no_screen: tuple[str, str] | None,
    runfile: str | None,
    overrides: Sequence[str],
    tell: Callable[[str], None],
) -> list[Finding]:
    """Look at the machine, and at what a run file needs.

    `facts` are the machine's, `no_screen` is place and cause where no screen can be drawn. `tell`
    hears what asking models costs before they are asked.
    """
    cluster = machine.find_address(os.environ)
    findings: list[Finding] = []
    checks = []
    if runfile is not None:
        # Half a second that nobody who asks of the machine alone waits for.
        from studio.workspace.run_checks import load_new, run_checks

        try:
            config = load_new(workspace, runfile, overrides).loaded.config
        except StudioError as error:
            findings.append(Finding("fix", error.place, error.cause, error.move))
        else:
            checks.append(run_checks(workspace, config, runfile, overrides, tell))
            if config.dispatch == "ray" and config.ray.address != "local":
                cluster = config.ray.address or cluster
    checks.append(machine.machine_findings(workspace, facts, no_screen, cluster))
    for group in await asyncio.gather(*checks):
        findings += group
    return findings


def diagnose(workspace: Workspace, *, repair: bool) -> Diagnosis:
    """Check everything in a workspace, and repair it where asked."""
    if not workspace.path.is_dir():
        return Diagnosis()
    runs = workspace.runs()
    folders = sorted((workspace.path / "libraries").glob("*/journal.jsonl"))
    libraries = [workspace.library(path.parent.name) for path in folders]
    living = {run.run: pid_text(run.path) for run in runs if lock.is_held(run.path)}
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
        if state is not None and not lock.is_held(run.path):  # its process writes some meanwhile
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
        return run_state.read_run(run.journal, anew=True).state
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
            yield Finding(
                "fix",
                str(folder),
                "it is no folder.",
                "Move it away: the folder is made when it is needed.",
            )


def _entry_findings(path: Path, what: str) -> Iterator[Finding]:
    journal = path / "journal.jsonl"
    if path.name.startswith(".") or journal.is_file():
        if path.is_symlink():
            cause = f"it is a link to {path.resolve()}, where the {what} is read and written."
            move = "Nothing need be done: whatever removes it here removes the link alone."
            yield Finding("note", str(path), cause, move)
    elif what == "run" and (journal.exists() or any(path.glob("records/*.jsonl"))):
        cause = "it is gone, or a folder, and its run is there."
        move = "Put it back from a copy: without it nothing goes on from the run's records."
        yield Finding("fix", str(journal), cause, move)
    elif not journal.exists():  # of a library it is told where its journal is read
        cause = f"it is no {what}: it has no journal."
        move = f"Move it away, or restore its journal if it was a {what}."
        if survivors := LibraryFolder(path).describe_survivors():
            move += f" Or {survivors}"
        yield Finding("note", str(path), cause, move)


def catalogue_findings(workspace: Workspace) -> Iterator[Finding]:
    """A catalogue that people cannot query; the studio makes it again when it is needed."""
    path = workspace.catalogue
    if os.path.lexists(path) and (not path.is_file() or seal.read_sealed(path) is None):
        move = f"{lines.REPAIR} makes it again, as whatever lists runs does."
        repair = partial(_make_catalogue, workspace)
        yield Finding("note", str(path), "it is damaged or altered.", move, repair, alone=True)


def _make_catalogue(workspace: Workspace) -> str:
    if not workspace.catalogue.is_file():
        move_aside(workspace.catalogue)
    catalogue.refresh_catalogue(workspace)
    for data in listed_data(workspace, bundled=False):
        path = Path(data.path)
        if data.where == "workspace" and data.n is not None and path.is_file():
            catalogue.write_dataset_row(workspace, dataset_row(path, path.read_bytes(), data.n))
    return "made again from the journals"


def leftover_findings(folder: Path, run: RunDir | None = None) -> Iterator[Finding]:
    """A socket or a holder's note of a process that is gone; nothing behind a link is removed."""
    if folder.is_symlink() or lock.is_held(folder):
        return
    if run is not None and os.path.lexists(run.socket) and not is_alive(run):
        yield _removable_finding(run.socket, "the process that made this socket is gone.")
    if (holder := folder / ".holder").exists():
        yield _removable_finding(holder, f"the process that wrote here{pid_text(folder)} is gone.")


def pid_text(folder: Path) -> str:
    pid = lock.holder_pid(folder)
    return "" if pid is None else f" (pid {pid})"


def unfinished_findings(workspace: Workspace) -> Iterator[Finding]:
    """Files that a killed process was about to rename, and runs it was about to remove."""
    for path in sorted(workspace.path.rglob(".*")):
        match = _LEFT_BY.match(path.name)
        if match is None:
            continue
        pid = match[1] or match[2]
        with suppress(OSError):  # it is renamed just now
            # Another process may have the number by now.
            is_old = time.time() - path.lstat().st_mtime > OLD_S
            if is_old or (pid is not None and not _is_process_alive(int(pid))):
                yield _removable_finding(path, "a process that is gone left this half done.")


def _removable_finding(path: Path, cause: str) -> Finding:
    return Finding(
        "note",
        str(path),
        cause,
        f"It is in nobody's way; {lines.REPAIR} removes it.",
        partial(remove, path),
        alone=True,
    )


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


_OWN = "it has no seal, so it counts as somebody's own."
_CHECKPOINT = (
    "Nothing mends it, and the run goes on without: an earlier one serves, and later steps are "
    "computed again from what was recorded."
)


def run_file_findings(run: RunDir) -> Iterator[Finding]:
    """What a run is resumed from: it can be read, and is as it was. Its journal needs it not."""
    data, cause = read_written(run.run_file)
    fits = seal.seal_fits(data)
    cause = cause or _why_no_settings(data) or (_OWN if fits is None else "")
    if fits is False:
        yield Finding("fix", str(run.run_file), seal.ALTERED, seal.own_run_file_move(run.run_file))
    elif cause:
        yield Finding(
            "note",
            str(run.run_file),
            cause,
            f"Resume with a run file of your own: studio headless FILE --name {run.run}.",
        )


def _why_no_settings(data: bytes) -> str:
    try:
        return (
            "" if isinstance(yaml_text.load_yaml(data.decode()), dict) else "it holds no settings."
        )
    except (ValueError, yaml.YAMLError, RecursionError):
        return "it cannot be read."


def written_findings(run: RunDir, state: RunState, workspace: Workspace) -> Iterator[Finding]:
    """Checkpoints, agents and evaluations that are not what was written."""
    yield from _checkpoint_findings(run, state)
    yield from _evaluation_findings(run, state)
    first = state.started.forked_steps if state.started else 0
    has_agent = not state.curates and (state.steps_finished > first or bool(state.ending))
    yield from _agent_findings(run.agent_file, has_agent, run, workspace)
    has_best = has_agent and state.best_step is not None
    yield from _agent_findings(run.best_agent_file, has_best, run, workspace)


def _evaluation_findings(run: RunDir, state: RunState) -> Iterator[Finding]:
    folder = run.path / "evals"
    results = {result_path(folder, result): result for result in state.evaluations}
    for path in sorted({*folder.glob("*.json"), *results}):
        result = results.get(path)
        expected = None if result is None else format_result(result)
        yield from written_finding(run.path, path, expected)


def _agent_findings(
    path: Path, is_due: bool, run: RunDir, workspace: Workspace
) -> Iterator[Finding]:
    is_there = os.path.lexists(path)
    if not (is_there or is_due):
        return
    data, cause = read_written(path)
    fits = seal.seal_fits(data)
    if not cause and fits is None and not _why_no_settings(data):
        yield Finding("note", str(path), _OWN, "Nothing need be done: it is read as it is.")
    elif cause or not fits:
        kept = ", and keeps this one" if is_there else ""
        move = f"{lines.REPAIR} writes it again{kept}. Or delete its line `# sha256 …`."
        grade: Grade = "fix" if is_there else "note"
        repair = partial(_rewrite_agent, path, run, workspace)
        yield Finding(grade, str(path), cause or seal.ALTERED, move, repair, alone=True)


def _rewrite_agent(path: Path, run: RunDir, workspace: Workspace) -> str:
    """Write an agent file as its run left it; raises StudioError where that cannot be made."""
    from studio.config.loading import load_run
    from studio.run.library import make_publisher

    with lock.write_lock(run.path):
        state = run.state()
        loaded = load_run(str(run.run_file), [], workspace.path)
        folder = workspace.library(state.started.library if state.started else run.run)
        library = folder.at(state.library_version)
        if state.content_hash not in ("", library.content_hash):
            raise ConflictError(
                str(folder.path),
                "it is not the library that the run used.",
                "Restore it from a copy.",
            )
        publish = make_publisher(loaded, run, state, folder, only=path)
        kept = move_aside(path) + ", and " if os.path.lexists(path) else ""
        publish(library)
    return f"{kept}written again"


def _checkpoint_findings(run: RunDir, state: RunState) -> Iterator[Finding]:
    """Checkpoints that are not as they were written, or gone although nothing removes them."""
    if not state.checkpoints:
        return
    removed = Checkpoints(run.path, run.path, _save_nothing).removable_checkpoints(state)
    for saved in state.checkpoints:
        folder = run.path / saved.folder
        if not folder.exists():
            if saved not in removed:
                yield Finding(
                    "note",
                    str(folder),
                    f"the checkpoint of step {saved.step} is gone.",
                    _CHECKPOINT,
                )
            continue
        try:
            check_seal(folder)
        except StudioError as error:
            yield Finding(
                "fix",
                error.place,
                error.cause,
                f"{_CHECKPOINT} Once nothing of it is needed, remove the folder.",
            )


async def _save_nothing(folder: Path) -> str:
    raise AssertionError(f"nothing is saved in {folder} by a look at it")
