"""How far a mean over questions can be trusted; one value stands for one question.

The probabilities that this needs are of the standard library alone, and agree with scipy to 1e-9
for parameters up to 10,000.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

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


_TINY = 1e-300  # stands in for a zero denominator of the continued fraction
_EPS = 1e-16
_MOST_TERMS = 100_000  # grows with √max(a, b); 10,000 needs some 300


def beta_cdf(x: float, a: float, b: float) -> float:
    """Probability that a Beta(a, b) variable is at most x: the regularised I_x(a, b).

    Source: continued fraction DLMF 8.17.22 by Lentz's method; the symmetry
        I_x(a, b) = 1 - I_{1-x}(b, a) keeps it where it converges fast.
    """
    _require(a > 0 and b > 0, "the shapes of a beta distribution are positive")
    if x <= 0:
        return 0.0
    if x >= 1:
        return 1.0
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    if x < (a + 1) / (a + b + 2):
        return front * _continued_fraction(x, a, b) / a
    return 1 - front * _continued_fraction(1 - x, b, a) / b


def beta_quantile(p: float, a: float, b: float) -> float:
    """The x in [0, 1] with `beta_cdf(x, a, b) == p`, for p in [0, 1].

    Newton's steps where they stay inside the bracket, halving where they do not; ends when
    the bracket or the step is as small as floats tell apart.
    """
    _require(0 <= p <= 1, "a probability lies in [0, 1]")
    if p in (0, 1):
        return float(p)
    low, high = 0.0, 1.0
    x = a / (a + b)
    scale = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    while True:
        excess = beta_cdf(x, a, b) - p
        if excess == 0:
            return x
        low, high = (x, high) if excess < 0 else (low, x)
        log_density = scale + (a - 1) * math.log(x) + (b - 1) * math.log1p(-x)
        # A density beyond e±700 leaves the float range: halving gets there as well.
        step = excess / math.exp(log_density) if abs(log_density) < 700 else math.inf
        following = x - step
        if not low < following < high:
            following = (low + high) / 2
        if following in (low, high) or abs(following - x) <= _EPS * x:
            return following
        x = following


@lru_cache(1024)  # an analysis asks for one two hundred times, and it takes 1 ms
def t_quantile(p: float, df: float) -> float:
    """The t that Student's t with `df` degrees of freedom stays below with probability p in (0, 1).

    Source: DLMF 8.17 with P(|T| > t) = I_{df/(df+t²)}(df/2, 1/2).
    """
    _require(0 < p < 1, "a quantile's probability lies strictly between 0 and 1")
    _require(df > 0, "degrees of freedom are positive")
    beyond = 2 * min(p, 1 - p)  # P(|T| > |t|)
    if beyond > 0.5:  # the smaller of y = t²/(df+t²) and x = 1 - y keeps its digits
        y = beta_quantile(1 - beyond, 0.5, df / 2)
        size = math.sqrt(df * y / (1 - y))
    else:
        x = beta_quantile(beyond, df / 2, 0.5)
        size = math.sqrt(df * (1 - x) / x)
    return size if p > 0.5 else -size


def t_tail(t: float, df: float) -> float:
    """The probability that Student's t with `df` degrees of freedom is at least `t`."""
    beyond = t_p_value(t, df) / 2
    return beyond if t > 0 else 1 - beyond


def t_p_value(t: float, df: float) -> float:
    """P(|T| >= |t|) of Student's t: I_{df/(df+t²)}(df/2, 1/2), DLMF 8.17."""
    return beta_cdf(df / (df + t * t), df / 2, 0.5)


def sign_test(wins: int, losses: int) -> float:
    """Exact two-sided p-value that wins and losses are equally likely; ties stay out.

    min(1, 2 · Σ_{i <= min(wins, losses)} C(n, i) / 2^n) with n = wins + losses, in whole
    numbers, so it is right to the last digit. On one try a side this is McNemar's exact test.
    """
    n = wins + losses
    term = total = 1  # C(n, 0)
    for i in range(min(wins, losses)):
        term = term * (n - i) // (i + 1)
        total += term
    return min(1.0, 2 * total / (1 << n))


def _continued_fraction(x: float, a: float, b: float) -> float:
    c, d = 1.0, 1 / _away_from_zero(1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, _MOST_TERMS):
        for numerator in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / _away_from_zero(1 + numerator * d)
            c = _away_from_zero(1 + numerator / c)
            value *= c * d
        if abs(c * d - 1) < 4 * _EPS:
            return value
    raise ArithmeticError(f"I_{x}({a}, {b}) did not settle in {_MOST_TERMS} terms")


def _away_from_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY


def _require(holds: bool, sentence: str) -> None:
    if not holds:
        raise ValueError(sentence)
