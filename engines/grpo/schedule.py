"""The learning rate over a run, counted in optimiser steps.

Owns the curve. A step is counted only when the optimiser has moved: a batch without contrast
or a minibatch that merely accumulates is none.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engines.grpo.settings import GRPOSettings, Schedule


def planned_steps(practice_steps: int, settings: GRPOSettings) -> int:
    """Optimiser steps of a whole run; the group size does not enter."""
    return practice_steps * settings.optimiser_steps_per_batch


def learning_share(done: int, planned: int, *, schedule: Schedule, warmup: float) -> float:
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
