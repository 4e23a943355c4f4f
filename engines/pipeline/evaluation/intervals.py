"""How far a mean over questions can be trusted; one value stands for one question."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from engines.pipeline.evaluation.distributions import beta_quantile, t_quantile

SAME = 1e-9
"""Means of one question closer than this differ by rounding alone."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Both ends belong to it."""

    low: float
    high: float


def interval_of(values: Sequence[float], level: float = 0.95) -> Interval | None:
    """Where the mean of such values in [0, 1], one a question, lies.

    mean ± t_{1-α/2, M-1} · s/√M, cut to [0, 1]; s is the sample standard deviation between
    the M questions, which holds the chance inside a question as well (arXiv:2411.00640).

    Where s cannot be had (one question) or is 0 (all alike) that would claim certainty. There
    it is the exact interval of Clopper and Pearson (1934) for x = M · mean successes of M:
    the α/2 quantile of Beta(x, M-x+1) to the 1-α/2 quantile of Beta(x+1, M-x). With 20 of
    20 right its low end is 0.025^(1/20) = 0.83. It is wider than needed for a mean between 0
    and 1, as if each question were wholly right or wrong.

    It holds the truth as often as it says but for few questions of which few differ: 0.91
    instead of 0.95 (simulated) for 20 questions, four tries each, all right 9 times in 10.
    """
    if not values:
        return None
    count, mean = len(values), math.fsum(values) / len(values)
    if _is_constant(values):
        return _clopper_pearson(mean * count, count, level)
    half = _half_width(values, level)
    return Interval(max(0.0, mean - half), min(1.0, mean + half))


def paired_interval_of(changes: Sequence[float], level: float = 0.95) -> Interval:
    """Where the mean of such changes in [-1, 1], one a question, lies.

    mean ± t_{1-α/2, M-1} · s/√M, cut to [-1, 1] (arXiv:2411.00640).

    Where the questions all moved alike s is 0 and would claim certainty. Seeing M of M alike
    leaves room for a share u = 1 - (α/2)^(1/M) of questions that behave otherwise, each by
    anything in [-1, 1] (the exact bound of Clopper and Pearson for 0 of M): the interval is
    (1-u)·mean ± u.
    """
    mean = math.fsum(changes) / len(changes)
    if _is_constant(changes):
        otherwise = 1 - ((1 - level) / 2) ** (1 / len(changes))
        centre, half = (1 - otherwise) * mean, otherwise
    else:
        centre, half = mean, _half_width(changes, level)
    return Interval(max(-1.0, centre - half), min(1.0, centre + half))


def _is_constant(values: Sequence[float]) -> bool:
    """True when there is no variance to measure: one value, or all the same."""
    return max(values) - min(values) <= SAME


def _half_width(values: Sequence[float], level: float) -> float:
    """Half of the t-interval of the mean of at least two values."""
    t = t_quantile((1 + level) / 2, len(values) - 1)
    return t * statistics.stdev(values) / math.sqrt(len(values))


def _clopper_pearson(successes: float, count: int, level: float) -> Interval:
    tail = (1 - level) / 2
    failures = count - successes
    low = beta_quantile(tail, successes, failures + 1) if successes > SAME else 0.0
    high = beta_quantile(1 - tail, successes + 1, failures) if failures > SAME else 1.0
    return Interval(low, high)
