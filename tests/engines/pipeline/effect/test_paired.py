"""Paired tests beside scipy and statsmodels, and how often they mislead and miss."""

from __future__ import annotations

import gc
import math
import random
import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import scipy  # its parts are loaded where they are used: they take a second

from engines.pipeline.evaluation import statistics as paired
from engines.pipeline.evaluation.statistics import (
    bootstrap_interval,
    detectable_effect,
    holm_adjusted,
    paired_interval_of,
    power_at,
    sign_flip_test,
    standard_error,
)
from engines.pipeline.evaluation.verdict import compare, paired_changes

Tries = dict[str, list[float]]


def statsmodels(part: str) -> Any:
    """Imported where it is used: it takes a second of each worker that collects this module."""
    with warnings.catch_warnings():  # its formula parts speak to an older pandas
        warnings.simplefilter("ignore")
        return import_module(f"statsmodels.{part}")


def tried(rng: random.Random, chances: Sequence[float], k: int, spread: float = 0.0) -> Tries:
    """K tries a problem: right or wrong, or with `spread` graded around the chance."""

    def one(chance: float) -> float:
        if not spread:
            return float(rng.random() < chance)
        return min(1.0, max(0.0, rng.gauss(chance, spread)))

    return {f"q{n}": [one(chance) for _ in range(k)] for n, chance in enumerate(chances)}


def flips(changes: Sequence[float]) -> float:
    """The share of all signings, listed by scipy."""
    found = scipy.stats.permutation_test(
        (np.array(changes),),
        lambda x, axis: x.sum(axis=axis),
        permutation_type="samples",
        n_resamples=np.inf,
        vectorized=True,
    )
    return float(found.pvalue)


def test_single_tries_are_mcnemars_exact_test() -> None:
    rng = random.Random(1)
    for _ in range(1000):
        wins, losses, ties = rng.randint(0, 40), rng.randint(0, 40), rng.randint(0, 60)
        table = [[ties, losses], [wins, 0]]
        wanted = (
            statsmodels("stats.contingency_tables").mcnemar(table, exact=True).pvalue
            if wins + losses
            else 1.0
        )
        changes = [1.0] * wins + [-1.0] * losses + [0.0] * ties
        assert sign_flip_test(changes) == pytest.approx(wanted, abs=1e-12)


def test_few_changes_are_flipped_as_scipy_does() -> None:
    rng = random.Random(2)
    for _ in range(1000):
        n, most = rng.randint(2, 9), rng.choice((2, 3, 5, 1024))
        # Whole numbers for scipy, which takes equal sums that round apart for unequal ones.
        units = [rng.randint(0, most) - rng.randint(0, most) for _ in range(n)]
        found = sign_flip_test([unit / most for unit in units])
        assert found == pytest.approx(flips(units), abs=1e-12), units


@pytest.mark.parametrize("k", [2, 3, 8])
def test_more_changes_are_counted_exactly(k: int) -> None:
    # By dynamic programming over sums in units of 1/k, which is another way to the same count.
    rng = random.Random(k)
    for _ in range(40):
        units = [rng.randint(0, k) - rng.randint(0, k) for _ in range(rng.randint(15, 60))]
        ways = {0: 1}
        for unit in (u for u in units if u):
            ways = {
                at: ways.get(at - unit, 0) + ways.get(at + unit, 0)
                for at in {s + d for s in ways for d in (unit, -unit)}
            }
        far = sum(count for at, count in ways.items() if abs(at) >= abs(sum(units)))
        wanted = far / 2 ** sum(u != 0 for u in units)
        assert sign_flip_test([u / k for u in units]) == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize(("n", "within"), [(40, 0.002), (400, 0.006), (3000, 0.01)])
def test_graded_changes_without_a_common_unit_are_near_the_t_test(n: int, within: float) -> None:
    # Without outliers the randomisation test tends to Student's; the same z is drawn, not derived.
    rng = random.Random(n)
    for shift in (0.0, 1.0, 2.0, 3.0):
        changes = [rng.gauss(shift * 0.2 / math.sqrt(n), 0.2) for _ in range(n)]
        wanted = scipy.stats.ttest_1samp(changes, 0).pvalue
        assert sign_flip_test(changes) == pytest.approx(wanted, abs=within)


