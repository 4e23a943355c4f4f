"""The probabilities behind intervals and verdicts, against scipy and against paper."""

from __future__ import annotations

import math
import random

import pytest
import scipy  # its parts are loaded where they are used: they take a second

from engines.pipeline.evaluation.statistics import (
    beta_cdf,
    beta_quantile,
    sign_test,
    t_quantile,
)


def log_uniform(rng: random.Random, low: float, high: float) -> float:
    return math.exp(rng.uniform(math.log(low), math.log(high)))


def test_beta_probabilities_and_quantiles_equal_scipys() -> None:
    rng = random.Random(3)
    for _ in range(600):
        a, b = log_uniform(rng, 0.01, 1e4), log_uniform(rng, 0.01, 1e4)
        x = rng.choice((rng.random(), rng.betavariate(a, b)))  # often where the mass is
        assert beta_cdf(x, a, b) == pytest.approx(scipy.special.betainc(a, b, x), abs=1e-9), (
            a,
            b,
            x,
        )
        p = rng.random()
        found = beta_quantile(p, a, b)
        assert found == pytest.approx(scipy.special.betaincinv(a, b, p), abs=1e-9), (a, b, p)


def test_student_quantiles_equal_scipys() -> None:
    rng = random.Random(4)
    for _ in range(600):
        df = rng.choice((rng.randint(1, 200), log_uniform(rng, 0.5, 1e4)))
        p = rng.choice((rng.random(), log_uniform(rng, 1e-6, 0.5), 0.5 + rng.random() * 1e-6))
        assert t_quantile(p, df) == pytest.approx(scipy.stats.t.ppf(p, df), rel=1e-9, abs=1e-12), (
            p,
            df,
        )


def test_known_values_come_out() -> None:
    # Beta(1, 1) is uniform; Beta(n, 1) has x^n, so its quantile is p^(1/n).
    assert beta_cdf(0.3, 1, 1) == pytest.approx(0.3, abs=1e-15)
    assert beta_quantile(0.025, 20, 1) == pytest.approx(0.025 ** (1 / 20), abs=1e-15)
    # Student's t with 1 degree of freedom is Cauchy: quantile tan(π(p - 1/2)).
    assert t_quantile(0.975, 1) == pytest.approx(math.tan(math.pi * 0.475), rel=1e-12)
    # With 2: t = (2p-1) / sqrt(2p(1-p)) = 0.95 / sqrt(0.04875) = 4.302653.
    assert t_quantile(0.975, 2) == pytest.approx(0.95 / math.sqrt(0.04875), rel=1e-12)


def test_the_ends_of_a_distribution_are_its_ends() -> None:
    assert (beta_cdf(0, 2, 3), beta_cdf(1, 2, 3)) == (0, 1)
    assert (beta_quantile(0, 2, 3), beta_quantile(1, 2, 3)) == (0, 1)
    assert t_quantile(0.5, 5) == 0
    assert t_quantile(0.1, 5) == -t_quantile(0.9, 5)


def test_a_quantile_deep_in_a_tail_keeps_its_digits() -> None:
    assert beta_quantile(1e-9, 0.05, 3) == pytest.approx(
        scipy.special.betaincinv(0.05, 3, 1e-9), rel=1e-9
    )
    assert t_quantile(1e-9, 3) == pytest.approx(scipy.stats.t.ppf(1e-9, 3), rel=1e-9)


def test_the_sign_test_equals_scipys_and_stays_exact_for_many() -> None:
    rng = random.Random(5)
    for _ in range(300):
        wins, losses = rng.randint(0, 120), rng.randint(0, 120)
        if wins + losses:
            wanted = scipy.stats.binomtest(wins, wins + losses).pvalue
            assert sign_test(wins, losses) == pytest.approx(wanted, abs=1e-12)
    assert sign_test(2600, 2400) == pytest.approx(
        scipy.stats.binomtest(2600, 5000).pvalue, rel=1e-9
    )


@pytest.mark.parametrize(
    ("wins", "losses", "p"),
    [
        (0, 0, 1.0),  # nothing differs
        (5, 0, 1 / 16),  # 2 · 1 / 2^5
        (6, 0, 1 / 32),  # the first that passes at 0.05
        (1, 8, 20 / 512),  # 2 · (1 + 9) / 2^9
        (3, 3, 1.0),  # 2 · (1 + 6 + 15 + 20) / 64 exceeds 1
    ],
)
def test_the_sign_test_counts_by_hand(wins: int, losses: int, p: float) -> None:
    assert sign_test(wins, losses) == sign_test(losses, wins) == p


@pytest.mark.parametrize(
    "call",
    [
        lambda: beta_cdf(0.5, 0, 1),
        lambda: beta_quantile(1.1, 1, 1),
        lambda: t_quantile(0, 3),
        lambda: t_quantile(0.9, -1),
    ],
)
def test_what_is_no_distribution_is_refused(call: object) -> None:
    assert callable(call)
    with pytest.raises(ValueError, match=r"positive|probability"):
        call()
