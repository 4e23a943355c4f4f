"""`studio doctor`: whether the files of a workspace are intact; written only with `repair`.

Owns the order of repairs: libraries before the runs that use them, and the catalogue, which is made
from both, last. What is wrong inside a file is `engines.record.repair`'s.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import yaml

from engines.core.codec import fields_of
from engines.core.errors import StudioError
from engines.core.ids import digest_bytes
from engines.core.state.run_state import RunState
from engines.grpo.checkpoint.folders import check_seal
from engines.pipeline.checkpoints import Checkpoints
from engines.record import lines
from engines.record.catalogue.rows import rebuild, run_row, told_row
from engines.record.libraries import LibraryFolder
from engines.record.lock import holder_pid as holder_of
from engines.record.lock import is_held
from engines.record.repair.cut import move_aside
from engines.record.repair.indexes import index_troubles
from engines.record.repair.libraries import library_troubles
from engines.record.repair.runs import run_troubles
from engines.record.repair.scores import score_troubles
from engines.record.repair.trouble import Trouble
from engines.record.run_dir import RunDir, Workspace
from engines.record.run_index import read_run
from engines.record.seal import ALTERED, seal_fits
from engines.record.yaml_text import load_yaml
from studio.data.catalogue import listed_data
from studio.report.summary import count_text
from studio.secrets.sanitize import one_line
from studio.session.client import is_alive
from studio.workspace.written_files import run_file_troubles, written_troubles

_LEFT_BY = re.compile(r"^\..+\.(\d+)\.tmp$|^\.removed-.+-(\d+)$")
_PRIVATE = ("journal.jsonl", "run.yaml", "agent*.yaml", "studio.log", "records/*", "evals/*")


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What was looked at, in numbers, and what was found."""

    looked_at: dict[str, int]
    findings: tuple[Trouble, ...]
    living: dict[str, str] = field(default_factory=dict)  # runs at work, each with its process
    is_read_only: bool = False  # no repair can be written

    @property
    def is_healthy(self) -> bool:
        """Nothing is damaged, or what was is mended."""
        return not any(found.damage and not found.mended for found in self.findings)


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

    examine(partial(_stray_troubles, workspace))
    for library in libraries:
        examine(partial(library_troubles, library), library.path)
    for run in runs:
        examine(partial(run_troubles, run, workspace), run.path)
        examine(partial(_leftover_troubles, run), run.path)
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
    examine(partial(_stale_troubles, workspace))
    examine(partial(_permission_troubles, workspace, runs))
    examine(partial(_data_troubles, workspace))
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
    yield from _checkpoint_troubles(run, state)
    yield from written_troubles(run, state, workspace, libraries)


def _checkpoint_troubles(run: RunDir, state: RunState) -> Iterator[Trouble]:
    """Checkpoints that are not as they were written, or gone although nothing removes them."""
    if not state.checkpoints:
        return
    kept = Checkpoints(run.path, run.path, _missing_engine_text, keep=_kept_checkpoints(run))
    removed = kept.removable_checkpoints(state)
    for saved in state.checkpoints:
        folder = run.path / saved.folder
        if not folder.exists():
            if saved not in removed:
                cause = f"the checkpoint of step {saved.step} is gone."
                yield Trouble(str(folder), cause, _CHECKPOINT, damage=False)
            continue
        try:
            check_seal(folder)
        except StudioError as error:
            move = f"{_CHECKPOINT} Once nothing of it is needed, remove the folder."
            yield Trouble(error.place, error.cause, move)


_CHECKPOINT = (
    "Nothing mends it, and the run goes on without: an earlier one serves, and later steps are "
    "computed again from what was recorded."
)


async def _missing_engine_text(folder: Path) -> str:
    raise AssertionError(f"nothing is saved in {folder} by a look at it")


def _kept_checkpoints(run: RunDir) -> int:
    """How many checkpoints the run file keeps; 1 where it cannot be read."""
    try:
        return int(load_yaml(run.run_file.read_text("utf-8"))["grpo"]["keep"])
    except (OSError, ValueError, TypeError, KeyError, yaml.YAMLError, RecursionError):
        return 1


