"""Effects of many experiences at once: against a plain computation, and in simulated libraries."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import scipy  # its parts are loaded where they are used: they take a second

from engines.pipeline.effect.worth import (
    Observation,
    dropout,
    false_discovery_bounds,
    random_half,
    regress,
    smallest_effect,
)
from tests.bench.utility import NAMES, halves, practice, tally

FEW = ("E1", "E2", "E3", "E4")


def some_tries(seed: int, problems: int, k: int) -> list[Observation]:
    """E1 helps, E2 and E3 say the same: one of them is enough."""
    chance, found = random.Random(seed), []
    for problem in range(problems):
        base = chance.uniform(0.1, 0.4)
        for index in range(k):
            shown = frozenset(filter(random_half(seed, str(problem), index), FEW))
            right = base + 0.2 * ("E1" in shown) + 0.35 * bool({"E2", "E3"} & shown)
            found.append(Observation(f"p{problem}", problem, shown, float(chance.random() < right)))
    return found


def test_effects_and_intervals_equal_least_squares_with_a_dummy_for_every_problem() -> None:
    tries = some_tries(1, problems=24, k=7)  # odd: halves are not quite balanced
    found = regress(tries, FEW, "inclusion")
    shown = np.array([[name in one.shown for name in FEW] for one in tries], float)
    dummies = np.array([[one.problem == f"p{p}" for p in range(24)] for one in tries], float)
    x, y = np.hstack([shown, dummies]), np.array([one.reward for one in tries])
    slopes = np.linalg.lstsq(x, y, rcond=None)[0]
    bread, residuals = np.linalg.pinv(x.T @ x), y - x @ slopes
    scores = np.array([(x * residuals[:, None])[dummies[:, p] == 1].sum(0) for p in range(24)])
    variance = bread @ scores.T @ scores @ bread * 24 / 23 * 167 / (168 - 4)
    for at, name in enumerate(FEW):
        effect, error = found.single[name], math.sqrt(variance[at, at])
        half = scipy.stats.t.ppf(0.975, 23) * error
        assert effect.difference == pytest.approx(slopes[at], abs=1e-9)
        assert (effect.low, effect.high) == pytest.approx((slopes[at] - half, slopes[at] + half))
        assert (effect.problems, effect.rollouts, effect.method) == (24, 168, "inclusion")
    p = [2 * scipy.stats.t.sf(abs(slopes[at]) / math.sqrt(variance[at, at]), 23) for at in range(4)]
    expected = scipy.stats.false_discovery_control(p)
    bounds = [found.single[name].false_discovery for name in FEW]
    assert bounds == pytest.approx(list(expected))


def test_what_did_not_vary_is_not_told_of() -> None:
    tries = some_tries(3, problems=30, k=4)
    assert not regress(tries, ("E9",), "practice").single  # never shown
    alone = [one for n, one in enumerate(tries) if n % 4 == 0]  # one try a problem
    assert regress(alone, FEW, "practice").rollouts == 0
    twins = [
        Observation(o.problem, o.unit, {*o.shown, *(["E5"] if "E1" in o.shown else [])}, o.reward)
        for o in tries
    ]
    assert "E5" not in regress(twins, (*FEW, "E5"), "practice").single
    few = regress(tries[: 4 * 5], FEW, "practice")
    assert not few.single and few.problems == 5  # fewer problems than a verdict needs
    many = [f"E{n}" for n in range(60)]
    shown = [frozenset(filter(dropout(n, "p", n, 0.5), many)) for n in range(120)]
    sparse = [Observation(f"p{n // 4}", n // 4, each, n % 2) for n, each in enumerate(shown)]
    assert len(regress(sparse, many, "practice").single) == 30  # four rollouts each


def test_rewards_that_are_all_alike_prove_little() -> None:
    tries = [Observation(o.problem, o.unit, o.shown, 1.0) for o in some_tries(4, 12, 4)]
    effect = regress(tries, FEW, "inclusion").single["E1"]
    assert (effect.difference, effect.verdict) == (0.0, "cannot tell")
    assert effect.low < -0.2 and effect.high > 0.2


def test_halves_are_opposite_in_pairs_and_dropout_has_its_chance() -> None:
    first, second, third = (random_half(5, "p", index) for index in range(3))
    assert [first(name) for name in NAMES] == [not second(name) for name in NAMES]
    assert [first(name) for name in NAMES] != [third(name) for name in NAMES]
    groups = [[dropout(seed, "p", n, 0.1)("E1") for n in range(8)] for seed in range(1000)]
    assert sum(map(sum, groups)) / 8000 == pytest.approx(0.9, abs=0.007)  # 4.5 standard errors
    assert {8 - sum(group) for group in groups} == {0, 1}  # as even as can be
    for place in range(8):
        assert 0.85 < sum(group[place] for group in groups) / 1000 < 0.95
    assert all(dropout(seed, "p", 3, 0.0)("E1") for seed in range(50))


def test_what_a_measurement_can_show() -> None:
    assert smallest_effect(1024, 128, 20) == pytest.approx(0.089, abs=0.001)
    assert smallest_effect(1024, 5, 20) == smallest_effect(20, 10, 20) == math.inf
    assert smallest_effect(2048, 64, 20, 0.9) > smallest_effect(1024, 64, 20)
    assert false_discovery_bounds([0.04, 0.01, 0.9]) == pytest.approx([0.06, 0.03, 0.9])


@pytest.mark.nightly
def test_simulated_libraries_give_up_what_is_worth_something_and_little_else() -> None:
    found = tally(halves, "spread", 12).facts()
    # 60 real ones and 180 idle ones: 3 standard errors below 0.90, and above 0.06.
    assert found["found"] >= 0.78 and found["false_of_idle"] <= 0.11 and not found["wrong_way"]
    assert found["standard_error"] == pytest.approx(0.026, abs=0.003)
    free = tally(practice, "spread", 8).facts()
    assert free["found"] >= 0.60 and free["false_of_idle"] <= 0.12
