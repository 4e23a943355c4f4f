"""TODO."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engines.core.events import CellMeasured, EvaluationFinished
from engines.core.state.run_state import RunState
from engines.pipeline.evaluation.comparison import Comparison, compare
from engines.pipeline.evaluation.metrics import (
    Interval,
    group_by_question,
    mean_interval,
)


@dataclass(frozen=True, slots=True)
class RateChange:
    """One held-out set over a run: its first measurement against a later one."""

    first: EvaluationFinished
    last: EvaluationFinished
    comparison: Comparison


def rate_changes(evaluations: Sequence[EvaluationFinished]) -> list[RateChange]:
    """First against last of each set, measured in the same way.

    Evaluations of other settings than the last one's are no measure of a change.
    """
    found: list[RateChange] = []
    for name in dict.fromkeys(e.data for e in evaluations):
        of_set = [e for e in evaluations if e.data == name]
        alike = [e for e in of_set if e.fingerprint == of_set[-1].fingerprint]
        first, last = alike[0], alike[-1]
        if last.step == first.step:
            continue
        if comparison := compare(question_rewards(first), question_rewards(last)):
            found.append(RateChange(first, last, comparison))
    return found


def calls_per_try(found: EvaluationFinished) -> float:
    return found.tool_calls / max(1, found.n + found.unjudged)


def comparison_data(found: Comparison | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "difference": found.difference,
        "interval": [found.interval.low, found.interval.high],
        "questions": found.questions,
        "better": found.wins,
        "worse": found.losses,
        "level": found.ties,
        "p": found.p,
        "left_out": found.left_out,
        "verdict": found.verdict,
    }


def interval_data(found: EvaluationFinished) -> list[float] | None:
    return interval_ends(mean_interval(tuple(question_rewards(found).values())))


def interval_ends(interval: Interval | None) -> list[float] | None:
    return [interval.low, interval.high] if interval else None


def change_data(found: RateChange) -> dict[str, Any]:
    return {
        "data": found.first.data,
        "from_step": found.first.step,
        "to_step": found.last.step,
        **(comparison_data(found.comparison) or {}),
    }


def question_rewards(found: EvaluationFinished) -> dict[str, tuple[float | None, ...]]:
    """The rewards of each question; empty in a journal of a version that kept none."""
    return group_by_question(found.problems, found.rewards)


def _added(cell: CellMeasured, latest: _Cells) -> list[tuple[str, Comparison]]:
    """Of the cell with both: against the library alone, and against the weights alone."""
    if not (cell.trained and cell.with_library):
        return []
    names = {
        (False, True): "what the weights add to the library",
        (True, False): "what the library adds to the weights",
    }
    return [
        (names[one.trained, one.with_library], change)
        for one, _ in latest
        if one.result.data == cell.result.data and one.trained != one.with_library
        if (change := compare(question_rewards(one.result), question_rewards(cell.result)))
    ]


def cell_data(state: RunState) -> list[dict[str, Any]]:
    latest = _latest_cells(state)
    return [
        {
            "step": cell.step,
            "data": cell.result.data,
            "weights": "trained" if cell.trained else "first",
            "library_version": cell.result.library_version if cell.with_library else None,
            "policy_version": cell.result.policy_version,
            "mean_reward": cell.result.mean,
            "interval": interval_data(cell.result),
            "n": cell.result.n,
            "unjudged": cell.result.unjudged,
            "against_neither": comparison_data(change),
            "against_one": {name: comparison_data(one) for name, one in _added(cell, latest)},
        }
        for cell, change in latest
    ]


_Cells = list[tuple[CellMeasured, Comparison | None]]


def _latest_cells(state: RunState) -> _Cells:
    """Those of the run's end, set by set, the one with neither first; None beside that one."""
    last = max((cell.step for cell in state.cells), default=0)
    cells = [cell for cell in state.cells if cell.step == last]
    cells.sort(key=lambda cell: (cell.result.data, cell.trained, cell.with_library))
    neither = {c.result.data: c.result for c in cells if not c.trained and not c.with_library}

    def change_of(cell: CellMeasured) -> Comparison | None:
        first = neither.get(cell.result.data)
        if first is None or first is cell.result:
            return None
        return compare(question_rewards(first), question_rewards(cell.result))

    return [(cell, change_of(cell)) for cell in cells]
