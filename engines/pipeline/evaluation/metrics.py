"""What rewards on held-out questions amount to: mean@k, pass@k, whether a change helped.

Each figure counts questions, because the tries at one question are not independent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

from engines.pipeline.evaluation.distributions import sign_test, t_quantile
from engines.pipeline.evaluation.intervals import SAME, interval_of, paired_interval_of
from engines.pipeline.evaluation.intervals import (
    Interval as Interval,  # a rate's readers find it here
)

Rewards = Sequence[Sequence[float | None]]
"""One row a question, its tries in order; None where a try could not be judged."""

ByQuestion = Mapping[str, Sequence[float | None]]
"""The rewards of each question's tries under its id; None where one could not be judged."""

Outcome = Literal["helps", "hurts", "cannot tell"]

RIGHT_FROM = 0.5
"""The reward from which a try counts as right, as in a group's outcome."""

LEVEL, POWER = 0.95, 0.8
"""Of the verdict: how sure it is, and how often the smallest effect shall be noticed."""

LEAST_QUESTIONS = 6
"""With fewer no sign test passes: 2·(1/2)^5 > 0.05."""


@dataclass(frozen=True, slots=True)
class Rate:
    """A rate and the number of questions behind it; no value and no interval where that is 0."""

    value: float | None
    questions: int
    interval: Interval | None = None


def group_by_question(
    problems: Sequence[str], rewards: Rewards
) -> dict[str, tuple[float | None, ...]]:
    """The tries of each question under its id; one that is repeated (`x`, `x#2` …) is one."""
    found: dict[str, tuple[float | None, ...]] = {}
    for problem, row in zip(problems, rewards, strict=True):
        question = problem.partition("#")[0]
        found[question] = (*found.get(question, ()), *row)
    return found


def question_means(rewards: Rewards) -> tuple[float, ...]:
    """The mean of each question's known tries; questions without one are left out."""
    known = (_known_rewards(row) for row in rewards)
    return tuple(math.fsum(row) / len(row) for row in known if row)


def mean_at_k(rewards: Rewards) -> float | None:
    """mean@k: the mean over questions of the mean of their known tries; None without any."""
    means = question_means(rewards)
    return math.fsum(means) / len(means) if means else None


def mean_interval(rewards: Rewards, level: float = 0.95) -> Interval | None:
    """Where mean@k of such questions lies; see `interval_of`. None with no known reward."""
    return interval_of(question_means(rewards), level)


def pass_at_k(n: int, c: int, k: int) -> float:
    """The unbiased chance that one of k tries is right, when c of n were.

    1 - C(n-c, k) / C(n, k), in whole numbers: no n makes it overflow or lose digits.
    Source: arXiv:2107.03374 eq. 1.
    """
    if not (1 <= k <= n and 0 <= c <= n):
        raise ValueError(f"pass@{k} of {c} right tries in {n} is not defined")
    all_draws = math.comb(n, k)
    return (all_draws - math.comb(n - c, k)) / all_draws


def pass_rate(rewards: Rewards, k: int, level: float = 0.95) -> Rate:
    """pass@k: the mean of `pass_at_k` over the questions with at least k known tries."""
    counts = [(len(row), sum(r >= RIGHT_FROM for r in row)) for row in map(_known_rewards, rewards)]
    values = [pass_at_k(n, right, k) for n, right in counts if n >= k]
    if not values:
        return Rate(None, 0)
    return Rate(math.fsum(values) / len(values), len(values), interval_of(values, level))


