"""What the studio writes beside a run's journal, against its seal and the journal.

Owns what is to be done about `run.yaml`, the agent files and evaluations. Those of a run that an
older studio began have no seals, and are compared where the journal tells what they hold.
"""

from __future__ import annotations

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
from engines.record.repair.cut import free_name
from engines.record.repair.trouble import Trouble
from engines.record.run_dir import RunDir, Workspace
from engines.record.seal import ALTERED, own_run_file_move, seal_fits
from engines.record.yaml_text import load_yaml
from studio.config.loading import LoadedRun

_MISSING = "the run wrote it, and it is missing."
_OWN = "it has no seal, so it counts as somebody's own."
_TOLD = re.compile(rb"^# Experiences \((\w+)\) of library (\S+)@(\d+), run ([^\s,]+)[.,]", re.M)


def run_file_troubles(run: RunDir) -> Iterator[Trouble]:
    """Whether what it is resumed from can be read, and is as it was; its journal needs it not."""
    move = f"Resume with a run file of your own: studio headless FILE --name {run.run}."
    cause, fits = "it holds no settings.", None
    try:
        data = run.run_file.read_bytes()
        fits = seal_fits(data)
        if fits or isinstance(load_yaml(data.decode()), dict):
            cause = _OWN if fits is None and run.must_be_sealed else ""
    except FileNotFoundError:
        cause = "it is not there."
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        cause = "it cannot be read."
    if fits is False:
        yield Trouble(str(run.run_file), ALTERED, own_run_file_move(run.run_file))
    elif cause:
        yield Trouble(str(run.run_file), cause, move, damage=False)


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
        if path.is_file():
            yield from _agent_troubles(path, run, workspace, libraries)
        elif is_due and not path.exists() and run.must_be_sealed and not state.curates:
            mend, move = _agent_mend(path, run, workspace, "writes it again.")
            yield Trouble(str(path), _MISSING, move, mend, damage=False, alone=True)


def _evaluation_troubles(run: RunDir, state: RunState) -> Iterator[Trouble]:
    folder = run.path / "evals"
    known = {result_path(folder, found): found for found in state.evaluations}
    missing = {path for path in known if run.must_be_sealed and not path.exists()}
    for path in sorted({*folder.glob("*.json"), *missing}):
        told = known.get(path)
        if path in missing:
            mend, move = (
                partial(_rewrite_result, run, path, told),
                f"{lines.REPAIR} writes it again.",
            )
            yield Trouble(str(path), _MISSING, move, mend, damage=False, alone=True)
            continue
        data = path.read_bytes()
        fits, found = seal_fits(data), _read_result(data)
        is_sealed = fits or (fits is None and not run.must_be_sealed)
        if is_sealed and found is not None and told in (None, found):
            continue
        move = f"{lines.REPAIR} moves it aside" + (" and writes it again." if told else ".")
        mend = partial(_rewrite_result, run, path, told)
        yield Trouble(str(path), ALTERED, move, mend, alone=True)


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
            return f"moved to {path.rename(free_name(path)).name}"
        kept = _copy_aside(path)
        write_result(path.parent, told)
    return f"written again from the journal{kept}"


def _copy_aside(path: Path) -> str:
    """Keep a file before it is replaced, so that a kill in between leaves both or the old one."""
    if not path.exists():
        return ""
    kept = free_name(path)
    write_atomic(kept, path.read_bytes())
    return f"; {kept.name} is the file as it was"


def _agent_troubles(
    path: Path, run: RunDir, workspace: Workspace, libraries: Iterable[LibraryFolder]
) -> Iterator[Trouble]:
    data = path.read_bytes()
    fits, place = seal_fits(data), str(path)
    ask_mend = partial(_agent_mend, path, run, workspace, "writes it again, and keeps this one.")
    if fits is False:
        mend, move = ask_mend()
        yield Trouble(place, ALTERED, f"{move} Or delete its line `# sha256 …`.", mend, alone=True)
    elif fits is None and run.must_be_sealed:
        try:
            is_own = isinstance(load_yaml(data.decode()), dict)
        except (ValueError, yaml.YAMLError, RecursionError):
            is_own = False
        if is_own:
            move = "Nothing need be done: it is read as it is."
            yield Trouble(place, _OWN, move, damage=False)
        else:
            mend, move = ask_mend()
            yield Trouble(place, "it holds no agent.", move, mend, alone=True)
    elif fits and (told := _TOLD.search(data)) and not _is_told(told, run, libraries):
        name = f"{told[2].decode()}@{told[3].decode()}"
        cause = f"it is not of this run, or its library does not have what it had as {name}."
        mend, move = ask_mend()
        yield Trouble(place, cause, move, mend, damage=False, alone=True)


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
    path: Path, run: RunDir, workspace: Workspace, done: str
) -> tuple[Callable[[], str] | None, str]:
    """What writes an agent file again, and the move; no mend where no run file can be loaded."""
    from studio.config.loading import load_run

    try:
        loaded = load_run(str(run.run_file), [], workspace.path)
    except StudioError as error:
        first = f"{run.run_file} has to be settled first ({error.cause})"
        return None, f"{first}; then {lines.REPAIR} {done}"
    return partial(_rewrite_agent, path, run, workspace, loaded), f"{lines.REPAIR} {done}"


def _rewrite_agent(path: Path, run: RunDir, workspace: Workspace, loaded: LoadedRun) -> str:
    """Write an agent file as its run left it, and keep what is there; "" where that fails."""
    from studio.run.publish import make_publisher

    try:
        with write_lock(run.path):
            state = run.state()
            assert state.started is not None
            folder = workspace.library(state.started.library)
            library = folder.at(state.library_version)
            publish = make_publisher(loaded, run, workspace, state, folder, only=path)
            kept = _copy_aside(path)
            publish(library)
    except StudioError:
        return ""
    return f"written again{kept}"
