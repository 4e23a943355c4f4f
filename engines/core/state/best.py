"""Which step's library did best on the held-out sets.

Only measurements of one kind compete: the same sets, questions, tries and settings as the latest
ones, so that no step wins by having been asked less.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from engines.core.events import EvaluationFinished
from engines.core.ids import question_of

MOST_UNJUDGED = 0.1
"""The share of rollouts that may be unjudged in a measurement that competes."""


def best_step(evaluations: Sequence[EvaluationFinished]) -> int | None:
    """The step with the highest mean reward; None where no step has every set measured.

    The mean is that over sets, of each set over the questions that every competing step
    has a known reward for (its own mean where fewer than half are such). Of equals the
    earliest: a shorter library costs less.
    """
    means = _means(comparable_evaluations(evaluations))
    return max(sorted(means), key=lambda step: means[step], default=None)


def comparable_evaluations(
    evaluations: Sequence[EvaluationFinished],
) -> dict[int, dict[str, EvaluationFinished]]:
    """The steps that can be compared with the latest one, each with its sets by name."""
    if not evaluations:
        return {}
    last_step = evaluations[-1].step
    latest = {found.data: found for found in evaluations if found.step == last_step}
    steps: dict[int, dict[str, EvaluationFinished]] = {}
    for found in evaluations:
        if found.data in latest and _is_comparable(found, latest[found.data]):
            steps.setdefault(found.step, {})[found.data] = found
    return {step: found for step, found in steps.items() if found.keys() == latest.keys()}


def _is_comparable(found: EvaluationFinished, latest: EvaluationFinished) -> bool:
    kind = (found.fingerprint, found.problems, found.k)
    if kind != (latest.fingerprint, latest.problems, latest.k) or not found.problems:
        return False
    return found.mean is not None and found.unjudged <= MOST_UNJUDGED * (found.n + found.unjudged)


def _means(steps: Mapping[int, Mapping[str, EvaluationFinished]]) -> dict[int, float]:
    totals = dict.fromkeys(steps, 0.0)
    for name in next(iter(steps.values()), {}):
        known = {step: question_means(found[name]) for step, found in steps.items()}
        common = set.intersection(*(set(means) for means in known.values()))
        for step, means in known.items():
            over = common if 2 * len(common) >= len(means) else set(means)
            # Rounded, so that the order of adding up decides no tie.
            totals[step] += math.fsum(means[question] for question in over) / max(1, len(over))
    return {step: round(total, 9) for step, total in totals.items()}


def question_means(found: EvaluationFinished) -> dict[str, float]:
    """Of each question with a known reward; repeats of a question (`x#2`) are one question."""
    tries: dict[str, list[float]] = {}
    for problem, row in zip(found.problems, found.rewards, strict=True):
        known = [reward for reward in row if reward is not None]
        if known:
            tries.setdefault(question_of(problem), []).extend(known)
    return {question: math.fsum(row) / len(row) for question, row in tries.items()}
