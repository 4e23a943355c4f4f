"""What each of many experiences is worth: one regression of reward on which of them were shown.

Pure, in floats of the standard library; made for some hundreds of experiences at most.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, groupby
from operator import mul

from engines.core.ids import seed_for
from engines.core.library_notes import Effect, EffectMethod, interval_verdict
from engines.pipeline.evaluation.statistics import (
    LEAST_QUESTIONS,
    LEVEL,
    POWER,
    SAME,
    Interval,
    paired_interval_of,
    t_p_value,
    t_quantile,
)

PAIRS_AMONG = 60
"""Of more experiences no pairs are looked for: too many to tell any apart, and slow."""
NAMED_AT = 0.05
"""The share of false ones that is expected among the pairs that are named."""
_ROLLOUTS_EACH = 4
"""Per experience that is measured; of more experiences those that varied most are."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One try: the experiences that stood in its prompt, and its reward."""

    problem: str  # tries of one problem are not independent
    unit: Hashable  # only tries that share it are compared: of one problem, library and weights
    shown: Collection[str]
    reward: float


@dataclass(frozen=True, slots=True)
class PairEffect:
    """How much more two experiences are worth together than each adds to the other's absence."""

    first: str
    second: str
    difference: float
    interval: Interval
    false_discovery: float


@dataclass(frozen=True, slots=True)
class Effects:
    """What a regression tells; experiences that hardly varied are missing in `single`."""

    single: Mapping[str, Effect] = field(default_factory=dict)
    pairs: tuple[PairEffect, ...] = ()  # that are named; the surest first
    rollouts: int = 0  # that could be compared with others
    problems: int = 0
    pairs_tested: int = 0


@dataclass(frozen=True, slots=True)
class _Estimate:
    value: float
    interval: Interval
    p: float
    problems: int


def regress(
    observations: Iterable[Observation], names: Sequence[str], method: EffectMethod
) -> Effects:
    """The effect of each experience of `names` with a 95 % interval, and pairs that interact.

    Least squares of reward on inclusion, both centred within each unit (every problem has an
    effect of its own). The variance is robust to tries of one problem being alike: Cameron &
    Miller (J. Human Resources 50, 2015) with their small-sample correction CR1, G/(G-1) ·
    (N-1)/(N-K) of N rollouts, K experiences and the G problems in which the experience varied;
    Student's t has G-1 degrees of freedom. A pair is tested on the residuals, by the product of
    both centred inclusions, which is orthogonal to single effects where inclusion is independent.
    Bounds on false discoveries are Benjamini & Hochberg's (J. R. Statist. Soc. B 57, 1995), of
    single effects and of pairs apart.
    """
    units, columns = _centre(observations, names)
    rows = [one for unit in units for one in unit]
    clusters = {name: at for at, name in enumerate(dict.fromkeys(one.problem for one in rows))}
    places = [clusters[one.problem] for one in rows]
    means = [math.fsum(one.reward for one in unit) / len(unit) for unit in units]
    residuals = [one.reward - mean for unit, mean in zip(units, means, strict=True) for one in unit]
    inverse, kept = _invert([[_dot(a, b) for b in columns.values()] for a in columns.values()])
    columns = {name: column for at, (name, column) in enumerate(columns.items()) if at in kept}
    moments = [_dot(column, residuals) for column in columns.values()]
    slopes = [_dot(row, moments) for row in inverse]
    for slope, column in zip(slopes, columns.values(), strict=True):
        residuals = [e - slope * x for e, x in zip(residuals, column, strict=True)]
    correction = (len(rows) - 1) / max(1, len(rows) - len(columns))
    scores = [_sums(map(mul, column, residuals), places) for column in columns.values()]
    by_problem = list(zip(*scores, strict=True))
    found: dict[str, _Estimate] = {}
    for name, slope, weights in zip(columns, slopes, inverse, strict=True):
        variance = math.fsum(_dot(weights, score) ** 2 for score in by_problem) * correction
        varied = len({at for at, x in zip(places, columns[name], strict=True) if x})
        found[name] = _estimate(slope, variance, varied)
    bounds = false_discovery_bounds([one.p for one in found.values()])
    single = {
        name: Effect(
            difference=max(-1.0, min(1.0, one.value)),
            low=one.interval.low,
            high=one.interval.high,
            verdict=interval_verdict(one.interval.low, one.interval.high),
            problems=one.problems,
            rollouts=len(rows),
            method=method,
            false_discovery=bound,
        )
        for (name, one), bound in zip(found.items(), bounds, strict=True)
    }
    within = [at for at, unit in enumerate(units) for _ in unit]
    few = columns if len(columns) <= PAIRS_AMONG else {}
    pairs, tested = _pairs(few, residuals, within, places)
    return Effects(single, pairs, len(rows), len(clusters), tested)


