"""CPU seconds of the training loop: from each step's beginning to its commit.

Owns what counts: rollouts, verdicts, updates and what is recorded of them, in this process.
Imports, evaluation, checkpoints and the work of other processes do not.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from engines.core import events as ev


class CpuMeter:
    """A listener of a run's events.

    Args:
        clock: CPU seconds of this process so far.
    """

    def __init__(self, clock: Callable[[], float] = time.process_time) -> None:
        self._clock = clock
        self._began: float | None = None
        self.loop_s = 0.0
        self.steps = 0

    def __call__(self, event: ev.DurableEvent | ev.TransientEvent) -> None:
        match event:
            case ev.StepStarted():
                self._began = self._clock()
            case ev.LessonCommitted() if self._began is not None:
                self.loop_s += self._clock() - self._began
                self.steps += 1
                self._began = None

    @property
    def summary_line(self) -> str:
        """One line; "" before the first step is through."""
        if not self.steps:
            return ""
        return (
            f"training loop: {self.loop_s:.1f} CPU seconds in {self.steps} "
            f"step{'s' if self.steps > 1 else ''} "
            "(imports, evaluation and checkpoints apart)"
        )
