"""How much of the differences between the gains of a grid is each key's. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from engines.pipeline.evaluation.comparison import LEVEL
from engines.pipeline.evaluation.intervals import beta_cdf


@dataclass(frozen=True, slots=True)
class Gain:
    """What a cell gained on one held-out set; `error` is the standard error of that difference."""

    settings: Mapping[str, str]  # the swept keys with the cell's values
    gain: float
    error: float | None  # None: there is no variance to measure it by
    questions: int


@dataclass(frozen=True, slots=True)
class KeySpread:
    """One swept key's part in the differences between the cells."""

    key: str
    means: Mapping[str, float]  # mean gain by value
    share: float  # of the sum of squares, [0, 1]
    deviation: float  # standard deviation of the value's effect, as a random one
    p: float  # that such a spread comes of the rest alone

    @property
    def verdict(self) -> str:
        return "matters" if self.p <= 1 - LEVEL else "cannot tell"


@dataclass(frozen=True, slots=True)
class Spread:
    """A whole grid on one set; `rest` is what no key explains by itself, as a share."""

    keys: tuple[KeySpread, ...]
    rest: float
    by_noise: bool  # there was no rest to compare with: the noise of measuring stood in


def decompose(gains: Sequence[Gain]) -> Spread | None:
    """Split the spread of a full grid's gains by key; None where there is none to split.

    Two-way and higher ANOVA without replication. Of N gains y with mean m, key K with its a values:

        SS_K = N/a · Σ_v (m_v - m)²      MS_K = SS_K / (a - 1)      share_K = SS_K / Σ (y - m)²
        SS_rest = Σ (y - m)² - Σ_K SS_K      df_rest = N - 1 - Σ_K (a_K - 1)
        F_K = MS_K / MS_rest      deviation_K = √max(0, (MS_K - MS_rest) · a / N)

    The rest are interactions and chance. A grid of one key has none: the mean squared standard
    error of the gains stands in, with the degrees of freedom of the questions. All cells are
    measured on the same questions, which makes their errors alike and that test a careful one.

    Source: Searle, Casella, McCulloch, Variance Components (1992), ch. 3 and 4.
    """
    n, mean = len(gains), fmean(one.gain for one in gains)
    total = math.fsum((one.gain - mean) ** 2 for one in gains)
    if n < 2 or total < 1e-12:
        return None
    found: list[tuple[str, dict[str, float], float]] = []
    for key in gains[0].settings:
        values = dict.fromkeys(one.settings[key] for one in gains)
        means = {v: fmean(o.gain for o in gains if o.settings[key] == v) for v in values}
        if len(values) > 1:
            between = math.fsum((m - mean) ** 2 for m in means.values()) * n / len(values)
            found.append((key, means, between))
    df_rest = n - 1 - sum(len(means) - 1 for _, means, _ in found)
    rest = max(0.0, total - math.fsum(between for *_, between in found))
    if by_noise := df_rest < 1:
        errors = [one.error for one in gains if one.error is not None]
        unit = fmean(error**2 for error in errors) if errors else 0.0
        df_rest = max(1, min(one.questions for one in gains) - 1)
    else:
        unit = rest / df_rest
    spreads = []
    for key, means, between in found:
        square = between / (len(means) - 1)
        p = float(square < 1e-12)
        if unit > 1e-12:
            p = f_tail(square / unit, len(means) - 1, df_rest)
        component = max(0.0, square - unit) * len(means) / n
        spreads.append(KeySpread(key, means, between / total, math.sqrt(component), p))
    return Spread(tuple(spreads), rest / total, by_noise)


def f_tail(f: float, df_between: int, df_rest: int) -> float:
    """Probability that an F variable exceeds f: I_{d2/(d2+d1·f)}(d2/2, d1/2)."""
    return beta_cdf(df_rest / (df_rest + df_between * f), df_rest / 2, df_between / 2)
