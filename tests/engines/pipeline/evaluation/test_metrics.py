"""mean@k, pass@k, their intervals, and the verdict over a paired difference."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from statistics import fmean

import numpy as np
import pytest
import scipy  # its parts are loaded where they are used: they take a second

from engines.pipeline.evaluation.statistics import (
    Interval,
    Rate,
    group_by_question,
    mean_at_k,
    mean_interval,
    minimum_detectable_effect,
    pass_at_k,
    pass_curve,
    pass_rate,
    question_means,
    sign_test,
)
from engines.pipeline.evaluation.verdict import Comparison, compare

Row = Sequence[float | None]


def singles(rewards: Sequence[float | None]) -> dict[str, Row]:
    """One try a question; the ids are q0, q1 and so on."""
    return {f"q{n}": [reward] for n, reward in enumerate(rewards)}


def changed(wins: int, losses: int, ties: int = 0) -> Comparison:
    """Single tries, of which so many turned right, so many wrong and the rest stayed."""
    before = [0.0] * wins + [1.0] * losses + [1.0] * ties
    after = [1.0] * wins + [0.0] * losses + [1.0] * ties
    found = compare(singles(before), singles(after))
    assert found is not None
    return found


def tried(rng: random.Random, chances: Sequence[float], k: int) -> dict[str, Row]:
    """As many tries at each question, right with that question's chance."""
    return {
        f"q{n}": [float(rng.random() < chance) for _ in range(k)]
        for n, chance in enumerate(chances)
    }


def span(interval: Interval | None) -> tuple[float, float]:
    assert interval is not None
    return interval.low, interval.high


# mean@k and pass@k


def test_the_mean_weighs_questions_alike_and_leaves_unjudged_tries_out() -> None:
    # Question means 1/2, 1 and 0; the third question has no known try: 1.5 / 3.
    rewards = [[1.0, 0.0], [1.0, None], [None, None], [0.0, 0.0]]
    assert question_means(rewards) == (0.5, 1.0, 0.0)
    assert mean_at_k(rewards) == 0.5


def test_nothing_known_gives_no_rate_and_no_interval() -> None:
    nothing: list[list[Row]] = [[], [[None]], [[]]]
    for rewards in nothing:
        assert mean_at_k(rewards) is None
        assert mean_interval(rewards) is None
        assert pass_rate(rewards, 1) == Rate(None, 0)


@pytest.mark.parametrize(
    ("n", "c", "k", "value"),
    [
        (4, 1, 2, 0.5),  # 1 - C(3,2)/C(4,2) = 1 - 3/6
        (5, 2, 3, 0.9),  # 1 - C(3,3)/C(5,3) = 1 - 1/10
        (8, 3, 1, 3 / 8),  # pass@1 is the share that is right
        (6, 0, 6, 0.0),
        (6, 1, 6, 1.0),  # whoever draws all draws the right one
    ],
)
def test_pass_at_k_by_hand(n: int, c: int, k: int, value: float) -> None:
    assert pass_at_k(n, c, k) == pytest.approx(value, abs=1e-15)


def test_pass_at_k_is_the_share_of_draws_that_hold_a_right_try() -> None:
    for n in range(1, 8):
        for c, k in itertools.product(range(n + 1), range(1, n + 1)):
            draws = list(itertools.combinations([True] * c + [False] * (n - c), k))
            assert pass_at_k(n, c, k) == pytest.approx(fmean(map(any, draws)), abs=1e-15)


def test_pass_at_k_of_many_tries_equals_the_papers_product() -> None:
    rng = random.Random(2)
    for _ in range(300):
        n = rng.randint(1, 5000)
        c, k = rng.randint(0, n), rng.randint(1, n)
        none_right = 1 - k / np.arange(n - c + 1, n + 1)
        product = 1.0 if n - c < k else 1 - float(np.prod(none_right))
        assert pass_at_k(n, c, k) == pytest.approx(product, abs=1e-9)


