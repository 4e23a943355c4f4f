"""What a run got better at, step by step: its practice reward, or its loss on demonstrations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from engines.core.state.run_state import RunState


class Point(NamedTuple):
    """A value after a step. A tuple, since there may be ten thousand."""

    step: int
    value: float
    n: int = 0  # rollouts or demonstrations that it is the mean of; 0: it is none
    low: float | None = None  # ends of its 95 % interval
    high: float | None = None


def practice_points(state: RunState) -> list[Point]:
    """The mean reward of each step whose rollouts have all ended; the loss where none is made."""
    if state.started is not None and not state.started.group_size:
        figures = ((step, state.training.get(step, {})) for step in sorted(state.steps))
        return [
            Point(step, found["loss"], int(found.get("examples", 0)))
            for step, found in figures
            if math.isfinite(found.get("loss", math.nan))
        ]
    return [
        Point(number, step.rewards.total / step.rewards.n, step.rewards.n)
        for number, step in sorted(state.steps.items())
        if step.rewards.n and (step.finished or step.committed or step.lesson is not None)
    ]


def pool_points(points: Sequence[Point], most: int) -> list[Point]:
    """At most so many points: neighbours become one, with their common mean and their n added."""
    count = min(len(points), most)
    out = []
    for at in range(count):
        share = points[at * len(points) // count : (at + 1) * len(points) // count]
        n = sum(point.n for point in share)
        weights = [point.n if n else 1 for point in share]
        total = sum(point.value * weight for point, weight in zip(share, weights, strict=True))
        out.append(Point(share[-1].step, total / sum(weights), n))
    return out


MOST_LISTED = 24


def curve_row(state: RunState) -> dict[str, Any]:
    """What a list of runs keeps of the curve: as many points as a line of it can show."""
    points = pool_points(practice_points(state), MOST_LISTED)
    is_loss = state.started is not None and not state.started.group_size
    return {"of": "loss" if is_loss else "reward", "points": [list(point[:3]) for point in points]}
