"""What an epoch did to each held-out question: the version at its end against the one before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar, get_args

from engines.core.events import EvaluationFinished
from engines.core.state.best import comparable_evaluations, question_means
from engines.pipeline.evaluation.comparison import Comparison, compare
from engines.pipeline.evaluation.intervals import SAME
from engines.pipeline.evaluation.metrics import RIGHT_FROM, group_by_question

Set = TypeVar("Set")
Change = Literal["improved", "worsened", "still wrong", "still right"]
CHANGES: tuple[Change, ...] = get_args(Change)


@dataclass(frozen=True, slots=True)
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
    if abs(after - before) > SAME:
        return "improved" if after > before else "worsened"
    return "still right" if after >= RIGHT_FROM else "still wrong"


def diagnose(evaluations: Sequence[EvaluationFinished], since: int) -> list[HeldOutDiagnosis]:
    """Each set of the latest evaluation; [] where it is of step `since` or before."""
    if not evaluations or evaluations[-1].step <= since:
        return []
    found = []
    for before, after in pair_evaluations(evaluations, since):
        a, b = question_means(before), question_means(after)
        one, other = (group_by_question(e.problems, e.rewards) for e in (before, after))
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
