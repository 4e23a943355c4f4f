"""Whether a change helped: two evaluations compared by question, and what a set could show."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

from engines.pipeline.evaluation.intervals import (
    SAME,
    Interval,
    paired_interval_of,
    sign_test,
    t_quantile,
)
from engines.pipeline.evaluation.metrics import ByQuestion, known_rewards

Outcome = Literal["helps", "hurts", "cannot tell"]

LEVEL, POWER = 0.95, 0.8
"""Of the verdict: how sure it is, and how often the smallest effect shall be noticed."""

LEAST_QUESTIONS = 6
"""With fewer no sign test passes: 2·(1/2)^5 > 0.05."""


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


def _paired_changes(before: ByQuestion, after: ByQuestion) -> tuple[float, ...]:
    pairs = ((known_rewards(row), known_rewards(after.get(q, ()))) for q, row in before.items())
    return tuple(math.fsum(b) / len(b) - math.fsum(a) / len(a) for a, b in pairs if a and b)
