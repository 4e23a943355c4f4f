"""What the studio writes beside a run's journal, against its seal and the journal.

Owns what is to be done about `run.yaml`, the agent files, evaluations and checkpoints.
"""

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import yaml

from engines.core.errors import ConflictError, StudioError
from engines.core.state.run_state import RunState
from engines.grpo.checkpoint.folders import check_seal
from engines.pipeline.evaluation.evaluate import format_result, result_path
from engines.pipeline.replay_training import Checkpoints
from engines.record import lines
from engines.record.lock import write_lock
from engines.record.repair import Finding, Grade, move_aside, read_written, written_finding
from engines.record.run_dir import RunDir, Workspace
from engines.record.seal import ALTERED, own_run_file_move, seal_fits
from engines.record.yaml_text import load_yaml

_OWN = "it has no seal, so it counts as somebody's own."
_CHECKPOINT = (
    "Nothing mends it, and the run goes on without: an earlier one serves, and later steps are "
    "computed again from what was recorded."
)


def run_file_findings(run: RunDir) -> Iterator[Finding]:
    """What a run is resumed from: it can be read, and is as it was. Its journal needs it not."""
    data, cause = read_written(run.run_file)
    fits = seal_fits(data)
    cause = cause or _why_no_settings(data) or (_OWN if fits is None else "")
    if fits is False:
        yield Finding("fix", str(run.run_file), ALTERED, own_run_file_move(run.run_file))
    elif cause:
        move = f"Resume with a run file of your own: studio headless FILE --name {run.run}."
        yield Finding("note", str(run.run_file), cause, move)


def _why_no_settings(data: bytes) -> str:
    try:
        return "" if isinstance(load_yaml(data.decode()), dict) else "it holds no settings."
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
    fits = seal_fits(data)
    if not cause and fits is None and not _why_no_settings(data):
        yield Finding("note", str(path), _OWN, "Nothing need be done: it is read as it is.")
    elif cause or not fits:
        kept = ", and keeps this one" if is_there else ""
        move = f"{lines.REPAIR} writes it again{kept}. Or delete its line `# sha256 …`."
        grade: Grade = "fix" if is_there else "note"
        repair = partial(_rewrite_agent, path, run, workspace)
        yield Finding(grade, str(path), cause or ALTERED, move, repair, alone=True)


def _rewrite_agent(path: Path, run: RunDir, workspace: Workspace) -> str:
    """Write an agent file as its run left it; raises StudioError where that cannot be made."""
    from studio.config.loading import load_run
    from studio.run.library import make_publisher

    with write_lock(run.path):
        state = run.state()
        loaded = load_run(str(run.run_file), [], workspace.path)
        folder = workspace.library(state.started.library if state.started else run.run)
        library = folder.at(state.library_version)
        if state.content_hash not in ("", library.content_hash):
            cause = "it is not the library that the run used."
            raise ConflictError(str(folder.path), cause, "Restore it from a copy.")
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
                cause = f"the checkpoint of step {saved.step} is gone."
                yield Finding("note", str(folder), cause, _CHECKPOINT)
            continue
        try:
            check_seal(folder)
        except StudioError as error:
            move = f"{_CHECKPOINT} Once nothing of it is needed, remove the folder."
            yield Finding("fix", error.place, error.cause, move)


async def _save_nothing(folder: Path) -> str:
    raise AssertionError(f"nothing is saved in {folder} by a look at it")