def _stray_troubles(workspace: Workspace) -> Iterator[Trouble]:
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
                continue
            if path.is_dir() and journal.is_dir():
                if name == "runs":  # of a library it is told where its journal is read
                    move = "Move it away, or put the file back from a copy."
                    yield Trouble(str(journal), "cannot be read: it is a folder.", move)
                continue
            cause = "it has no journal." if path.is_dir() else "it is a file."
            move = f"Move it away, or restore its journal if it was a {what}."
            survivors = LibraryFolder(path).describe_survivors()
            move += f" Or {survivors}" if survivors else ""
            yield Trouble(str(path), f"it is no {what}: {cause}", move, damage=False)


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
        found[run.path] = _pid_text(run.path)
        try:
            started = read_run(run.journal, anew=True).state.started
            used = [every[started.library]] if started and started.library in every else []
        except StudioError:
            used = list(every.values())  # which one it commits to is not known
        found.update({folder.path: _pid_text(run.path) for folder in used})
    held = (folder.path for folder in every.values() if is_held(folder.path))
    return found | {path: _pid_text(path) for path in held}


def _postpone_repairs(found: list[Trouble], pid: str) -> list[Trouble]:
    """The same findings; damage is repaired once the process that writes there has ended."""
    return [
        replace(finding, move=f"A living process{pid} writes here: end it, then repair.", mend=None)
        if finding.damage and not finding.mended
        else finding
        for finding in found
    ]


def _pid_text(folder: Path) -> str:
    pid = holder_of(folder)
    return "" if pid is None else f" (pid {pid})"


def _leftover_troubles(run: RunDir) -> Iterator[Trouble]:
    """A socket or a holder's note of a process that is gone."""
    if os.path.lexists(run.socket) and not is_held(run.path) and not is_alive(run):
        yield _removable_trouble(run.socket, "the process that made this socket is gone.")
    yield from _holder_troubles(run.path)


def _holder_troubles(folder: Path) -> Iterator[Trouble]:
    holder = folder / ".holder"
    if holder.exists() and not is_held(folder):
        cause = f"the process that wrote here{_pid_text(folder)} is gone."
        yield _removable_trouble(holder, cause)


def _stale_troubles(workspace: Workspace) -> Iterator[Trouble]:
    """Files that a killed process was about to rename, and runs it was about to remove."""
    for path in sorted(workspace.path.rglob(".*")):
        match = _LEFT_BY.match(path.name)
        if match and not _is_process_alive(int(match[1] or match[2])):
            yield _removable_trouble(path, "a process that is gone left this half done.")
    for folder in workspace.libraries():
        yield from _holder_troubles(folder.path)


def _removable_trouble(path: Path, cause: str) -> Trouble:
    move = f"It is in nobody's way; {lines.REPAIR} removes it."
    return Trouble(str(path), cause, move, partial(_remove, path), damage=False, alone=True)


def _remove(path: Path) -> str:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    return "removed"


def _is_process_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass  # somebody else's, or no process of this machine
    return True


def _permission_troubles(workspace: Workspace, runs: Iterable[RunDir]) -> Iterator[Trouble]:
    places = [workspace.catalogue, *workspace.evaluations.glob("*/*")]
    for run in runs:
        places += [path for pattern in _PRIVATE for path in run.path.glob(pattern)]
    for path in sorted(places):
        if not path.is_file():
            continue
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            cause = f"others may read it (mode {mode:04o}), and it could hold secrets."
            mend = partial(_restrict, path)
            yield Trouble(str(path), cause, f"chmod 600 {path}", mend, damage=False, alone=True)


def _restrict(path: Path) -> str:
    path.chmod(0o600)
    return "now 0600"


def _data_troubles(workspace: Workspace) -> Iterator[Trouble]:
    for data in listed_data(workspace, bundled=False):
        if data.where == "workspace" and data.n is None:
            place, _, cause = data.trouble.partition(": ")
            yield Trouble(place, cause or data.trouble, f"studio data check {data.path}")