@pytest.mark.parametrize("large", [1, 4, 12])
def test_few_large_changes_among_hundreds_of_small_ones_are_signed_exactly(
    large: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(large)
    small = [rng.choice((-1, 1)) * rng.choice((1, 2, 3)) / 1000 for _ in range(600)]
    changes = [rng.choice((0.75, 1.0)) for _ in range(large)] + small
    found = sign_flip_test(changes)
    monkeypatch.setattr(paired, "_MOST_EXACT", 1_000)  # every way is counted
    assert found == pytest.approx(sign_flip_test(changes), rel=0.03, abs=2e-5)


def test_what_was_seen_is_not_told_from_itself_by_rounding() -> None:
    for seed in range(20):
        rng = random.Random(seed)
        large = [rng.uniform(0.3, 0.9) for _ in range(5)]
        small = [1e-6, -1e-6] * 300
        # All five one way: 1 of 32 ways each side, and half of those ties go to the small ones.
        assert sign_flip_test(large + small) == pytest.approx(1 / 32, rel=0.05)


def test_t_intervals_equal_those_clustered_by_problem() -> None:
    rng, wide = random.Random(4), scipy.stats.t.ppf(0.975, np.arange(31) - 1)
    for round_ in range(1000):
        n, k = rng.randint(4, 30), rng.choice((2, 3, 4))
        chances = [rng.random() for _ in range(n)]
        before, after = tried(rng, chances, k, 0.3), tried(rng, chances, k, 0.3)
        changes = paired_changes(before, after)
        found = paired_interval_of(changes)
        mean, error = np.mean(changes), np.std(changes, ddof=1) / math.sqrt(n)
        assert standard_error(changes) == pytest.approx(error, abs=1e-12)
        low, high = mean - wide[n] * error, mean + wide[n] * error
        assert (found.low, found.high) == pytest.approx((max(-1, low), min(1, high)), abs=1e-9)
        if round_ % 20 == 0:  # statsmodels takes 20 times as long to say the same
            rows = [b - a for q in before for a, b in zip(before[q], after[q], strict=True)]
            fit = (
                statsmodels("regression.linear_model")
                .OLS(rows, np.ones(n * k))
                .fit(
                    cov_type="cluster", cov_kwds={"groups": np.repeat(np.arange(n), k)}, use_t=True
                )
            )
            assert fit.bse[0] == pytest.approx(error, abs=1e-12)
            assert tuple(fit.conf_int()[0]) == pytest.approx((low, high), abs=1e-9)


def test_holms_correction_equals_statsmodels(monkeypatch: pytest.MonkeyPatch) -> None:
    # It searches all of memory for garbage at each call: minutes, among the tests of a whole run.
    monkeypatch.setattr(gc, "collect", lambda *_: 0)
    rng = random.Random(5)
    assert holm_adjusted([]) == ()
    for _ in range(1000):
        values = [rng.choice((rng.random(), rng.random() / 50)) for _ in range(rng.randint(1, 8))]
        wanted = statsmodels("stats.multitest").multipletests(values, method="holm")[1]
        assert holm_adjusted(values) == pytest.approx(list(wanted), abs=1e-12)


def test_power_and_the_smallest_effect_are_near_the_noncentral_ts() -> None:
    for n in (10, 40, 200):
        for effect in (0.02, 0.1, 0.3):
            exact = statsmodels("stats.power").TTestPower().power(effect / 0.4, n, 0.05)
            assert power_at(effect, 0.4 / math.sqrt(n), n) == pytest.approx(exact, abs=0.02)
        smallest = detectable_effect(0.4 / math.sqrt(n), n)
        assert statsmodels("stats.power").TTestPower().power(
            smallest / 0.4, n, 0.05
        ) == pytest.approx(0.8, abs=0.03)


def test_a_bootstrap_is_near_scipys_and_follows_its_seed() -> None:
    rng = random.Random(6)
    changes = [rng.choice((0.0, 0.0, 0.0, rng.random())) for _ in range(80)]
    found = bootstrap_interval(changes, 1)
    wanted = scipy.stats.bootstrap(
        (changes,), np.mean, method="percentile", rng=np.random.default_rng(1), vectorized=True
    ).confidence_interval
    assert (found.low, found.high) == pytest.approx((wanted.low, wanted.high), abs=0.01)
    assert found == bootstrap_interval(changes, 1) != bootstrap_interval(changes, 2)


def test_of_a_thousand_null_pairs_at_most_one_in_twenty_misleads() -> None:
    rng, misled = random.Random(7), 0
    for pair in range(1000):
        n, k, spread = rng.randint(10, 60), rng.choice((1, 2, 4)), 0.25 * (pair % 2)
        chances = [rng.random() for _ in range(n)]
        found = compare(tried(rng, chances, k, spread), tried(rng, chances, k, spread))
        assert found is not None
        misled += found.verdict != "cannot tell"
    assert misled / 1000 <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / 1000)


def unpaired_power(before: Sequence[Tries], after: Sequence[Tries], sides: np.ndarray) -> int:
    """How often the same test without pairs tells: Welch's t over problems, and permutation."""
    first, last = (
        np.array([[np.mean(tries) for tries in one.values()] for one in rounds])
        for rounds in (before, after)
    )
    with warnings.catch_warnings():  # of sides that are all right
        warnings.simplefilter("ignore")
        welch = scipy.stats.ttest_ind(first, last, axis=1, equal_var=False).pvalue <= 0.05
    gain = last.sum(axis=1) - first.sum(axis=1)
    far = np.abs(np.hstack((first, last)) @ sides.T) >= np.abs(gain)[:, None] - 1e-9
    permuted = (1 + far.sum(axis=1)) / (1 + len(sides)) <= 0.05
    return int((welch & permuted & (gain > 0)).sum())


def test_pairs_tell_at_least_as_often_as_the_same_test_without_pairs() -> None:
    rng, draw, worse = random.Random(8), np.random.default_rng(8), []
    sides = {
        n: draw.permuted(np.tile(np.repeat([1.0, -1.0], n), (400, 1)), axis=1) for n in (16, 24, 40)
    }
    for case in range(100):
        n, k, spread = rng.choice(tuple(sides)), rng.choice((1, 2, 4)), 0.25 * (case % 2)
        shape, gain = rng.choice((0.5, 1.0)), rng.uniform(0.08, 0.3)
        before, after = [], []
        for _ in range(12):
            chances = [rng.betavariate(shape, shape) for _ in range(n)]
            before.append(tried(rng, chances, k, spread))
            after.append(tried(rng, [min(1.0, chance + gain) for chance in chances], k, spread))
        found = map(compare, before, after)
        paired = sum(one is not None and one.verdict == "helps" for one in found)
        unpaired = unpaired_power(before, after, sides[n])
        if paired < unpaired:
            worse.append((n, k, spread, gain, paired, unpaired))
    assert worse == []