def false_discovery_bounds(p_values: Sequence[float]) -> list[float]:
    """Benjamini and Hochberg's adjusted p-values: min over larger ones of m · p / rank."""
    order = sorted(range(len(p_values)), key=lambda at: -p_values[at])
    bounds, least = [0.0] * len(p_values), 1.0
    for place, at in enumerate(order):
        least = min(least, p_values[at] * len(p_values) / (len(p_values) - place))
        bounds[at] = least
    return bounds


def smallest_effect(rollouts: int, problems: int, columns: int, included: float = 0.5) -> float:
    """The smallest true effect of one experience that so many rollouts would likely show.

    A plan, not a measurement: it supposes rewards that are right or wrong at 1/2 whatever the
    problem, the worst case. An experience stands in this share of the prompts. `math.inf` says
    that not even 1 would show.
    """
    free = rollouts - columns
    if problems < LEAST_QUESTIONS or free < 1:
        return math.inf
    standard_error = 0.5 / math.sqrt(free * included * (1 - included))
    df = problems - 1
    effect = (t_quantile((1 + LEVEL) / 2, df) + t_quantile(POWER, df)) * standard_error
    return effect if effect <= 1 else math.inf


def leave_one_out_rollouts(rollouts: int, columns: int) -> int:
    """What measuring each experience against the whole library costs for the same error.

    Random halves have the variance 4s²/N. With n rollouts without each of p experiences and m of
    the whole library it is s²(1/n + 1/m), least at m = n√p: together N/4 · (1 + √p)².
    """
    return math.ceil(rollouts / 4 * (1 + math.sqrt(columns)) ** 2)


def _centre(
    observations: Iterable[Observation], names: Sequence[str]
) -> tuple[list[list[Observation]], dict[str, list[float]]]:
    """Units of two tries or more, and the centred inclusion of each experience in their order.

    Left out are experiences that varied in too few problems, and of too many those that varied
    least.
    """
    by_unit = sorted(observations, key=lambda one: repr(one.unit))
    units = [list(unit) for _, unit in groupby(by_unit, key=lambda one: one.unit)]
    units = [unit for unit in units if len(unit) > 1]
    columns: dict[str, list[float]] = {}
    for name in names:
        column: list[float] = []
        varied: set[str] = set()
        for unit in units:
            shown = [name in one.shown for one in unit]
            mean = sum(shown) / len(unit)
            if 0 < mean < 1:
                varied.update(one.problem for one in unit)
            column += [inside - mean for inside in shown]
        if len(varied) >= LEAST_QUESTIONS:
            columns[name] = column
    most = sum(map(len, units)) // _ROLLOUTS_EACH
    chosen = sorted(columns, key=lambda name: -_dot(columns[name], columns[name]))[:most]
    return units, {name: column for name, column in columns.items() if name in set(chosen)}