def catalogue_troubles(
    workspace: Workspace, rows: Mapping[str, Mapping[str, Any]]
) -> Iterator[Trouble]:
    """Rows of the catalogue that differ from the journals; a missing row is no damage.

    `rows` are those of the runs, as their journals tell them.
    """
    if not workspace.catalogue.is_file():
        return
    move = f"{lines.REPAIR} makes it anew; nothing is lost by that."

    def rebuild_catalogue() -> str:
        rebuild(workspace, _dataset_rows(workspace))
        return "made anew from the journals"

    cause = ""
    try:
        content = workspace.catalogue.read_bytes()
        tables = orjson.loads(content)
        fits = seal_fits(content)
        if not fits and (fits is False or not all(isinstance(t, dict) for t in tables.values())):
            cause = ALTERED
        runs = {row["run"]: row for row in tables.get("runs", {}).values()}
        libraries = {row["library"]: row for row in tables.get("libraries", {}).values()}
    except (ValueError, AttributeError, TypeError, KeyError):
        cause = "it cannot be read."
    if cause:
        yield Trouble(str(workspace.catalogue), cause, move, rebuild_catalogue)
        return
    wrong = []
    for name, row in rows.items():
        if name in runs and told_row(runs[name]) != json.loads(json.dumps(row)):
            wrong.append(f"run {name}")
    for folder in workspace.libraries():
        with suppress(StudioError):
            kept, head = libraries.get(folder.name), folder.head()
            made = (head.version, head.content_hash)
            if kept is not None and (kept["version"], kept["content_hash"]) != made:
                wrong.append(f"library {folder.name}")
    if wrong:
        cause = f"it does not say what the journals do of {', '.join(wrong)}."
        yield Trouble(str(workspace.catalogue), cause, move, rebuild_catalogue, damage=False)


def _dataset_rows(workspace: Workspace) -> Iterator[dict[str, Any]]:
    for data in listed_data(workspace, bundled=False):
        path = Path(data.path)
        if data.where != "workspace" or data.n is None or not path.is_file():
            continue
        content = path.read_bytes()
        about = {"name": data.name, "path": f"{path.parent.name}/{path.name}", "n": data.n}
        yield about | {"bytes": len(content), "digest": digest_bytes(content)}


_LONGEST = 500
_READ_ONLY = "the workspace cannot be written"


def doctor_data(diagnosis: Diagnosis, machine: Mapping[str, Any]) -> dict[str, Any]:
    told = ("place", "cause", "move", "damage", "mended")
    return {
        "well": diagnosis.is_healthy,
        "looked_at": diagnosis.looked_at,
        "findings": [fields_of(found, *told) for found in diagnosis.findings],
        "living": list(diagnosis.living),
        "machine": dict(machine),
    }


def doctor_text(diagnosis: Diagnosis, machine: Mapping[str, Any], *, repair: bool) -> str:
    """Findings, each with its place, cause and next move; then what is well."""
    shown = []
    for found in diagnosis.findings:
        word = "mended" if found.mended else "damaged" if found.damage else "note"
        shown.append(f"{word:<8} {one_line(found.place, _LONGEST)}")
        shown.append(f"         {one_line(found.cause, _LONGEST)}")
        shown.append(f"         {one_line(found.mended or found.move, _LONGEST)}")
    for run, pid in diagnosis.living.items():
        shown.append(f"run {run} is alive{pid}: its process goes on, and no file of it is changed")
    one = {"runs": "run", "libraries": "library", "data sets": "data set"}
    counted = ", ".join(count_text(n, one[of], of) for of, n in diagnosis.looked_at.items())
    if diagnosis.is_read_only:
        shown.append(f"{_READ_ONLY}: nothing is repaired")
    shown.append(f"looked at {counted or 'no workspace: there is none yet'}")
    shown.append(_machine_lines(machine))
    shown.append(f"sandbox  {machine['sandbox']}")
    left = [found for found in diagnosis.findings if found.damage and not found.mended]
    mendable = 0 if repair else sum(found.mend is not None for found in left)
    if not left:
        shown.append("all is well" if not diagnosis.findings else "nothing is damaged")
    elif diagnosis.is_read_only:
        shown.append(f"{len(left)} damaged, and nothing can be mended here: {_READ_ONLY}.")
    elif not mendable:
        shown.append(f"{len(left)} left that only you can mend.")
    else:
        shown.append(f"{len(left)} damaged; {lines.REPAIR} mends {mendable} of them.")
    return "\n".join(shown)


def _machine_lines(machine: Mapping[str, Any]) -> str:
    able = {None: "", True: "cannot", False: "can"}[machine["hidden_from_debuggers"]]
    memory = able and f", other programs {able} read its memory"
    terminal = f"terminal {machine['terminal']}" if machine["terminal"] else "no terminal"
    return (
        f"studio {machine['studio']}, python {machine['python']}, {machine['encoding']}, {terminal}"
        f", {machine['free_bytes'] / 1e9:.1f} GB free{memory}"
    )
