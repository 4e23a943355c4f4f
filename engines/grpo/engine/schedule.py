"""The learning rate over a run, counted in optimiser steps.

A step counts only where the optimiser has moved, which it has not for a batch without contrast.
"""

from __future__ import annotations

import math

from engines.grpo.settings import GRPOSettings, Schedule, SFTSettings


def schedule_factor(done: int, planned: int, *, schedule: Schedule, warmup: float) -> float:
    """What the learning rate is multiplied with at the next optimiser step.

    `done` steps of `planned` were taken before it. The rate rises over the share `warmup` of
    them, where the first step already moves; then it stays, or falls to 0 on a line or half a
    cosine.
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

    All count optimiser steps: `done`, and of the whole run as it was planned `before` and as it is
    `planned` now. The learning rate is multiplied with `scale` besides.
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
