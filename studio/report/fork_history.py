"""A forked run with the steps it adopted, as one history."""

from __future__ import annotations

from engines.core.errors import StudioError
from engines.core.state.run_state import RunState
from engines.record.run_dir import RunDir, Workspace


def load_state_with_parents(run: RunDir, workspace: Workspace) -> RunState:
    """The run's state, preceded by steps and evaluations of the runs it was forked from.

    Losses, calls and costs stay the run's own: the adopted steps were paid for there. The part of a
    parent that is gone or damaged is left out.
    """
    state = run.state()
    started = state.started
    if started is None or started.forked_from is None:
        return state
    try:
        parent = load_state_with_parents(workspace.run(started.forked_from), workspace)
    except StudioError:
        return state
    adopted = {n: step for n, step in parent.steps.items() if n <= started.forked_steps}
    state.steps = {**adopted, **state.steps}
    measured = [e for e in parent.evaluations if e.step <= started.forked_steps]
    state.evaluations = [*measured, *state.evaluations]
    return state
