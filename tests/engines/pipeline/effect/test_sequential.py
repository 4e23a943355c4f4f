"""The sequential test: its boundaries, its exact tails, and what it accepts and refuses."""

from __future__ import annotations

import itertools

import pytest
import scipy  # its parts are loaded where they are used: they take a second

from engines.pipeline.effect.sequential import (
    Look,
    SequentialPlan,
    boundaries_for,
    judge_look,
)
from engines.pipeline.evaluation.statistics import sign_flip_tails
from tests.bench.gate import simulate

PLAN = SequentialPlan(40, 4, 0.005, 40)


def test_looks_come_after_every_try_of_all_problems():
    assert PLAN.looks == tuple(Look(40, tries) for tries in (1, 2, 3, 4))
    assert SequentialPlan(40, 8, 0.05, 40).looks[0] == Look(40, 2)
    assert SequentialPlan(40, 2, 0.05, 40).fractions == (0.5, 1.0)


def test_where_each_problem_is_tried_once_looks_come_after_more_problems():
    looks = SequentialPlan(50, 1, 0.05, 50).looks
    assert looks == (Look(13, 1), Look(25, 1), Look(38, 1), Look(50, 1))
    assert SequentialPlan(9, 1, 0.05, 9).looks == (Look(9, 1),)


@pytest.mark.parametrize("error", [0.05, 0.005, 0.0002])
@pytest.mark.parametrize("fractions", [(0.25, 0.5, 0.75, 1.0), (1 / 3, 2 / 3, 1.0), (1.0,)])
def test_a_null_crosses_the_boundaries_as_often_as_the_error_says(error, fractions):
    found = boundaries_for(fractions, error)
    # corr(Z_i, Z_j) = sqrt(t_i / t_j) for t_i < t_j
    joint = [[(min(a, b) / max(a, b)) ** 0.5 for b in fractions] for a in fractions]
    inside = scipy.stats.multivariate_normal(cov=joint, abseps=1e-8, releps=1e-8, seed=1).cdf(found)
    assert 1 - inside == pytest.approx(error, rel=0.02)


def test_the_first_look_spends_its_share_alone():
    # error · t² at t = 1/4
    assert scipy.stats.norm.sf(PLAN.boundaries[0]) == pytest.approx(0.005 / 16, rel=1e-4)


def test_right_or_wrong_pairs_are_judged_by_mcnemars_mid_p():
    up, down = sign_flip_tails([1.0] * 12 + [-1.0] * 4 + [0.0] * 9)
    pairs = scipy.stats.binom(16, 0.5)
    assert up == pytest.approx(pairs.sf(12) + pairs.pmf(12) / 2)
    assert down == pytest.approx(pairs.cdf(11) + pairs.pmf(12) / 2)


def test_graded_pairs_are_judged_by_every_way_to_flip_their_signs():
    changes = [0.5, 0.25, -0.1, 0.9, 0.33, -0.4]
    total = sum(changes)
    sums = [
        sum(sign * abs(change) for sign, change in zip(signs, changes, strict=True))
        for signs in itertools.product((1, -1), repeat=len(changes))
    ]
    more = sum(one > total + 1e-9 for one in sums)
    same = sum(abs(one - total) <= 1e-9 for one in sums)
    assert sign_flip_tails(changes)[0] == pytest.approx((more + same / 2) / len(sums))


def test_pairs_that_never_differ_tell_nothing():
    result = judge_look(PLAN, 3, [[0.0] * 4] * 40)
    assert (result.verdict, result.difference) == ("cannot tell", 0.0)
    assert result.interval.low < 0 < result.interval.high


def test_a_large_effect_is_found_early_and_a_loss_is_called_one():
    helped = [[1.0]] * 24 + [[0.0]] * 16
    assert judge_look(PLAN, 0, helped).verdict == "helps"
    assert judge_look(PLAN, 0, [[-x for x in row] for row in helped]).verdict == "hurts"


