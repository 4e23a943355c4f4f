"""What an operation or an experience is worth, as it was measured: one value for every method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from engines.core.types import NO_USAGE, Usage

EffectVerdict = Literal["helps", "hurts", "cannot tell"]

EffectMethod = Literal["gate", "inclusion", "practice"]
"""Measured for a decision, by random halves of a library, or from practice with dropout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """Mean reward with it less mean reward without it, in [-1, 1]."""

    difference: float
    low: float  # ends of its 95 % interval
    high: float
    verdict: EffectVerdict
    problems: int
    rollouts: int  # all that it rests on, with it and without
    method: EffectMethod
    usage: Usage = NO_USAGE  # what was paid for it

    # Where many were measured at once: calling this one and all that are at least as sure an
    # effect, this share of them is expected to be false at most. None: it was measured alone.
    false_discovery: float | None = None

    @property
    def text(self) -> str:
        """`+0.18 [+0.06, +0.31] on 40 problems, 160 rollouts`."""
        problems = "1 problem" if self.problems == 1 else f"{self.problems} problems"
        interval = f"[{self.low:+.2f}, {self.high:+.2f}]"
        # The interval is one of 95 %, while a run's error is shared by all that is tried in it.
        is_near = self.method == "gate" and self.verdict == "cannot tell"
        misses = is_near and not self.low <= 0 <= self.high
        near = "; not sure enough for one of many" if misses else ""
        return f"{self.difference:+.2f} {interval} on {problems}, {self.rollouts} rollouts{near}"

    @property
    def worth_text(self) -> str:
        """`+0.102 [+0.05, +0.15] helps`."""
        return f"{self.difference:+.3f} [{self.low:+.2f}, {self.high:+.2f}] {self.verdict}"

    @property
    def worth(self) -> str:
        """The same with what it rests on: `… helps (1,024 rollouts, inclusion)`."""
        return f"{self.worth_text} ({self.rollouts:,} rollouts, {self.method})"


def interval_verdict(low: float, high: float) -> EffectVerdict:
    """By the side of 0 that the interval lies on."""
    return "helps" if low > 0 else "hurts" if high < 0 else "cannot tell"