@pytest.mark.parametrize(("n", "c", "k"), [(3, 1, 4), (3, 4, 1), (3, -1, 1), (3, 1, 0)])
def test_a_pass_rate_of_more_tries_than_there_are_is_refused(n: int, c: int, k: int) -> None:
    with pytest.raises(ValueError, match="not defined"):
        pass_at_k(n, c, k)


def test_a_pass_curve_tells_on_how_many_questions_each_point_rests() -> None:
    # Known tries 3 (1 right) and 2 (0 right). pass@1: (1/3 + 0)/2; pass@2: (2/3 + 0)/2;
    # pass@3 has the first question alone, 1 - C(2,3)/C(3,3) = 1; none has four.
    curve = pass_curve([[1.0, 0.0, 0.0], [0.0, None, 0.0]], 4)
    assert [rate.value for rate in curve[:3]] == pytest.approx([1 / 6, 1 / 3, 1.0])
    assert [rate.questions for rate in curve] == [2, 2, 1, 0]
    assert curve[3] == Rate(None, 0)


def test_a_try_counts_as_right_from_a_half_upwards() -> None:
    assert pass_rate([[0.5], [0.49]], 1).value == 0.5


# Intervals


def test_the_interval_of_the_mean_by_hand() -> None:
    # Means .4 .5 .6: s = .1, s/√3 = .0577350, t(.975, 2) = 4.302653: .5 ± .2484138.
    low, high = span(mean_interval([[0.4, 0.4], [0.5, None], [0.2, 1.0]]))
    assert (low, high) == pytest.approx((0.2515862, 0.7484138), abs=1e-7)


def test_the_interval_of_the_mean_is_cut_to_what_a_reward_can_be() -> None:
    # Means 1 0 1 1: .75 ± 3.182446 · .5/2 = .75 ± .796 leaves [0, 1] on both sides.
    assert span(mean_interval([[1.0], [0.0], [1.0], [1.0]])) == (0.0, 1.0)


def test_intervals_equal_scipys_over_question_means() -> None:
    rng = random.Random(6)
    for _ in range(150):
        k, level = rng.randint(1, 6), rng.choice((0.8, 0.9, 0.95, 0.99))
        rewards = [[rng.random() for _ in range(k)] for _ in range(rng.randint(2, 40))]
        means = [fmean(row) for row in rewards]
        wanted = scipy.stats.t.interval(level, len(means) - 1, fmean(means), scipy.stats.sem(means))
        low, high = span(mean_interval(rewards, level))
        assert low == pytest.approx(max(0.0, wanted[0]), abs=1e-9)
        assert high == pytest.approx(min(1.0, wanted[1]), abs=1e-9)
        if k > 1:
            passed = [pass_at_k(k, sum(r >= 0.5 for r in row), 2) for row in rewards]
            if len(set(passed)) > 1:
                wanted = scipy.stats.t.interval(
                    level, len(means) - 1, fmean(passed), scipy.stats.sem(passed)
                )
                low, high = span(pass_rate(rewards, 2, level).interval)
                assert low == pytest.approx(max(0.0, wanted[0]), abs=1e-9)
                assert high == pytest.approx(min(1.0, wanted[1]), abs=1e-9)


def test_a_set_that_is_all_right_is_no_certainty() -> None:
    # 20 of 20 (Clopper and Pearson): the low end p has p^20 = .025, p = .8315665.
    assert span(mean_interval([[1.0, 1.0]] * 20)) == pytest.approx((0.8315665, 1.0), abs=1e-7)
    assert span(mean_interval([[0.0]] * 20)) == pytest.approx((0.0, 0.1684335), abs=1e-7)
    assert span(mean_interval([[1.0]])) == pytest.approx((0.025, 1.0))
    assert span(pass_rate([[0.0, 1.0]] * 20, 2).interval)[0] == pytest.approx(0.8315665, abs=1e-7)


