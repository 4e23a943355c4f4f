"""What each of many experiences is worth: one regression of reward on which of them were shown.

Pure; made for some hundreds of experiences at most.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import field
from itertools import groupby
from typing import TYPE_CHECKING, Any

from engines.core.codec import seed_for
from engines.core.frozen import frozen
from engines.core.library_notes import Effect, EffectMethod, interval_verdict
from engines.pipeline.evaluation import statistics

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

_ROLLOUTS_EACH = 4
"""Per experience that is measured; of more experiences those that varied most are."""


@frozen
class Observation:
    """One try: the experiences that stood in its prompt, and its reward."""

    problem: str  # tries of one problem are not independent
    unit: Hashable  # only tries that share it are compared: of one problem, library and weights
    shown: Collection[str]
    reward: float


@frozen
class Effects:
    """What a regression tells; experiences that hardly varied are missing in `single`."""

    single: Mapping[str, Effect] = field(default_factory=dict)
    rollouts: int = 0  # that could be compared with others
    problems: int = 0


@frozen
class _Estimate:
    value: float
    interval: statistics.Interval
    p: float
    problems: int


def regress(
    observations: Iterable[Observation], names: Sequence[str], method: EffectMethod
) -> Effects:
    """The effect of each experience of `names` with a 95 % interval.

    Least squares of reward on inclusion, both centred within each unit (every problem has an
    effect of its own). The variance is robust to tries of one problem being alike: Cameron &
    Miller (J. Human Resources 50, 2015) with their small-sample correction CR1, G/(G-1) ·
    (N-1)/(N-K) of N rollouts, K experiences and the G problems in which the experience varied;
    Student's t has G-1 degrees of freedom. Bounds on false discoveries are Benjamini & Hochberg's
    (J. R. Statist. Soc. B 57, 1995).
    """
    import numpy as np  # it takes a tenth of a second, which other commands need not wait for

    units = _comparable_units(observations)
    rows = [one for unit in units for one in unit]
    if not rows:
        return Effects()
    unit_of = np.repeat(np.arange(len(units)), [len(unit) for unit in units])
    numbers = {name: at for at, name in enumerate(dict.fromkeys(one.problem for one in rows))}
    problem_of = np.array([numbers[one.problem] for one in rows])

    inclusion = _centre(np.array([[name in one.shown for name in names] for one in rows]), unit_of)
    varied = np.count_nonzero(sum_by_group(inclusion != 0, problem_of), axis=0)
    chosen = _choose_columns(inclusion, varied)
    columns, varied = inclusion[:, chosen], varied[chosen]  # (N, K)
    inverse = np.linalg.inv(columns.T @ columns)  # (K, K)
    residuals = _centre(np.array([one.reward for one in rows]), unit_of)
    slopes = inverse @ (columns.T @ residuals)
    residuals = residuals - columns @ slopes

    correction = (len(rows) - 1) / max(1, len(rows) - len(chosen))
    scores = sum_by_group(columns * residuals[:, None], problem_of)  # (G, K)
    variances = ((scores @ inverse) ** 2).sum(axis=0) * correction
    figures = zip(slopes.tolist(), variances.tolist(), varied.tolist(), strict=True)
    estimates = [_estimate(slope, variance, count) for slope, variance, count in figures]
    bounds = false_discovery_bounds([estimate.p for estimate in estimates])
    single: dict[str, Effect] = {}
    for at, estimate, bound in zip(chosen, estimates, bounds, strict=True):
        low, high = estimate.interval.low, estimate.interval.high
        single[names[at]] = Effect(
            difference=max(-1.0, min(1.0, estimate.value)),
            low=low,
            high=high,
            verdict=interval_verdict(low, high),
            problems=estimate.problems,
            rollouts=len(rows),
            method=method,
            false_discovery=bound,
        )
    return Effects(single, len(rows), len(numbers))


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
    if problems < statistics.LEAST_QUESTIONS or free < 1:
        return math.inf
    standard_error = 0.5 / math.sqrt(free * included * (1 - included))
    df = problems - 1
    effect = (
        statistics.t_quantile((1 + statistics.LEVEL) / 2, df)
        + statistics.t_quantile(statistics.POWER, df)
    ) * standard_error
    return effect if effect <= 1 else math.inf


def _comparable_units(observations: Iterable[Observation]) -> list[list[Observation]]:
    """Return the units of two rollouts or more, in an order that does not depend on theirs."""
    by_unit = sorted(observations, key=lambda one: repr(one.unit))
    units = [list(unit) for _, unit in groupby(by_unit, key=lambda one: one.unit)]
    return [unit for unit in units if len(unit) > 1]


def sum_by_group(values: Array, group_of: Array) -> Array:
    """Return the sum of the values (N, …) of each group; `group_of[i]` is the group of value i."""
    import numpy as np

    sums = np.zeros((group_of.max(initial=-1) + 1, *values.shape[1:]))
    np.add.at(sums, group_of, values)
    return sums


def _centre(values: Array, unit_of: Array) -> Array:
    """Return the values (N, …) less the mean of their unit."""
    import numpy as np

    counts = np.bincount(unit_of).reshape(-1, *[1] * (values.ndim - 1))
    centred: Array = values - (sum_by_group(values, unit_of) / counts)[unit_of]
    return centred


def _choose_columns(inclusion: Array, varied: Array) -> list[int]:
    """Return the numbers of the experiences whose effect can be told.

    Left out are those that varied in too few problems, of too many those that varied least, and
    those that follow from others before them, which have no effect of their own.
    """
    import numpy as np

    spread = (inclusion**2).sum(axis=0)
    enough = [at for at, count in enumerate(varied) if count >= statistics.LEAST_QUESTIONS]
    most = len(inclusion) // _ROLLOUTS_EACH
    widest = sorted(sorted(enough, key=lambda at: -spread[at])[:most])
    chosen: list[int] = []
    basis = np.empty((len(inclusion), 0))  # orthonormal, of the columns that are chosen
    for at in widest:
        rest = inclusion[:, at]
        for _ in range(2):  # once more, for what rounding has left
            rest = rest - basis @ (basis.T @ rest)
        if rest @ rest > statistics.SAME * spread[at]:
            chosen.append(at)
            basis = np.column_stack([basis, rest / np.sqrt(rest @ rest)])
    return chosen


def _estimate(value: float, variance: float, problems: int) -> _Estimate:
    error = math.sqrt(max(0.0, variance) * problems / (problems - 1))
    if error <= statistics.SAME:  # all alike, which proves nothing of problems that were not seen
        return _Estimate(value, statistics.paired_interval_of([value] * problems), 1.0, problems)
    half = statistics.t_quantile((1 + statistics.LEVEL) / 2, problems - 1) * error
    p = statistics.t_p_value(value / error, problems - 1)
    interval = statistics.Interval(max(-1.0, value - half), min(1.0, value + half))
    return _Estimate(value, interval, p, problems)


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
