"""What the progress page reads from the workspace. Blocks, so it is called in a thread."""

from __future__ import annotations

from collections.abc import Mapping

from engines.core.errors import StudioError
from engines.core.state.run_state import RunState
from engines.record.run_dir import Workspace
from studio.report.curves import run_curves
from studio.report.fork_history import load_state_with_parents
from studio.tui.pages.progress.view import ShownRun


def load_run(workspace: Workspace, run: str) -> ShownRun:
    """A run as its journal has it now.

    Raises StudioError: there is none of this name, or its journal is damaged.
    """
    state = load_state_with_parents(workspace.run(run), workspace)
    sizes = load_sizes(workspace, state)
    return ShownRun(state, run_curves(state, sizes), sizes)


def load_sizes(workspace: Workspace, state: RunState) -> Mapping[int, int]:
    """How many experiences each version of the run's library has; {} where it cannot be read."""
    try:
        history = workspace.library(state.started.library if state.started else "").history()
    except (StudioError, OSError):
        return {}
    return {library.version: len(library.experiences) for library, _ in history}


def load_choices(workspace: Workspace) -> list[tuple[str, str]]:
    """Every run with a word about it, newest first."""
    from studio.workspace.listing import listed_runs, row_text

    return [(str(run.row["run"]), row_text(run)) for run in listed_runs(workspace)]