def test_questions_that_all_come_out_alike_have_the_exact_interval_of_scipy() -> None:
    for count, right in itertools.product((2, 8, 30), (0.25, 0.5, 0.75)):
        exact = scipy.stats.binomtest(int(count * right * 4), count * 4).proportion_ci(
            method="exact"
        )
        low, high = span(mean_interval([[right]] * (count * 4)))
        assert (low, high) == pytest.approx((exact.low, exact.high), abs=1e-9)
    # Means that differ by rounding alone are alike as well.
    assert span(mean_interval([[0.3], [0.1 + 0.2]])) == pytest.approx(
        span(mean_interval([[0.3]] * 2))
    )


@pytest.mark.parametrize("questions", [20, 60])
@pytest.mark.parametrize("chance", [0.1, 0.3, 0.5, 0.9])
def test_intervals_hold_the_truth_as_often_as_they_say(questions: int, chance: float) -> None:
    # One try each: exact, over every number of right answers there can be.
    held = 0.0
    for right in range(questions + 1):
        low, high = span(mean_interval([[1.0]] * right + [[0.0]] * (questions - right)))
        held += scipy.stats.binom.pmf(right, questions, chance) * (low <= chance <= high)
    assert held >= 0.93
    # Four tries, simulated. The t-interval is known to be a little narrow where few of few
    # questions differ: 0.91 of 1,500 at 20 questions and a chance of 0.1 or 0.9.
    rng, rounds = random.Random(questions), 250
    ends = (
        span(mean_interval(list(tried(rng, [chance] * questions, 4).values())))
        for _ in range(rounds)
    )
    held_of_four = sum(low <= chance <= high for low, high in ends) / rounds
    nominal = 0.905 if questions == 20 and chance in (0.1, 0.9) else 0.93
    assert held_of_four >= nominal - 2 * math.sqrt(0.06 / rounds)


# Comparison


def test_a_clear_gain_helps_and_its_mirror_hurts() -> None:
    # Changes: nine +1, one -1. Mean .8, s² = (10 - 10·.64)/9 = .4, s/√10 = .2,
    # t(.975, 9) = 2.262157: .8 ± .4524314, cut at 1. p = 2·(1 + 10)/2^10.
    helps, hurts = changed(wins=9, losses=1), changed(wins=1, losses=9)
    assert (helps.questions, helps.better, helps.worse, helps.level) == (10, 9, 1, 0)
    assert helps.difference == pytest.approx(0.8)
    assert span(helps.interval) == pytest.approx((0.3475686, 1.0), abs=1e-7)
    assert helps.p == 22 / 1024
    assert (helps.verdict, hurts.verdict) == ("helps", "hurts")
    assert span(hurts.interval) == pytest.approx((-1.0, -0.3475686), abs=1e-7)


def test_an_interval_above_zero_is_not_enough() -> None:
    # Five of 60 turned right. Mean 1/12, s² = (5 - 60/144)/59 = .0776836,
    # s/√60 = .0359823, t(.975, 59) = 2.0009954: low end .0833333 - .0720004 > 0.
    # But five that differ can all go one way by chance in 2/2^5.
    found = changed(wins=5, losses=0, ties=55)
    assert found.interval.low == pytest.approx(0.0113329, abs=1e-6)
    assert (found.p, found.verdict) == (1 / 16, "cannot tell")


def test_a_majority_of_small_gains_is_not_enough() -> None:
    # Ten gain .1 and one loses 1: the mean is 0, so that every signing is as far from it.
    found = compare(singles([0.5] * 10 + [1.0]), singles([0.6] * 10 + [0.0]))
    assert found is not None
    assert (found.better, found.worse, found.p, found.verdict) == (10, 1, 1.0, "cannot tell")
    assert found.difference == pytest.approx(0.0, abs=1e-12)