def test_what_looks_hopeless_is_given_up_and_what_does_not_is_tried_on():
    assert judge_look(PLAN, 0, [[-1.0]] * 3 + [[0.0]] * 37).verdict == "cannot tell"
    assert judge_look(PLAN, 0, [[1.0]] * 5 + [[0.0]] * 35).verdict is None
    assert judge_look(PLAN, 3, [[1.0, 0, 0, 0]] * 5 + [[0.0] * 4] * 35).verdict == "cannot tell"


def test_of_a_sample_the_difference_must_stand_against_the_spread_of_problems():
    # A third gain wholly and a sixth lose wholly: sure of these 24, unsure of what else there is.
    rows = [[1.0] * 4] * 8 + [[-1.0] * 4] * 3 + [[0.0] * 4] * 13
    own, sample = (SequentialPlan(24, 4, 0.01, pool) for pool in (24, 1_000))
    assert judge_look(own, 3, rows).verdict == "helps"
    assert judge_look(sample, 3, rows).verdict == "cannot tell"
    widths = [
        found.interval.high - found.interval.low
        for found in (judge_look(own, 3, rows), judge_look(sample, 3, rows))
    ]
    assert widths[1] > 1.5 * widths[0]


def test_problems_whose_tries_were_not_judged_are_left_out():
    rows = [[1.0, 1.0]] * 12 + [[]] * 20 + [[0.0, 1.0]] * 8
    result = judge_look(PLAN, 1, rows)
    assert result.difference == pytest.approx((12 + 8 * 0.5) / 20)
    assert judge_look(PLAN, 0, [[]] * 40).verdict is None
    assert judge_look(PLAN, 3, [[]] * 40).verdict == "cannot tell"


@pytest.mark.parametrize(
    ("judged", "verdict"), [(1, "cannot tell"), (3, "cannot tell"), (9, "helps")]
)
def test_a_few_problems_that_all_gained_prove_nothing_of_many(judged: int, verdict: str):
    rows = [[1.0] * 4] * judged + [[]] * (40 - judged)
    assert judge_look(SequentialPlan(40, 4, 0.01, 1_000), 3, rows).verdict == verdict
    assert judge_look(SequentialPlan(judged, 4, 0.1, judged), 3, rows).verdict == "helps"


def test_the_smallest_effect_is_found_four_times_in_five():
    # One look: (z of 1 - error, plus z of 0.8) spreads of a pair at p = 1/2
    once = SequentialPlan(40, 1, 0.05, 40)
    fixed = (scipy.stats.norm.isf(0.05) + scipy.stats.norm.isf(0.2)) * (0.5 / 40) ** 0.5
    assert fixed < once.smallest_effect() < 1.1 * fixed
    assert PLAN.smallest_effect() > SequentialPlan(40, 4, 0.05, 40).smallest_effect()


def test_ten_operations_without_effect_rarely_get_one_accepted_and_claim_next_to_nothing():
    found = simulate("every difficulty", 0.0, runs=60)
    chance = (0.05 * 0.95 / 60) ** 0.5
    assert found.runs_with_one / found.runs <= 0.05 + 2 * chance
    assert found.claimed / found.runs <= 0.01 + 2 * 0.2 * chance  # an accepted one claims about 0.2
    assert found.raw / found.decided > 0.3  # what any raw improvement lets through


def test_what_helps_by_20_points_passes_and_what_costs_5_does_not():
    helps = simulate("every difficulty", 0.2, runs=30, seed=7)
    hurts = simulate("every difficulty", -0.05, runs=20)
    assert helps.accepted / helps.decided >= 0.95
    assert hurts.accepted / hurts.decided <= 0.02
    null = simulate("rehearsal with luck of its own", 0.0, runs=20)
    tried, decided = (
        sum(getattr(one, name) for one in (helps, hurts, null)) for name in ("tries", "decided")
    )
    assert tried / decided <= 0.6 * 160
