"""The learning rate over a run, counted in optimiser steps.

Owns the curve. A step is counted only when the optimiser has moved: a batch without contrast
or a minibatch that merely accumulates is none.
"""

from __future__ import annotations

import math

from engines.grpo.settings import GRPOSettings, Schedule, SFTSettings


def schedule_factor(done: int, planned: int, *, schedule: Schedule, warmup: float) -> float:
    """What the learning rate is multiplied with at the next optimiser step.

    Args:
        done: optimiser steps taken before it.
        planned: optimiser steps of the whole run.
        schedule: what follows the warm-up: as it is, or falling to 0 on a line or half a cosine.
        warmup: share of `planned` over which it rises. The first step already moves.
    """
    rising = math.ceil(warmup * planned)
    if done < rising:
        return (done + 1) / rising
    if schedule == "constant":
        return 1.0
    progress = min(1.0, (done - rising) / max(1, planned - rising))
    if schedule == "linear":
        return 1.0 - progress
    return 0.5 * (1.0 + math.cos(math.pi * progress))


def learning_rate(curve: GRPOSettings | SFTSettings, done: int, planned: int) -> float:
    """Of the next optimiser step, `done` of `planned` having been taken."""
    return curve.learning_rate * schedule_factor(
        done, planned, schedule=curve.schedule, warmup=curve.warmup
    )


def learning_rate_rise_text(
    curve: GRPOSettings | SFTSettings, done: int, before: int, planned: int, scale: float
) -> str:
    """What a person should know of a plan that changes in the midst of a run, or "".

    Args:
        curve: how the learning rate goes.
        done: optimiser steps taken.
        before: optimiser steps of the whole run as it was planned.
        planned: those of it now.
        scale: what the learning rate is multiplied with besides.
    """
    if not done or planned == before:
        return ""
    was = scale * learning_rate(curve, done - 1, before)
    now = scale * learning_rate(curve, done, planned)
    if now <= was:
        return ""
    return (
        f"the schedule spans {planned} optimiser steps now instead of {before}: the learning rate "
        f"rises from {was:.3g} to {now:.3g}"
    )
