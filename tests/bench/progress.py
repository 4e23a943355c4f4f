"""What a picture of 10,000 steps costs: B12 of `tests.bench.tui`."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

from engines.core.library import OperationOutcome
from engines.core.state.run_state import Rewards, RunState, StepState
from engines.core.types import Usage
from studio.facts.curves import run_curves
from studio.tui.pages.progress.page import draw_picture
from tests.support.builders import a_run

STEPS = 10_000


def b12() -> dict[str, Any]:
    """A library and weights at 120x36: the picture, a move of the cursor, and the values."""
    return {
        f"B12 {what}": _figures(_long_run(trains_weights=what == "weights"))
        for what in ("library", "weights")
    }


def _figures(state: RunState) -> dict[str, float]:
    curves = run_curves(state)
    picture = draw_picture(curves, None, "", (116, 24))
    return {
        "draw_ms": _cpu_ms(lambda: draw_picture(curves, None, "", (116, 24))),
        "cursor_ms": _cpu_ms(lambda: picture.with_cursor(STEPS // 2)),
        "curves_ms": _cpu_ms(lambda: run_curves(state)),  # once a step, not once a drawing
    }


def _cpu_ms(work: Callable[[], object]) -> float:
    times = []
    for _ in range(7):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return min(times) * 1000


def _long_run(*, trains_weights: bool) -> RunState:
    """Five epochs of noisy rewards that rise; every third step changes something."""
    chance = random.Random(1)
    started = a_run(steps_per_epoch=STEPS // 5, epochs=5)
    state = RunState(started=started, status="running", epochs=5, step=STEPS)
    for number in range(1, STEPS + 1):
        step = StepState((number - 1) // (STEPS // 5) + 1, number, ("p",), 0)
        mean = 0.3 + 0.5 * number / STEPS + chance.gauss(0, 0.1)
        step.rewards = Rewards(40 * min(1.0, max(0.0, mean)), 40)
        step.finished = step.committed = True
        step.usage, step.committed_version = Usage(1000, 200, 40, 0.01), number // 3
        if number % 3 == 0:
            kind = "weights" if trains_weights else "add"
            step.outcomes = (OperationOutcome("op", kind, True),)  # type: ignore[arg-type]
        if trains_weights:
            state.training[number] = {"kl": chance.random(), "loss": chance.random()}
        state.steps[number] = step
    return state