def test_a_few_large_gains_do_not_help_against_a_majority_of_small_losses() -> None:
    # 8 gain 1, 30 lose .01: only the signs of the eight matter, p = 2/2^8, and the interval lies
    # above 0. Most questions lost all the same.
    found = compare(singles([0.0] * 8 + [0.5] * 30), singles([1.0] * 8 + [0.49] * 30))
    assert found is not None
    assert found.interval.low > 0
    assert found.p == pytest.approx(2 / 256, rel=0.2)
    assert found.verdict == "cannot tell"


def test_questions_that_all_moved_alike_are_no_certainty() -> None:
    # u = 1 - .025^(1/M) is the share that could still behave otherwise.
    # 60 unchanged: u = .0596296, 0 ± u. 4 of 4 won: u = .6023646, 1 - 2u = -.2047293.
    # 6 of 6: u = .4592581, 1 - 2u = .0814837, and p = 1/32.
    same, four, six = changed(0, 0, ties=60), changed(4, 0), changed(6, 0)
    assert span(same.interval) == pytest.approx((-0.0596296, 0.0596296), abs=1e-6)
    assert (same.p, same.verdict, same.level) == (1.0, "cannot tell", 60)
    assert span(four.interval) == pytest.approx((-0.2047293, 1.0), abs=1e-6)
    assert four.verdict == "cannot tell"
    assert span(six.interval) == pytest.approx((0.0814837, 1.0), abs=1e-6)
    assert six.verdict == "helps"
    one = changed(1, 0)
    assert span(one.interval) == pytest.approx((-0.95, 1.0))
    assert one.verdict == "cannot tell"


def test_only_questions_known_on_both_sides_are_paired_and_the_others_counted() -> None:
    before = {"a": [1.0, 0.0], "b": [None], "c": [1.0], "gone": [1.0]}
    after = {"c": [0.0, None], "b": [1.0], "a": [1.0, 1.0], "new": [0.0]}
    found = compare(before, after)
    assert found is not None
    # a: 1 - .5, c: 0 - 1; b has no known reward before, gone and new stand alone.
    assert (found.questions, found.difference, found.left_out) == (2, -0.25, 3)
    assert (found.better, found.worse, found.level) == (1, 1, 0)
    assert compare({"a": [None]}, {"a": [1.0]}) is None
    assert compare({}, {}) is None


def test_differences_of_rounding_alone_are_ties() -> None:
    # 0.1 + 0.2 is 0.30000000000000004.
    found = compare(singles([0.3, 0.1 + 0.2]), singles([0.1 + 0.2, 0.3]))
    assert found is not None
    assert (found.better, found.worse, found.level) == (0, 0, 2)


def test_paired_intervals_equal_scipys() -> None:
    rng = random.Random(8)
    for _ in range(200):
        count, level = rng.randint(2, 40), rng.choice((0.9, 0.95))
        before = tried(rng, [rng.random() for _ in range(count)], 3)
        after = tried(rng, [rng.random() for _ in range(count)], 3)
        changes = [fmean(after[name]) - fmean(before[name]) for name in before]  # type: ignore[type-var]
        found = compare(before, after, level)
        assert found is not None
        if np.ptp(changes) < 1e-9:
            continue
        low, high = scipy.stats.t.interval(
            level, count - 1, fmean(changes), scipy.stats.sem(changes)
        )
        assert span(found.interval) == pytest.approx((max(-1, low), min(1, high)), abs=1e-9)


@pytest.mark.parametrize("questions", [8, 20, 40])
@pytest.mark.parametrize("differing", [0.1, 0.5, 0.9])
def test_without_an_effect_single_tries_mislead_in_at_most_one_of_twenty(
    questions: int, differing: float
) -> None:
    # Exact: every (wins, losses) there can be, each side as likely.
    misled = 0.0
    for n in range(questions + 1):
        likely = scipy.stats.binom.pmf(n, questions, differing)
        for wins in range(n + 1):
            if changed(wins, n - wins, questions - n).verdict != "cannot tell":
                misled += likely * math.comb(n, wins) / 2**n
    assert misled <= 0.05


