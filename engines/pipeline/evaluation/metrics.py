"""What rewards on held-out questions amount to: mean@k and pass@k.

Each figure counts questions, because the tries at one question are not independent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engines.core.ids import question_of
from engines.pipeline.evaluation.intervals import (
    Interval as Interval,  # a rate's readers find it here
)
from engines.pipeline.evaluation.intervals import interval_of

Rewards = Sequence[Sequence[float | None]]
"""One row a question, its tries in order; None where a try could not be judged."""

ByQuestion = Mapping[str, Sequence[float | None]]
"""The rewards of each question's tries under its id; None where one could not be judged."""

RIGHT_FROM = 0.5
"""The reward from which a try counts as right, as in a group's outcome."""


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
        question = question_of(problem)
        found[question] = (*found.get(question, ()), *row)
    return found


def question_means(rewards: Rewards) -> tuple[float, ...]:
    """The mean of each question's known tries; questions without one are left out."""
    known = (known_rewards(row) for row in rewards)
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
    counts = [(len(row), sum(r >= RIGHT_FROM for r in row)) for row in map(known_rewards, rewards)]
    values = [pass_at_k(n, right, k) for n, right in counts if n >= k]
    if not values:
        return Rate(None, 0)
    return Rate(math.fsum(values) / len(values), len(values), interval_of(values, level))


def pass_curve(rewards: Rewards, most: int) -> tuple[Rate, ...]:
    """pass@1 … pass@`most`, in order. Later ones may rest on fewer questions."""
    return tuple(pass_rate(rewards, k) for k in range(1, most + 1))


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


def known_rewards(row: Sequence[float | None]) -> tuple[float, ...]:
    return tuple(reward for reward in row if reward is not None)
