"""TODO."""

from __future__ import annotations

from engines.core.events import CellMeasured, EvaluationFinished
from engines.core.state.run_state import RunState
from engines.pipeline.evaluation.metrics import (
    Rewards,
    mean_at_k,
    mean_interval,
)
from studio.facts.evaluation import _added, _latest_cells, calls_per_try, question_rewards
from studio.render.words import difference_text, rate_text
from studio.secrets.sanitize import one_line


def mean_text(rewards: Rewards) -> str:
    return rate_text(mean_at_k(rewards), mean_interval(rewards))


def evaluation_text(found: EvaluationFinished) -> str:
    """`0.310 [0.22, 0.40] (n=100)`, what could not be judged, and mean tool calls."""
    if found.mean is None:
        shown = "none known"
    else:  # a journal of an earlier version holds no rewards, hence no interval
        rows = tuple(question_rewards(found).values())
        shown = mean_text(rows) if rows else f"{found.mean:.3f}"
    lost = f", {found.unjudged} unjudged" if found.unjudged else ""
    calls = f", {calls_per_try(found):.1f} tool calls a try" if found.tool_calls else ""
    return f"{shown} (n={found.n}){lost}{calls}{left_out_text(found)}"


def left_out_text(found: EvaluationFinished) -> str:
    """Why a result is of fewer problems than its set has; "" where it is of all."""
    return f", {found.left_out} apart for the reflector" if found.left_out else ""


def version_text(state: RunState, found: EvaluationFinished) -> str:
    """What it measured: `v3` of a library, or `policy v3` where weights are trained."""
    trained = f"policy v{found.policy_version}"
    if state.alternates:
        return f"{trained}, library v{found.library_version}"
    return trained if state.trains_weights else f"v{found.library_version}"


def cell_lines(state: RunState) -> list[str]:
    """A line for each cell: `skills  trained weights, library v1  0.881 [0.85, 0.91] (n=512)`.

    Behind them, what each of the two adds to the other alone.
    """
    latest = _latest_cells(state)
    named = [(cell_name(cell), cell, change) for cell, change in latest]
    width = max((len(name) for name, _, _ in named), default=0)
    return [
        f"{one_line(cell.result.data, 80)}  {name:<{width}}  {evaluation_text(cell.result)}"
        + (f"  {difference_text(change)}, {change.verdict}" if change else "")
        for name, cell, change in named
    ] + [
        f"{one_line(cell.result.data, 80)}  {name}  {difference_text(change)}, {change.verdict}"
        for cell, _ in latest
        for name, change in _added(cell, latest)
    ]


def cell_name(cell: CellMeasured) -> str:
    """`trained weights, library v1`."""
    weights = "trained weights" if cell.trained else "first weights"
    shown = f"library v{cell.result.library_version}" if cell.with_library else "no library"
    return f"{weights}, {shown}"
