"""Paired changes, one a problem: tests of their mean, and what such a test could show.

Pure. All tries of a problem are one change, so that what is said is clustered by problem.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from statistics import NormalDist, stdev

from engines.pipeline.evaluation.intervals import SAME, Interval, sign_test, t_quantile

_MOST_BITS = 4_000_000  # of the counts of all sums: some 50 ms
_MOST_EXACT = 500  # beyond, the normal distribution is right to about three digits
_MANY = 30  # changes of one size add up to it well enough


def sign_flip_test(changes: Sequence[float]) -> float:
    """Exact two-sided p-value that each change could as well have had the other sign.

    The share of all ways to sign the changes whose sum is at least as far from 0 as the one seen:
    Fisher's randomisation test (The Design of Experiments, 1935, §21). It supposes only that
    without an effect both sides are exchangeable. Where all changes have one size it is McNemar's
    exact test, of however many.
    """
    sizes = [abs(change) for change in changes if abs(change) > SAME]
    if sizes and max(sizes) - min(sizes) <= SAME:
        wins = sum(change > SAME for change in changes)
        return sign_test(wins, len(sizes) - wins)
    above, equal = signing_shares(changes)
    return min(1.0, 2 * (min(above, 1 - above - equal) + equal))


def sign_flip_tails(changes: Sequence[float]) -> tuple[float, float]:
    """Mid-p that the sum would be as large, and that it would be as small, if signs were chance.

    What ties with the sum that was seen counts half (Lancaster, 1961), which wastes less where
    outcomes are few.
    """
    above, equal = signing_shares(changes)
    return above + equal / 2, 1 - above - equal / 2


def signing_shares(changes: Sequence[float]) -> tuple[float, float]:
    """Of all ways to sign the changes, the share whose sum is above the one seen, and equals it.

    Exact for changes with a common unit of at least 1/1024; others are rounded to a fine one. Of
    more than 500 other than 0 the small ones add up to a normal distribution of variance Σd².
    """
    changes = [change for change in changes if abs(change) > SAME]
    if len(changes) > _MOST_EXACT:
        return _share_above(changes), 0.0
    return _count_sums(_in_units(changes)) if changes else (0.0, 1.0)


def _share_above(changes: Sequence[float]) -> float:
    """Changes that stand out of the rest are signed one by one, in units of 1/8192 of their sum.

    With a few among hundreds that hardly changed the normal distribution alone is too sure.
    """
    changes = sorted(changes, key=abs, reverse=True)
    sizes = [abs(change) for change in changes]
    rest = math.fsum(size * size for size in sizes)
    count = 0
    while count < _MOST_EXACT and sizes[count] ** 2 * _MANY > rest - sizes[count] ** 2:
        rest = math.fsum(size * size for size in sizes[count + 1 :])
        count += 1
    unit = math.fsum(sizes[:count]) / (1 << 13)
    units = [round(change / unit) for change in changes[:count]]
    shares = {0: 1.0}
    for step in units:
        moved: dict[int, float] = {}
        for at, share in shares.items():
            for to in (at + step, at - step):
                moved[to] = moved.get(to, 0.0) + share / 2
        shares = moved
    # What was seen is rounded as well, or small changes would be told from it by the rounding.
    seen, small, wide = sum(units), math.fsum(changes[count:]), math.sqrt(2 * rest)
    return math.fsum(
        share * math.erfc(((seen - at) * unit + small) / wide) / 2 for at, share in shares.items()
    )


def _in_units(changes: Sequence[float]) -> list[int]:
    """The changes as whole numbers of their common unit, or of one fine enough."""
    total = math.fsum(map(abs, changes))
    most = _MOST_BITS / len(changes)  # units in all
    for per in range(1, 1_025):
        if per * total <= most and all(abs(c * per - round(c * per)) < 1e-6 for c in changes):
            return [round(c * per) for c in changes]
    fine = min(most, 1 << 16) / total
    return [round(c * fine) for c in changes]


def _count_sums(units: Sequence[int]) -> tuple[float, float]:
    """`signing_shares` of whole numbers.

    Σ ±u = U - 2s with s the sum of those signed the other way. How many ways there are to each s
    is a coefficient of Π(1 + x^u), here a digit of one whole number in a base that no count
    reaches; the sum of its digits is its remainder by the base less one.
    """
    bits = len(units) + 1
    ways, everything = 1, 0
    for unit in sorted(map(abs, units)):
        ways += ways << (unit * bits)
        everything += unit
    digit, at = (1 << bits) - 1, bits * ((everything - sum(units)) // 2)
    above = (ways & ((1 << at) - 1)) % digit
    return above / (1 << len(units)), (ways >> at & digit) / (1 << len(units))


def standard_error(changes: Sequence[float]) -> float:
    """Of the mean of at least two changes, clustered by problem: s / √M."""
    return stdev(changes) / math.sqrt(len(changes))


def bootstrap_interval(
    changes: Sequence[float], seed: int, level: float = 0.95, draws: int = 2_000
) -> Interval:
    """Percentile bootstrap of the mean, problems drawn with replacement (Efron, 1979).

    Deterministic for a seed. A check of the t-interval where changes are graded and skewed.
    """
    draw, n = random.Random(seed), len(changes)
    means = sorted(math.fsum(draw.choices(changes, k=n)) / n for _ in range(draws))
    cut = round((1 - level) / 2 * draws)
    return Interval(means[cut], means[draws - 1 - cut])


def detectable_effect(
    error: float, problems: int, level: float = 0.95, power: float = 0.8
) -> float:
    """The true mean change that problems of such noise show with that power: (t_α/2 + t_β)·SE.

    `problems` are two or more. Source: Cohen, Statistical Power Analysis, 1988, §2.5, t for z.
    """
    return error * (t_quantile((1 + level) / 2, problems - 1) + t_quantile(power, problems - 1))


def power_at(effect: float, error: float, problems: int, level: float = 0.95) -> float:
    """The chance that a true mean change of this size is told from 0 by the t-test.

    `problems` are two or more, `error` is above 0. Source: the noncentral t by Abramowitz and
    Stegun 26.7.10, within 0.02 from ten problems on.
    """
    df, needed = problems - 1, t_quantile((1 + level) / 2, problems - 1)
    wide = math.sqrt(1 + needed * needed / (2 * df))

    def beyond(shift: float) -> float:
        return NormalDist().cdf((shift - needed * (1 - 1 / (4 * df))) / wide)

    return beyond(abs(effect) / error) + beyond(-abs(effect) / error)
