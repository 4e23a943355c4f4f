"""A group-sequential test of whether a change helps: when to stop, and what to say then. Pure.

Tries come in pairs of one problem and seed, without the change and with it. After each of a few
looks the change is found to help, to hurt, or to be hopeless; else more tries are made.

*Evidence.* The exact sign-flip test (Fisher 1935): where a change does nothing, the two tries of a
pair could change places. The mid-p of Lancaster (1961) is used, which is less wasteful than p where
outcomes are few. Where the problems tried are a sample of more, the difference must also stand
against the spread between problems (two-stage sampling with the finite population correction,
Cochran 1977 §10.3), since a change may help on those that were drawn and not on the rest.

*Stopping for use.* Lan and DeMets (1983): each look may spend a part of the error, here
error · t² of Kim and DeMets (1987) once a share t of the tries is in. The boundaries follow by
the recursion of Armitage, McPherson and Rowe (1969), as in Jennison and Turnbull (2000) ch. 19.

*Stopping for futility.* Predictive power (Spiegelhalter, Freedman and Blackburn 1986) below
`HOPELESS`. It binds nobody: the error holds whether or not the advice is taken.

`tests.bench.gate` shows by simulation what the rule's error and power are.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from statistics import NormalDist

from engines.core.frozen import frozen
from engines.core.types import EffectVerdict
from engines.pipeline.evaluation import statistics

HOPELESS = 0.02
"""Predictive power below which tries are saved for something better."""
MOST_LOOKS = 4
POWER = 0.8
_NORMAL = NormalDist()
_FLOOR = 1e-15  # of a probability that is turned into a z
_GRID = 100  # a second for every power; the boundaries move by less than 0.001 with 400

Pairs = Sequence[Sequence[float]]
"""A row a problem: of each of its pairs, the reward with the change less that without it."""


@frozen
class Look:
    """What is known by then: the first `tries` tries of the first `problems` problems."""

    problems: int
    tries: int


@dataclass(frozen=True)
class SequentialPlan:
    """The looks of one decision, and how much error it may spend.

    `error` is the chance that a change without any effect is found to help, and that of finding it
    to hurt. `pool` is how many problems the claim is about: those tried are some of them, or all.
    """

    problems: int
    k: int
    error: float
    pool: int

    @cached_property
    def looks(self) -> tuple[Look, ...]:
        """Evenly spread, each over all problems where a problem is tried more than once."""
        if self.k == 1:
            count = max(1, min(MOST_LOOKS, self.problems // 10))
            return tuple(Look(-(-self.problems * n // count), 1) for n in range(1, count + 1))
        count = min(MOST_LOOKS, self.k)
        return tuple(Look(self.problems, -(-self.k * n // count)) for n in range(1, count + 1))

    @cached_property
    def fractions(self) -> tuple[float, ...]:
        """The share of all tries that is in at each look."""
        return tuple(look.problems * look.tries / (self.problems * self.k) for look in self.looks)

    @property
    def boundaries(self) -> tuple[float, ...]:
        """The z of each look from which a change is found to help."""
        return boundaries_for(self.fractions, self.error)

    def smallest_effect(self) -> float:
        """The difference in mean reward that would be found 4 times in 5, as a plan.

        For right-or-wrong tries at p = 1/2, all independent; more than 1 says that none would.
        """
        spread = math.sqrt(0.5 / (self.problems * self.k))
        return _drift_for_power(self.fractions, self.boundaries) * spread


@frozen
class LookResult:
    """What the tries so far say; `verdict` None: look again."""

    verdict: EffectVerdict | None
    difference: float
    interval: statistics.Interval  # 95 %, holds at whichever look one stops


def judge_look(plan: SequentialPlan, number: int, pairs: Pairs) -> LookResult:
    """Judge the pairs that are known at a look, numbered from 0; unjudged tries are left out."""
    rows = [row for row in pairs if row]
    if not rows:
        verdict: EffectVerdict | None = "cannot tell" if number + 1 == len(plan.looks) else None
        return LookResult(verdict, 0.0, statistics.Interval(-1.0, 1.0))
    changes = [math.fsum(row) / len(row) for row in rows]
    difference = math.fsum(changes) / len(changes)
    helps, hurts = statistics.sign_flip_tails([change for row in rows for change in row])
    spread = _spread(rows, changes, plan.pool)
    if len(rows) < plan.pool:
        # A few problems that all moved alike show no spread, and prove little of the rest.
        up, down = statistics.sign_flip_tails(changes)
        if len(rows) > 1 and spread:
            up, down = (
                statistics.t_tail(d / spread, len(rows) - 1) for d in (difference, -difference)
            )
        helps, hurts = max(helps, up), max(hurts, down)
    z, z_hurts = (_NORMAL.inv_cdf(1 - min(max(p, _FLOOR), 1 - _FLOOR)) for p in (helps, hurts))
    boundary, last = plan.boundaries[number], number + 1 == len(plan.looks)
    verdict = None
    if z >= boundary:
        verdict = "helps"
    elif z_hurts >= boundary:
        verdict = "hurts"
    elif last or _predictive_power(plan, number, z) < HOPELESS:
        verdict = "cannot tell"
    if spread:
        half = boundaries_for(plan.fractions, 0.025)[number] * spread
        interval = statistics.Interval(max(-1.0, difference - half), min(1.0, difference + half))
    else:
        interval = statistics.paired_interval_of(changes)
    return LookResult(verdict, difference, interval)


def _spread(rows: Pairs, changes: Sequence[float], pool: int) -> float:
    """The standard error of the mean change over `pool` problems, of which `rows` were tried."""
    count, pairs = len(rows), sum(map(len, rows))
    seen = min(1.0, count / max(pool, count))
    mean = math.fsum(changes) / count
    all_changes = [change for row in rows for change in row]
    within = math.fsum((change - mean) ** 2 for change in all_changes) / max(1, pairs - 1) / pairs
    between = math.fsum((change - mean) ** 2 for change in changes) / max(1, count - 1) / count
    return math.sqrt((1 - seen) * between + seen * within)


def _predictive_power(plan: SequentialPlan, number: int, z: float) -> float:
    """The chance to end above the last boundary, whatever the effect was before the first try."""
    t, last = plan.fractions[number], plan.boundaries[-1]
    return 1 - _NORMAL.cdf((last * math.sqrt(t) - z) / math.sqrt(1 - t))


@lru_cache(maxsize=64)
def boundaries_for(fractions: tuple[float, ...], error: float) -> tuple[float, ...]:
    """The z at each share of the tries so that a null crosses any with probability `error`."""
    found: list[float] = []
    spent, reached = 0.0, _Reached()
    for before, t in pairwise((0.0, *fractions)):
        share, spent = error * t**2 - spent, error * t**2
        low, high = -8.0, 8.0 + 8.0 * math.sqrt(t)
        while high - low > 1e-6:
            middle = (low + high) / 2
            low, high = (
                (middle, high) if reached.above(middle, t - before) > share else (low, middle)
            )
        found.append(high / math.sqrt(t))
        reached = reached.move(high, t - before)
    return tuple(found)


@lru_cache(maxsize=64)
def _drift_for_power(fractions: tuple[float, ...], boundaries: tuple[float, ...]) -> float:
    """The z to be expected of all tries at which a boundary is crossed with `POWER`."""
    low, high = 0.0, 20.0
    while high - low > 0.005:
        drift = (low + high) / 2
        crossed, reached = 0.0, _Reached()
        for (before, t), z in zip(pairwise((0.0, *fractions)), boundaries, strict=True):
            crossed += reached.above(z * math.sqrt(t), t - before, drift)
            reached = reached.move(z * math.sqrt(t), t - before, drift)
        low, high = (drift, high) if crossed < POWER else (low, drift)
    return high


@frozen
class _Reached:
    """Where the score stands among those that have crossed no boundary yet.

    The score of Brownian motion: after a share t of all tries it is z·√t, and its mean drift·t.
    """

    places: Sequence[float] = (0.0,)
    masses: Sequence[float] = (1.0,)

    def above(self, boundary: float, more: float, drift: float = 0.0) -> float:
        """The probability to be above a boundary once a share `more` has come in."""
        width, mean = math.sqrt(2 * more), drift * more
        return math.fsum(
            mass * math.erfc((boundary - place - mean) / width) / 2
            for place, mass in zip(self.places, self.masses, strict=True)
        )

    def move(self, boundary: float, more: float, drift: float = 0.0) -> "_Reached":
        """Those that stay below it, by Simpson's rule on a grid."""
        mean, sd = drift * more, math.sqrt(more)
        low = min(self.places) + mean - 6 * sd
        step = (boundary - low) / _GRID
        places = [low + step * n for n in range(_GRID + 1)]
        scale = 1 / (sd * math.sqrt(2 * math.pi))
        held = list(zip(self.places, self.masses, strict=True))
        masses = []
        for n, place in enumerate(places):
            weight = step / 3 * (1 if n in (0, _GRID) else 4 if n % 2 else 2) * scale
            density = math.fsum(
                mass * math.exp(-0.5 * ((place - before - mean) / sd) ** 2) for before, mass in held
            )
            masses.append(weight * density)
        return _Reached(places, masses)
