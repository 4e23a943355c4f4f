"""What the exact sign test over so many questions could show.

Owns the planning half of the test: the least gain that it notices with a given power.
`engines.pipeline.evaluation.distributions.sign_test` is the test itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache

from engines.pipeline.evaluation.distributions import binomial_tail


def least_shown_gain(questions: int, k: int, sd: float, power: float, level: float) -> float:
    """The least mean change at which the sign test passes with this power, or inf.

    A share `undecided` of the questions is a fair coin on each try, on both sides, until the
    effect moves them all alike; the rest come out the same each time. `sd` of a question's
    paired change fixes that share. Where it is too small to pass, the change is the share of
    questions that would have to turn from wholly wrong to wholly right.
    """
    allowed = _losses_allowed(questions, level)
    variance = sd * sd
    flips = 2 * k
    if flips * variance > 1 + 1e-9:
        # More spread than k tries give, as where effects vary: fewer flips, each moving more.
        flips = max(1, 2 * math.floor(0.5 / variance))
    undecided = min(1.0, flips * variance)

    def by_gain(gain: float) -> float:
        win, loss = _win_and_loss(flips, gain)
        return _power(questions, undecided * win, undecided * loss, allowed)

    def by_turning(share: float) -> float:
        return _power(questions, share, 0.0, allowed)

    if by_gain(1.0) >= power:
        return undecided * _least(by_gain, power)
    return _least(by_turning, power) if by_turning(1.0) >= power else math.inf


def _win_and_loss(flips: int, gain: float) -> tuple[float, float]:
    """Chances of more and of fewer than half heads in so many flips of a (1+gain)/2 coin."""
    heads = (1 + gain) / 2
    win = binomial_tail(flips, flips // 2 + 1, heads)
    return win, 1 - binomial_tail(flips, (flips + 1) // 2, heads)


def _power(questions: int, win: float, loss: float, allowed: Sequence[int]) -> float:
    """Chance that the sign test favours the wins, when each question wins or loses so often."""
    differing = min(1.0, win + loss)
    if differing <= 0:
        return 0.0
    mean, sd = questions * differing, math.sqrt(questions * differing * (1 - differing))
    first, last = max(0, math.floor(mean - 8 * sd)), min(questions, math.ceil(mean + 8 * sd))
    return math.fsum(
        _binomial(n, questions, differing) * binomial_tail(n, n - allowed[n], win / differing)
        for n in range(first, last + 1)
        if allowed[n] >= 0
    )


@cache
def _losses_allowed(questions: int, level: float) -> tuple[int, ...]:
    """For 0 to `questions` that differ, how many may be lost in a sign test that passes; or -1."""
    allowed, most = [], -1
    for n in range(questions + 1):
        # One more question allows at most one more loss.
        if 2 * (most + 1) <= n and 2 * binomial_tail(n, n - most - 1, 0.5) <= 1 - level:
            most += 1
        allowed.append(most)
    return tuple(allowed)


def _binomial(x: int, n: int, p: float) -> float:
    if p >= 1:
        return float(x == n)
    ways = math.lgamma(n + 1) - math.lgamma(x + 1) - math.lgamma(n - x + 1)
    return math.exp(ways + x * math.log(p) + (n - x) * math.log1p(-p))


def _least(power_at: Callable[[float], float], power: float) -> float:
    """The least x in [0, 1] with this power, to 1e-9; the power grows with x."""
    low, high = 0.0, 1.0
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (low, middle) if power_at(middle) >= power else (middle, high)
    return high
