"""A forked run with the steps it adopted, as one history."""

from __future__ import annotations

from dataclasses import replace

from engines.core.errors import StudioError
from engines.core.state.run_state import RunState
from engines.record.run_dir import RunDir, Workspace


def load_state_with_parents(run: RunDir, workspace: Workspace) -> RunState:
    """The run's state, preceded by steps and evaluations of the runs it was forked from.

    Losses, calls and costs stay the run's own: the adopted steps were paid for there. The part of a
    parent that is gone or damaged is left out.
    """
    state = run.state()
    return with_parent(state, load_parent(state, workspace))


def load_parent(state: RunState, workspace: Workspace) -> RunState | None:
    """The run that this one was forked from, with its own parents; None where it is gone."""
    if state.started is None or state.started.forked_from is None:
        return None
    try:
        return load_state_with_parents(workspace.run(state.started.forked_from), workspace)
    except StudioError:
        return None


def with_parent(state: RunState, parent: RunState | None) -> RunState:
    """The run preceded by what it adopted of its parent."""
    if parent is None or state.started is None:
        return state
    adopted = state.started.forked_steps
    before = [e for e in parent.evaluations if e.step <= adopted]
    return replace(
        state,
        steps={n: step for n, step in parent.steps.items() if n <= adopted} | state.steps,
        training={n: step for n, step in parent.training.items() if n <= adopted} | state.training,
        evaluations=[*before, *state.evaluations],
    )