def pass_curve(rewards: Rewards, most: int) -> tuple[Rate, ...]:
    """pass@1 … pass@`most`, in order. Later ones may rest on fewer questions."""
    return tuple(pass_rate(rewards, k) for k in range(1, most + 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """After against before on the questions that have a known reward on both sides."""

    questions: int
    difference: float  # in mean reward, [-1, 1]; positive when after is better
    interval: Interval
    wins: int  # questions, as are losses and ties
    losses: int
    ties: int
    p: float  # of the exact sign test
    verdict: Outcome
    left_out: int = 0  # questions that could not be paired


def compare(before: ByQuestion, after: ByQuestion, level: float = 0.95) -> Comparison | None:
    """Pair two evaluations by question and say whether the second is better; None without a pair.

    The difference is the mean over questions of (mean after - mean before). The verdict is "helps"
    or "hurts" only when its interval (`paired_interval_of`) lies on one side of 0 *and* p <= α of
    the sign test over questions that differ. Each guards the other: where a handful of questions
    differ, all one way, the t-interval is too sure of itself while the exact test still needs six
    of them; and the sign test sees only how many questions moved, the interval also how far. Where
    nothing has an effect the exact test alone misleads in at most α of comparisons.
    """
    changes = _paired_changes(before, after)
    if not changes:
        return None
    difference = math.fsum(changes) / len(changes)
    interval = paired_interval_of(changes, level)
    wins = sum(change > SAME for change in changes)
    losses = sum(change < -SAME for change in changes)
    p = sign_test(wins, losses)
    verdict: Outcome = "cannot tell"
    if p <= 1 - level:
        # The interval and the majority can disagree: few large gains against many small losses.
        if interval.low > 0 and wins > losses:
            verdict = "helps"
        elif interval.high < 0 and losses > wins:
            verdict = "hurts"
    return Comparison(
        questions=len(changes),
        difference=difference,
        interval=interval,
        wins=wins,
        losses=losses,
        ties=len(changes) - wins - losses,
        p=p,
        verdict=verdict,
        left_out=len(before.keys() | after.keys()) - len(changes),
    )


def minimum_detectable_effect(questions: int, k: int) -> float:
    """The smallest true difference in mean reward that such a set would likely show.

    A plan, not a measurement: it supposes right-or-wrong tries at p = 1/2, all independent, and
    that every question gains alike. The sign test is the harder half of the verdict. Where the
    chance of being right moves from (1-δ)/2 to (1+δ)/2, a question's 2k tries tie with
    probability C(2k, k)/4^k, and wins less losses grow by 2k·C(2k, k)/4^k · δ a question. Between
    8 and 256 questions of 1 to 4 tries the effect was noticed in 68 to 83 of 100 simulated
    comparisons (80 are meant; six questions of four tries: 60).

    `k` is the tries a question on each side. `math.inf` says that not even 1 would show.
    """
    if k < 1:
        raise ValueError("a question is tried at least once")
    if questions < LEAST_QUESTIONS:
        return math.inf
    tied = math.comb(2 * k, k) / 4**k
    growth = 2 * k * tied
    sure = (1 + LEVEL) / 2
    by_t = t_quantile(sure, questions - 1) + t_quantile(POWER, questions - 1)
    by_z = NormalDist().inv_cdf(sure) + NormalDist().inv_cdf(POWER)
    spread = math.sqrt((1 - tied) / questions) / growth
    # Whole questions are won or lost, which costs half a step of two; few of them, the t-quantile.
    effect = max(by_t * spread, by_z * spread + 1 / (growth * questions))
    return effect if effect <= 1 else math.inf


LITTLE_CONTRAST = 0.25
"""The share of groups with contrast below which training learns from too little of a step."""


def low_contrast_warning(informative: int, groups: int) -> str:
    """A warning where few groups have rewards that differ; "" where there is nothing to warn of.

    Advantages are differences inside a group, so that the others teach nothing.
    """
    if not groups or informative >= LITTLE_CONTRAST * groups:
        return ""
    return (
        f"only {informative} of {groups} groups of the first step have rewards that differ, and "
        "only those are learned from: practise on problems that are neither all solved nor all "
        "failed, or raise group_size or the temperature"
    )


def _paired_changes(before: ByQuestion, after: ByQuestion) -> tuple[float, ...]:
    pairs = ((_known_rewards(row), _known_rewards(after.get(q, ()))) for q, row in before.items())
    return tuple(math.fsum(b) / len(b) - math.fsum(a) / len(a) for a, b in pairs if a and b)


def _known_rewards(row: Sequence[float | None]) -> tuple[float, ...]:
    return tuple(reward for reward in row if reward is not None)
