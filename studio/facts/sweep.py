"""All that is told of a sweep: each run before and after, and how much of a gain is each key's."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Literal

from engines.core.frozen import frozen
from engines.pipeline.evaluation.statistics import LEVEL, beta_cdf
from engines.pipeline.evaluation.verdict import Comparison
from studio.facts.subject import LIFTED, Subject


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain(Subject):
    """What a run gained on one held-out set."""

    data: str
    from_step: int
    to_step: int
    means: tuple[float, float]  # before and after
    n: tuple[int, int]  # judged rollouts of each
    error: float | None  # standard error of the gain; None: there is no variance to measure it by
    comparison: Comparison = field(metadata=LIFTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweptRun(Subject):
    """One run of the grid as it stands."""

    run: str
    settings: Mapping[str, str]  # the swept keys with the run's values
    status: str
    is_finished: bool
    held_out: tuple[Gain, ...]  # empty where it is not finished
    tokens: int | None  # what it paid itself; None: it has not begun
    cost_usd: float | None


@frozen
class KeySpread(Subject):
    """One swept key's part in the differences between the runs."""

    key: str
    means: Mapping[str, float]  # mean gain by value
    share: float  # of the sum of squares, [0, 1]
    deviation: float  # standard deviation of the value's effect, as a random one
    p: float  # that such a spread comes of the rest alone

    @property
    def verdict(self) -> Literal["matters", "cannot tell"]:
        return "matters" if self.p <= 1 - LEVEL else "cannot tell"


@frozen
class Spread(Subject):
    """The gains of a whole grid on one set; `rest` is the share that no key explains by itself."""

    keys: tuple[KeySpread, ...] = ()
    rest: float = 0.0
    by_noise: bool = False  # there was no rest to compare with: the noise of measuring stood in
    unknown: str = ""  # why nothing can be said


@frozen
class SweepFacts(Subject):
    """A sweep as it stands."""

    sweep: str
    keys: tuple[str, ...]
    runs: tuple[SweptRun, ...]

    @property
    def kind(self) -> str:
        return "Sweep"

    @property
    def finished(self) -> int:
        return sum(run.is_finished for run in self.runs)

    @property
    def spread(self) -> dict[str, Spread]:
        """By held-out set."""
        sets = dict.fromkeys(gain.data for run in self.runs for gain in run.held_out)
        return {data: _spread(self.runs, data) for data in sets}


def _spread(runs: Sequence[SweptRun], data: str) -> Spread:
    gains = [(run.settings, gain) for run in runs for gain in run.held_out if gain.data == data]
    if len(gains) < len(runs):
        unknown = f"{len(gains)} of {len(runs)} runs have a gain: all are needed"
        return Spread(unknown=unknown)
    return decompose(gains) or Spread(unknown="all runs gained the same")


def decompose(gains: Sequence[tuple[Mapping[str, str], Gain]]) -> Spread | None:
    """Split the spread of a full grid's gains by key; None where there is none to split.

    Two-way and higher ANOVA without replication. Of N gains y with mean m, key K with its a values:

        SS_K = N/a · Σ_v (m_v - m)²      MS_K = SS_K / (a - 1)      share_K = SS_K / Σ (y - m)²
        SS_rest = Σ (y - m)² - Σ_K SS_K      df_rest = N - 1 - Σ_K (a_K - 1)
        F_K = MS_K / MS_rest      deviation_K = √max(0, (MS_K - MS_rest) · a / N)

    The rest are interactions and chance. A grid of one key has none: the mean squared standard
    error of the gains stands in, with the degrees of freedom of the questions. All runs are
    measured on the same questions, which makes their errors alike and that test a careful one.

    Source: Searle, Casella, McCulloch, Variance Components (1992), ch. 3 and 4.
    """
    sizes = [(settings, gain.comparison.difference) for settings, gain in gains]
    n, mean = len(sizes), fmean(size for _, size in sizes)
    total = math.fsum((size - mean) ** 2 for _, size in sizes)
    if n < 2 or total < 1e-12:
        return None
    keys: list[tuple[str, dict[str, float], float]] = []
    for key in sizes[0][0]:
        by_value: dict[str, list[float]] = {}
        for settings, size in sizes:
            by_value.setdefault(settings[key], []).append(size)
        if len(by_value) > 1:
            means = {value: fmean(of_value) for value, of_value in by_value.items()}
            squares = math.fsum((m - mean) ** 2 for m in means.values())
            keys.append((key, means, squares * n / len(means)))
    df_rest = n - 1 - sum(len(means) - 1 for _, means, _ in keys)
    rest = max(0.0, total - math.fsum(between for *_, between in keys))
    by_noise = df_rest < 1
    if by_noise:
        errors = [gain.error for _, gain in gains if gain.error is not None]
        unit = fmean(error**2 for error in errors) if errors else 0.0
        df_rest = max(1, min(gain.comparison.questions for _, gain in gains) - 1)
    else:
        unit = rest / df_rest
    spreads = []
    for key, means, between in keys:
        square = between / (len(means) - 1)
        p = float(square < 1e-12)
        if unit > 1e-12:
            p = f_tail(square / unit, len(means) - 1, df_rest)
        component = max(0.0, square - unit) * len(means) / n
        spreads.append(KeySpread(key, means, between / total, math.sqrt(component), p))
    return Spread(tuple(spreads), rest / total, by_noise)


def f_tail(f: float, df_between: int, df_rest: int) -> float:
    """Return the probability that an F variable exceeds f: I_{d2/(d2+d1·f)}(d2/2, d1/2)."""
    return beta_cdf(df_rest / (df_rest + df_between * f), df_rest / 2, df_between / 2)
