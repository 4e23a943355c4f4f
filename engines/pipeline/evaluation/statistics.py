"""How far a mean over questions can be trusted; one value stands for one question.

The probabilities that this needs are of the standard library alone, and agree with scipy to 1e-9
for parameters up to 10,000.
"""

import math
import random
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from engines.core.codec import question_of
from engines.core.frozen import frozen

if TYPE_CHECKING:
    from statistics import NormalDist

SAME = 1e-9
"""Means of one question closer than this differ by rounding alone."""


@frozen
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
    return t_quantile((1 + level) / 2, len(values) - 1) * standard_error(values)


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
    from statistics import stdev  # takes 5 ms, and every command loads this file

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


def _normal() -> "NormalDist":
    from statistics import NormalDist  # see `standard_error`

    return NormalDist()


def power_at(effect: float, error: float, problems: int, level: float = 0.95) -> float:
    """The chance that a true mean change of this size is told from 0 by the t-test.

    `problems` are two or more, `error` is above 0. Source: the noncentral t by Abramowitz and
    Stegun 26.7.10, within 0.02 from ten problems on.
    """
    df, needed = problems - 1, t_quantile((1 + level) / 2, problems - 1)
    wide = math.sqrt(1 + needed * needed / (2 * df))

    def beyond(shift: float) -> float:
        return _normal().cdf((shift - needed * (1 - 1 / (4 * df))) / wide)

    return beyond(abs(effect) / error) + beyond(-abs(effect) / error)


def holm_adjusted(p_values: Sequence[float]) -> tuple[float, ...]:
    """The p-values as they hold for all at once, in the order given.

    The i-th smallest of m becomes max over j <= i of (m - j + 1)·p_(j), at most 1.
    Source: Holm, Scandinavian Journal of Statistics 6 (1979), 65-70.
    """
    found, least = [0.0] * len(p_values), 0.0
    for rank, at in enumerate(sorted(range(len(p_values)), key=lambda at: p_values[at])):
        least = min(1.0, max(least, (len(p_values) - rank) * p_values[at]))
        found[at] = least
    return tuple(found)


LEVEL, POWER = 0.95, 0.8
"""Of the verdict: how sure it is, and how often the smallest effect shall be noticed."""

LEAST_QUESTIONS = 6
"""With fewer no exact test passes: 2·(1/2)^5 > 0.05."""


def minimum_detectable_effect(questions: int, k: int) -> float:
    """The smallest true difference in mean reward that such a set would likely show.

    A plan, not a measurement: it supposes right-or-wrong tries at p = 1/2, all independent, and
    that every question gains alike, so that a question's change has variance 1/(2k). Between
    8 and 256 questions of 1 to 4 tries the effect was noticed in 71 to 84 of 100 simulated
    comparisons (80 are meant; six questions: 52 to 54).

    `k` is the tries a question on each side. `math.inf` says that not even 1 would show.
    """
    if k < 1:
        raise ValueError("a question is tried at least once")
    if questions < LEAST_QUESTIONS:
        return math.inf
    sure, spread = (1 + LEVEL) / 2, math.sqrt(1 / (2 * k * questions))
    by_t = t_quantile(sure, questions - 1) + t_quantile(POWER, questions - 1)
    by_z = _normal().inv_cdf(sure) + _normal().inv_cdf(POWER)
    # Whole tries are won or lost, which costs half a step of two; few of them, the t-quantile.
    effect = max(by_t * spread, by_z * spread + 1 / (k * questions))
    return effect if effect <= 1 else math.inf


Rewards = Sequence[Sequence[float | None]]
"""One row a question, its tries in order; None where a try could not be judged."""

ByQuestion = Mapping[str, Sequence[float | None]]
"""The rewards of each question's tries under its id; None where one could not be judged."""

RIGHT_FROM = 0.5
"""The reward from which a try counts as right, as in a group's outcome."""


@frozen
class Rate:
    """A rate and the number of questions behind it; no value and no interval where that is 0."""

    value: float | None
    questions: int
    interval: Interval | None = None


def group_by_question(
    problems: Sequence[str], rewards: Rewards
) -> dict[str, tuple[float | None, ...]]:
    """The tries of each question under its id; one that is repeated (`x`, `x#2` …) is one."""
    found: dict[str, tuple[float | None, ...]] = {}
    for problem, row in zip(problems, rewards, strict=True):
        question = question_of(problem)
        found[question] = (*found.get(question, ()), *row)
    return found


def question_means(rewards: Rewards) -> tuple[float, ...]:
    """The mean of each question's known tries; questions without one are left out."""
    known = (known_rewards(row) for row in rewards)
    return tuple(math.fsum(row) / len(row) for row in known if row)


def mean_at_k(rewards: Rewards) -> float | None:
    """mean@k: the mean over questions of the mean of their known tries; None without any."""
    means = question_means(rewards)
    return math.fsum(means) / len(means) if means else None


def mean_interval(rewards: Rewards, level: float = 0.95) -> Interval | None:
    """Where mean@k of such questions lies; see `interval_of`. None with no known reward."""
    return interval_of(question_means(rewards), level)


def pass_at_k(n: int, c: int, k: int) -> float:
    """The unbiased chance that one of k tries is right, when c of n were.

    1 - C(n-c, k) / C(n, k), in whole numbers: no n makes it overflow or lose digits.
    Source: arXiv:2107.03374 eq. 1.
    """
    if not (1 <= k <= n and 0 <= c <= n):
        raise ValueError(f"pass@{k} of {c} right tries in {n} is not defined")
    all_draws = math.comb(n, k)
    return (all_draws - math.comb(n - c, k)) / all_draws


def pass_rate(rewards: Rewards, k: int, level: float = 0.95) -> Rate:
    """pass@k: the mean of `pass_at_k` over the questions with at least k known tries."""
    counts = [(len(row), sum(r >= RIGHT_FROM for r in row)) for row in map(known_rewards, rewards)]
    values = [pass_at_k(n, right, k) for n, right in counts if n >= k]
    if not values:
        return Rate(None, 0)
    return Rate(math.fsum(values) / len(values), len(values), interval_of(values, level))


def pass_curve(rewards: Rewards, most: int) -> tuple[Rate, ...]:
    """pass@1 … pass@`most`, in order. Later ones may rest on fewer questions."""
    return tuple(pass_rate(rewards, k) for k in range(1, most + 1))


LITTLE_CONTRAST = 0.25
"""The share of groups with contrast below which training learns from too little of a step."""


def low_contrast_warning(informative: int, groups: int) -> str:
    """A warning where few groups have rewards that differ; "" where there is nothing to warn of.

    Advantages are differences inside a group, so that the others teach nothing.
    """
    if not groups or informative >= LITTLE_CONTRAST * groups:
        return ""
    return (
        f"only {informative} of {groups} groups of the first step have rewards that differ, and "
        "only those are learned from: practise on problems that are neither all solved nor all "
        "failed, or raise group_size or the temperature"
    )


def known_rewards(row: Sequence[float | None]) -> tuple[float, ...]:
    return tuple(reward for reward in row if reward is not None)
