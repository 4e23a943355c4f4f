"""The verdict of a comparison: whether practice helped, hurt, or nobody can tell; and per question.

`compare` decides for two evaluations of one set, `diagnose` says what became of each question.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar, get_args

from engines.core.events import EvaluationFinished
from engines.core.frozen import frozen
from engines.core.state.run_state import comparable_evaluations, means_by_question
from engines.core.types import EffectVerdict
from engines.pipeline.evaluation import statistics


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """After against before on the questions that have a known reward on both sides."""

    questions: int
    difference: float  # in mean reward, [-1, 1]; positive when after is better
    interval: statistics.Interval
    better: int  # questions, as are the next two
    worse: int
    level: int
    p: float  # of the exact test
    verdict: EffectVerdict
    left_out: int = 0  # questions that could not be paired


def compare(
    before: statistics.ByQuestion, after: statistics.ByQuestion, level: float = 0.95
) -> Comparison | None:
    """Pair two evaluations by question and say whether the second is better; None without a pair.

    The difference is the mean over questions of (mean after - mean before). The verdict is "helps"
    or "hurts" only when its interval (`paired_interval_of`) lies on one side of 0 *and* p <= α of
    the exact test (`sign_flip_test`; of single right-or-wrong tries it is McNemar's) *and* most
    questions that differ went the same way. Where a handful of questions differ, all one way, the
    t-interval is too sure of itself while the exact test still needs six of them. Where nothing
    has an effect the exact test alone misleads in at most α of comparisons.
    """
    changes = paired_changes(before, after)
    if not changes:
        return None
    difference = math.fsum(changes) / len(changes)
    interval = statistics.paired_interval_of(changes, level)
    wins = sum(change > statistics.SAME for change in changes)
    losses = sum(change < -statistics.SAME for change in changes)
    p = statistics.sign_flip_test(changes)
    verdict: EffectVerdict = "cannot tell"
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
        better=wins,
        worse=losses,
        level=len(changes) - wins - losses,
        p=p,
        verdict=verdict,
        left_out=len(before.keys() | after.keys()) - len(changes),
    )


def paired_changes(
    before: statistics.ByQuestion, after: statistics.ByQuestion
) -> tuple[float, ...]:
    """After less before in mean reward, of each question known on both sides."""
    pairs = (
        (statistics.known_rewards(row), statistics.known_rewards(after.get(q, ())))
        for q, row in before.items()
    )
    return tuple(math.fsum(b) / len(b) - math.fsum(a) / len(a) for a, b in pairs if a and b)


Set = TypeVar("Set")
Change = Literal["improved", "worsened", "still wrong", "still right"]
CHANGES: tuple[Change, ...] = get_args(Change)


@frozen
class HeldOutDiagnosis:
    """One set before and after, each question with a known reward on both sides once."""

    before: EvaluationFinished
    after: EvaluationFinished
    means: dict[str, tuple[float, float]]  # of a question's known tries, before and after
    comparison: Comparison

    def questions(self, change: Change) -> list[str]:
        """Those that changed so; of changes the greatest first, else in the order of the set."""
        found = [name for name, pair in self.means.items() if change_of(*pair) == change]
        return sorted(found, key=lambda name: -abs(self.means[name][1] - self.means[name][0]))


def change_of(before: float, after: float) -> Change:
    """What became of a question by the means of its tries on both sides.

    Any difference is a change: of four tries, three right after two is an improvement. An equal
    mean is right from 0.5: two of four right both times are still right, one of four still wrong.
    """
    if abs(after - before) > statistics.SAME:
        return "improved" if after > before else "worsened"
    return "still right" if after >= statistics.RIGHT_FROM else "still wrong"


def diagnose(evaluations: Sequence[EvaluationFinished], since: int) -> list[HeldOutDiagnosis]:
    """Each set of the latest evaluation; [] where it is of step `since` or before."""
    if not evaluations or evaluations[-1].step <= since:
        return []
    found = []
    for before, after in pair_evaluations(evaluations, since):
        a, b = means_by_question(before), means_by_question(after)
        one, other = (statistics.group_by_question(e.problems, e.rewards) for e in (before, after))
        if comparison := compare(one, other):
            means = {name: (a[name], b[name]) for name in a if name in b}
            found.append(HeldOutDiagnosis(before, after, means, comparison))
    return found


def without_last(sets: list[Set]) -> list[Set]:
    """What may be chosen by: the last of several sets is not, so that its figures stay unbiased."""
    return sets[: max(1, len(sets) - 1)]


def pair_evaluations(
    evaluations: Sequence[EvaluationFinished], since: int
) -> list[tuple[EvaluationFinished, EvaluationFinished]]:
    """Each set of the latest evaluation behind what the last one of step `since` or before found.

    [] where there is none that can be compared.
    """
    steps = comparable_evaluations(evaluations)
    earlier = max((step for step in steps if step <= since), default=None)
    if earlier is None:
        return []
    return [(steps[earlier][name], now) for name, now in steps[max(steps)].items()]