def _pairs(
    columns: Mapping[str, Sequence[float]],
    residuals: Sequence[float],
    within: Sequence[int],
    places: Sequence[int],
) -> tuple[tuple[PairEffect, ...], int]:
    """The pairs whose effect is more than the sum of both, or less; and how many were tested."""
    found: list[tuple[str, str, _Estimate]] = []
    counts = _sums([1.0] * len(within), within)
    for first, second in combinations(columns, 2):
        product = list(map(mul, columns[first], columns[second]))
        sizes = zip(_sums(product, within), counts, strict=True)
        spread = _dot(product, product) - math.fsum(total**2 / n for total, n in sizes)
        varied = len({at for at, x in zip(places, product, strict=True) if x})
        if varied >= LEAST_QUESTIONS and spread > SAME:
            sums = _sums(map(mul, product, residuals), places)
            estimate = _estimate(sum(sums) / spread, _dot(sums, sums) / spread**2, varied)
            found.append((first, second, estimate))
    bounds = false_discovery_bounds([one.p for *_, one in found])
    named = [
        PairEffect(first, second, one.value, one.interval, bound)
        for (first, second, one), bound in zip(found, bounds, strict=True)
        if bound <= NAMED_AT
    ]
    return tuple(sorted(named, key=lambda pair: pair.false_discovery)), len(found)


def _estimate(value: float, variance: float, problems: int) -> _Estimate:
    error = math.sqrt(max(0.0, variance) * problems / (problems - 1))
    if error <= SAME:  # all alike, which proves nothing of problems that were not seen
        return _Estimate(value, paired_interval_of([value] * problems), 1.0, problems)
    half = t_quantile((1 + LEVEL) / 2, problems - 1) * error
    p = t_p_value(value / error, problems - 1)
    interval = Interval(max(-1.0, value - half), min(1.0, value + half))
    return _Estimate(value, interval, p, problems)


def _invert(gram: Sequence[Sequence[float]]) -> tuple[list[list[float]], list[int]]:
    """The inverse of a positive matrix by Gauss and Jordan; and the columns it is of.

    A column that follows from those before it has no effect of its own and is left out.
    """
    size, kept = len(gram), list[int]()
    rows = [[*row, *(float(at == i) for i in range(size))] for at, row in enumerate(gram)]
    for at in range(size):
        if (pivot := rows[at][at]) > SAME * gram[at][at]:
            kept.append(at)
            rows[at] = line = [value / pivot for value in rows[at]]
            for other in range(size):
                if other != at and (factor := rows[other][at]):
                    rows[other] = [a - factor * b for a, b in zip(rows[other], line, strict=True)]
    return [[rows[i][size + j] for j in kept] for i in kept], kept


def _dot(a: Sequence[float], b: Sequence[float]) -> float:
    return math.fsum(map(mul, a, b))


def _sums(values: Iterable[float], places: Sequence[int]) -> list[float]:
    """By place."""
    sums = [0.0] * (max(places, default=-1) + 1)
    for value, at in zip(values, places, strict=True):
        sums[at] += value
    return sums


Keep = Callable[[str], bool]
"""Whether the experience of this id stands in a prompt."""

_DRAWS = 1 << 31  # values of `seed_for`


def random_half(seed: int, problem: str, index: int) -> Keep:
    """Each with chance 1/2; the tries 2j and 2j+1 of a problem carry opposite halves.

    So every experience is in exactly half of an even number of tries, which loses nothing to
    problem effects, and no pair of experiences can pass for the effect of a single one (a
    folded-over design: Box, Hunter & Hunter, Statistics for Experimenters, ch. 6). `problem` is
    its digest. More tries leave those before as they are.
    """
    pair, opposite = divmod(index, 2)
    return lambda name: seed_for(seed, "half", problem, pair, name) % 2 != opposite


def dropout(seed: int, problem: str, index: int, chance: float) -> Keep:
    """Each is left out with this chance, on its own, as evenly as can be among a problem's tries.

    At 0.1 one in ten of consecutive tries goes without it: a problem without any such try, or with
    many, tells less (systematic sampling; Cochran, Sampling Techniques, ch. 8). `index` is the
    place of the try among those of the whole run.
    """

    def keep(name: str) -> bool:
        return (seed_for(seed, "dropout", problem, name) / _DRAWS + index * chance) % 1 >= chance

    return keep