@pytest.mark.parametrize("k", [1, 4])
def test_without_an_effect_verdicts_mislead_in_at_most_one_of_twenty(k: int) -> None:
    rng, rounds = random.Random(k), 400
    misled = 0
    for _ in range(rounds):
        chances = [rng.random() for _ in range(40)]
        found = compare(tried(rng, chances, k), tried(rng, chances, k))
        assert found is not None
        misled += found.verdict != "cannot tell"
    assert misled / rounds <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / rounds)


# The smallest effect


@pytest.mark.parametrize(("questions", "k"), [(10, 4), (20, 1), (60, 1), (60, 4)])
def test_the_smallest_effect_is_one_that_is_mostly_shown(questions: int, k: int) -> None:
    effect, rng, rounds = minimum_detectable_effect(questions, k), random.Random(questions + k), 200

    def shown(gain: float) -> float:
        before, after = [0.5 - gain / 2] * questions, [0.5 + gain / 2] * questions
        rows = [compare(tried(rng, before, k), tried(rng, after, k)) for _ in range(rounds)]
        return sum(found is not None and found.verdict == "helps" for found in rows) / rounds

    # 80 of 100 are meant; 2,000 rounds notice 73 with ten questions and 78 to 81 with more.
    assert 0.65 <= shown(effect) <= 0.9
    assert shown(effect / 2) <= 0.45


def test_the_smallest_effect_never_promises_less_than_the_t_interval_needs() -> None:
    # M = 60, k = 4: (2.0009954 + .8478277) · √(.5/4)/√60 = .1300.
    assert minimum_detectable_effect(60, 4) >= 0.1300


@pytest.mark.parametrize("questions", [20, 60, 200])
def test_the_exact_tests_part_is_nearly_exact(questions: int) -> None:
    # k = 1, chance (1±δ)/2: a win has ((1+δ)/2)², a loss ((1-δ)/2)², and the rest are ties.
    effect = minimum_detectable_effect(questions, 1)
    win, loss = ((1 + effect) / 2) ** 2, ((1 - effect) / 2) ** 2
    shown = [
        [wins for wins in range(n // 2 + 1, n + 1) if sign_test(wins, n - wins) <= 0.05]
        for n in range(questions + 1)
    ]
    power = sum(
        scipy.stats.binom.pmf(n, questions, win + loss)
        * scipy.stats.binom.pmf(wins, n, win / (win + loss)).sum()
        for n, wins in enumerate(shown)
    )
    assert power == pytest.approx(0.8, abs=0.02)


def test_a_set_that_can_show_nothing_says_so() -> None:
    assert all(minimum_detectable_effect(questions, 8) == math.inf for questions in range(6))
    # Six single tries: the interval needs (2.570582 + .919544)·√.5/√6 = 1.0075.
    assert minimum_detectable_effect(6, 1) == math.inf


def test_more_questions_and_more_tries_show_smaller_effects() -> None:
    sizes = (8, 16, 40, 120, 1000, 4000)
    effects = [minimum_detectable_effect(questions, 2) for questions in sizes]
    assert effects == sorted(effects, reverse=True)
    tries = [minimum_detectable_effect(60, k) for k in (1, 2, 4, 8, 16)]
    assert tries == sorted(tries, reverse=True)


def test_no_tries_are_no_plan() -> None:
    with pytest.raises(ValueError, match="at least once"):
        minimum_detectable_effect(60, 0)


def test_a_question_that_stands_twice_is_one_question_with_twice_the_tries() -> None:
    rows = group_by_question(["p", "q", "p#2", "p#3"], [[1.0], [0.0], [1.0], [None]])
    assert rows == {"p": (1.0, 1.0, None), "q": (0.0,)}


def test_twenty_repeats_of_one_question_show_nothing() -> None:
    ids = ["p", *(f"p#{n}" for n in range(2, 21))]
    before, after = (group_by_question(ids, [[reward]] * 20) for reward in (0.0, 1.0))
    found = compare(before, after)
    assert found is not None
    assert (found.questions, found.verdict) == (1, "cannot tell")
