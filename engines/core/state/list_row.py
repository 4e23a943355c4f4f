"""What a list of runs shows of one, and what it practises, as JSON values."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from engines.core.codec import JsonObject
from engines.core.state.run_state import RunState

MOST_TOKENS = 2**63 - 1
"""That JSON writers take. Endpoints were once believed whatever they counted."""


def list_row(state: RunState) -> JsonObject:
    """Rates come with their n."""
    started = state.started
    return {
        "run": started.run if started else "",
        "exp_id": started.exp_id if started else "",
        "status": state.status,
        "ending": state.ending,
        "reason": state.reason,
        "epoch": state.steps[state.step].epoch if state.step in state.steps else 0,
        "epochs": state.epochs,
        "steps": state.steps_finished,
        "library": started.library if started else "",
        "version": state.library_version,
        "policy_version": state.policy_version if state.trains_weights else None,
        "open": len(state.open_operations),
        "later": len(state.put_off_operations),  # of these
        "curates": state.curates,
        "proposed": state.proposed,
        "rewards": {
            str(epoch): {"mean": pooled.mean, "n": pooled.n}
            for epoch, pooled in state.rewards_by_epoch().items()
        },
        "curve": curve_row(state),
        "tokens": min(state.total_usage.tokens, MOST_TOKENS),
        "cost_usd": state.total_usage.cost_usd,
        "losses": sum(state.lost.values()),
        "rehearsal": bool(started and started.rehearsal),
        "practises": _practises(state),
    }


def _practises(state: RunState) -> JsonObject | None:
    """What is practised with which settings; None before the run has begun, and of no practice."""
    if (started := state.started) is None or state.curates:
        return None
    settings = {**started.settings, **state.settings}
    verifier = settings.get("verifier")
    named = verifier.get("name", "") if isinstance(verifier, Mapping) else verifier
    return {
        "model": str(settings.get("policy.model", "")),
        "data": str(settings.get("data.practice", "")),
        "verifier": str(named or ""),
        "reviewer": state.reviewer,
        "seed": started.seed,
        "batch_size": int(settings.get("practice.batch_size") or 0),
        "group_size": started.group_size,
        "steps": started.steps_per_epoch * state.epochs,
        "measured": _measured_sets(state),
        "step": state.step,
    }


def _measured_sets(state: RunState) -> list[JsonObject]:
    by_set: dict[str, list[tuple[float, int]]] = {}
    for found in state.evaluations:
        if found.mean is not None:
            by_set.setdefault(found.data, []).append((found.mean, found.n))
    return [
        {
            "data": data,
            "first": means[0][0],
            "last": means[-1][0],
            "n": means[-1][1],
            "first_n": means[0][1] if len(means) > 1 else None,
        }
        for data, means in by_set.items()
    ]


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


def curve_row(state: RunState) -> JsonObject:
    """What a list of runs keeps of the curve: as many points as a line of it can show."""
    points = pool_points(practice_points(state), MOST_LISTED)
    is_loss = state.started is not None and not state.started.group_size
    return {"of": "loss" if is_loss else "reward", "points": [list(point[:3]) for point in points]}
