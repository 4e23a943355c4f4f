"""What the studio writes beside a run's journal, against its seal and the journal.

Owns what is to be done about `run.yaml`, the agent files and evaluations. Those of a run that an
older studio began have no seals, and are compared where the journal tells what they hold.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

import orjson
import yaml

from engines.core.codec import from_dict
from engines.core.errors import ConflictError, StudioError
from engines.core.events import EvaluationFinished
from engines.core.state.run_state import RunState
from engines.pipeline.evaluation.evaluate import result_path, write_result
from engines.record import lines
from engines.record.appender import write_atomic
from engines.record.libraries import LibraryFolder
from engines.record.lock import write_lock
from engines.record.repair.cut import free_name, move_aside
from engines.record.repair.files import read_written
from engines.record.repair.trouble import Trouble
from engines.record.run_dir import RunDir, Workspace
from engines.record.seal import ALTERED, REWORDED, is_reworded, own_run_file_move, seal_fits
from engines.record.yaml_text import load_yaml
from studio.config.loading import LoadedRun

_MISSING = "the run wrote it, and it is missing."
_OWN = "it has no seal, so it counts as somebody's own."
_TOLD = re.compile(rb"^# Experiences \((\w+)\) of library (\S+)@(\d+), run ([^\s,]+)[.,]", re.M)


def run_file_troubles(run: RunDir) -> Iterator[Trouble]:
    """Whether what it is resumed from can be read, and is as it was; its journal needs it not."""
    data, cause = read_written(run.run_file)
    fits, has_keys = seal_fits(data), _has_keys(data)
    cause = cause or {None: "it cannot be read.", False: "it holds no settings."}.get(has_keys, "")
    if fits is False:
        yield Trouble(str(run.run_file), ALTERED, own_run_file_move(run.run_file))
    elif cause or (fits is None and run.must_be_sealed):
        move = f"Resume with a run file of your own: studio headless FILE --name {run.run}."
        yield Trouble(str(run.run_file), cause or _OWN, move, damage=False)


def _has_keys(data: bytes) -> bool | None:
    """Whether a YAML file holds keys; None: it cannot be read."""
    try:
        return isinstance(load_yaml(data.decode()), dict)
    except (ValueError, yaml.YAMLError, RecursionError):
        return None


def written_troubles(
    run: RunDir, state: RunState, workspace: Workspace, libraries: Iterable[LibraryFolder]
) -> Iterator[Trouble]:
    """Agents and evaluations that are not what was written; the journal tells of most again.

    `libraries` are those of the workspace, each read once for all runs.
    """
    yield from _evaluation_troubles(run, state)
    first = state.started.forked_steps if state.started else 0
    has_agent = state.steps_finished > first or bool(state.ending)
    for path, is_due in (
        (run.agent_file, has_agent),
        (run.best_agent_file, has_agent and state.best_step is not None),
    ):
        yield from _agent_troubles(path, is_due, run, state, workspace, libraries)


def _evaluation_troubles(run: RunDir, state: RunState) -> Iterator[Trouble]:
    folder = run.path / "evals"
    known = {result_path(folder, found): found for found in state.evaluations}
    for path in sorted({*folder.glob("*.json"), *known}):
        told, is_there = known.get(path), os.path.lexists(path)
        move = f"{lines.REPAIR} moves it aside" + (" and writes it again." if told else ".")
        data, cause = read_written(path)
        fits, found = seal_fits(data), _read_result(data)
        is_sealed = fits or (fits is None and not run.must_be_sealed)
        if not is_there:
            cause = _MISSING if run.must_be_sealed else ""
            move = f"{lines.REPAIR} writes it again."
        elif not cause and not (is_sealed and found is not None and told in (None, found)):
            cause = ALTERED
        if cause:
            mend = partial(_rewrite_result, run, path, told)
            yield Trouble(str(path), cause, move, mend, is_there, alone=True)


def _read_result(data: bytes) -> EvaluationFinished | None:
    try:
        row = orjson.loads(data)
        row.pop("sha256", None)
        return from_dict(EvaluationFinished, row)
    except (ValueError, AttributeError, TypeError):
        return None


def _rewrite_result(run: RunDir, path: Path, told: EvaluationFinished | None) -> str:
    with write_lock(run.path):
        if told is None:
            return move_aside(path)
        kept = _copy_aside(path)
        write_result(path.parent, told)
    return f"written again from the journal{kept}"


def _copy_aside(path: Path) -> str:
    """Keep a file before it is replaced, so that a kill in between leaves both or the old one."""
    if not os.path.lexists(path):
        return ""
    kept, (data, cause) = free_name(path), read_written(path)
    if cause:
        path.rename(kept)  # a folder, or a link to nowhere
    else:
        write_atomic(kept, data)
    return f"; {kept.name} is the file as it was"


def _agent_troubles(
    path: Path,
    is_due: bool,
    run: RunDir,
    state: RunState,
    workspace: Workspace,
    libraries: Iterable[LibraryFolder],
) -> Iterator[Trouble]:
    damage = is_there = os.path.lexists(path)
    data, cause = read_written(path)
    fits, told = seal_fits(data), _TOLD.search(data)
    if not is_there:
        cause = _MISSING if is_due and run.must_be_sealed and not state.curates else ""
    elif cause:
        pass
    elif fits is False:
        cause = ALTERED
    elif fits and (told is None or is_reworded(data)):
        cause = REWORDED
    elif fits and told and not _is_told(told, run, libraries):
        name = f"{told[2].decode()}@{told[3].decode()}"
        cause = f"it is not of this run, or its library does not have what it had as {name}."
        damage = False
    elif fits is None and run.must_be_sealed:
        cause = "" if _has_keys(data) else "it holds no agent."
        if not cause:
            move = "Nothing need be done: it is read as it is."
            yield Trouble(str(path), _OWN, move, damage=False)
    if cause:
        done = "writes it again, and keeps this one." if is_there else "writes it again."
        mend, move = _agent_mend(path, run, workspace, state, done)
        move += " Or delete its line `# sha256 …`." if cause in (ALTERED, REWORDED) else ""
        yield Trouble(str(path), cause, move, mend, damage, alone=True)


def _is_told(told: re.Match[bytes], run: RunDir, libraries: Iterable[LibraryFolder]) -> bool:
    """Whether the library has the version that an agent file was made from."""
    content, name, version, made_by = (part.decode() for part in told.groups())
    known = {folder.name: folder.at for folder in libraries}
    try:
        return made_by == run.run and known[name](int(version)).content_hash == content
    except ConflictError:
        return False
    except (StudioError, KeyError):
        return True  # of the library: told of where it is looked at


def _agent_mend(
    path: Path, run: RunDir, workspace: Workspace, state: RunState, done: str
) -> tuple[Callable[[], str] | None, str]:
    """What writes an agent file again, and the move; no mend where something is settled first."""
    from studio.config.loading import load_run

    place, cause = run.run_file, ""
    try:
        loaded = load_run(str(place), [], workspace.path)
        folder = workspace.library(state.started.library if state.started else run.run)
        place = folder.path
        if state.content_hash not in ("", folder.at(state.library_version).content_hash):
            cause = "it is not the library that the run used."
    except StudioError as error:
        cause = error.cause
    if cause:
        return None, f"{place} has to be settled first ({cause}); then {lines.REPAIR} {done}"
    return partial(_rewrite_agent, path, run, workspace, loaded, folder), f"{lines.REPAIR} {done}"


def _rewrite_agent(
    path: Path, run: RunDir, workspace: Workspace, loaded: LoadedRun, folder: LibraryFolder
) -> str:
    """Write an agent file as its run left it, and keep what is there; "" where that fails."""
    from studio.run.publish import make_publisher

    try:
        with write_lock(run.path):
            state = run.state()
            library = folder.at(state.library_version)
            publish = make_publisher(loaded, run, workspace, state, folder, only=path)
            kept = _copy_aside(path)
            publish(library)
    except StudioError:
        return ""
    return f"written again{kept}"
