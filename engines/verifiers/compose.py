"""Verifiers that are made of others, of a function, or of a learned reward.

Several criteria become one verifier: one reward, each criterion a metric.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import fsum

from engines.core.protocols import Verifier, judges_whole_groups
from engines.core.settings import setting
from engines.core.types import NO_USAGE, Problem, Rollout, Verdict
from engines.core.waiting import gather_all
from engines.verifiers.spec import check_settings
from engines.verifiers.stated_answer import unjudgeable_verdict


@dataclass(frozen=True, slots=True)
class EachVerifier:
    """Judges rollouts one by one, where there is nothing to load or to wait for."""

    judge: Callable[[Problem, Rollout], Verdict]

    async def check(self) -> None:
        """Nothing to load."""

    async def verify(self, problem: Problem, rollouts: Sequence[Rollout]) -> tuple[Verdict, ...]:
        return tuple(
            unjudgeable_verdict(rollout, (problem,)) or self.judge(problem, rollout)
            for rollout in rollouts
        )

    async def aclose(self) -> None:
        """Nothing is open."""


@dataclass(frozen=True, slots=True)
class WeightedCriterion:
    """One criterion: the name of its metric, its weight, not 0, and who judges it."""

    name: str
    weight: float
    verifier: Verifier


class WeightedVerifier:
    """Judges by all parts at once, on the same rollouts."""

    def __init__(self, parts: Sequence[WeightedCriterion]) -> None:
        self._parts = tuple(parts)

    @property
    def whole_groups(self) -> bool:
        return any(judges_whole_groups(part.verifier) for part in self._parts)

    async def check(self) -> None:
        await gather_all(part.verifier.check() for part in self._parts)

    async def verify(self, problem: Problem, rollouts: Sequence[Rollout]) -> tuple[Verdict, ...]:
        columns = await gather_all(part.verifier.verify(problem, rollouts) for part in self._parts)
        rows = zip(*columns, strict=True)
        return tuple(combine_verdicts(self._parts, row) for row in rows)

    async def aclose(self) -> None:
        await gather_all(part.verifier.aclose() for part in self._parts)


def combine_verdicts(parts: Sequence[WeightedCriterion], verdicts: Sequence[Verdict]) -> Verdict:
    """One verdict of aligned ones: the mean by weight over those that have a reward.

    A negative weight takes from the reward. The lowest and the highest that the weights allow
    are mapped to 0 and 1, which leaves the mean where none is negative.

    One that failed leaves the whole unjudged: leaving its weight out would change what
    the reward means from rollout to rollout. One without an opinion is left out, because
    it has none on any answer to that problem.
    """
    metrics: dict[str, float] = {}
    critiques, failed, known = [], [], []
    for part, verdict in zip(parts, verdicts, strict=True):
        if verdict.reward is not None:
            metrics[part.name] = verdict.reward
            known.append((part.weight, verdict.reward))
        elif verdict.error is not None:
            failed.append((part.name, verdict.error))
        metrics |= {f"{part.name}/{name}": value for name, value in verdict.metrics.items()}
        if critique := " ".join((verdict.critique or "").split()):
            critiques.append(f"{part.name}: {critique}")
    reward = None
    if known and not failed:
        low = fsum(min(weight, 0.0) for weight, _ in known)
        total = fsum(weight * found for weight, found in known)
        # Rounding may lead a hair outside.
        reward = min(1.0, max(0.0, (total - low) / fsum(abs(weight) for weight, _ in known)))
    return Verdict(
        reward,
        "\n".join(critiques) or None,
        metrics,
        _combined_error(failed),
        sum((verdict.usage for verdict in verdicts), NO_USAGE),
        tuple(ref for verdict in verdicts for ref in verdict.refs),
    )


def _combined_error(failed: Sequence[tuple[str, str]]) -> str | None:
    """Begins with the kind of the first error, as every error does, then names criteria."""
    if not failed:
        return None
    texts = {error for _, error in failed}
    if len(failed) > 1 and len(texts) == 1:
        return failed[0][1]  # the rollout itself failed: no criterion did
    name, error = failed[0]
    kind, _, rest = error.partition(": ")
    others = "".join(f"; {name}: {error}" for name, error in failed[1:])
    return f"{kind}: {name}: {rest or kind}{others}"


Score = Callable[[Sequence[tuple[str, str]]], Sequence[float]]
"""Rewards of pairs of question and answer; called in a thread."""


@dataclass(frozen=True, slots=True)
class LearnedSettings:
    """Settings of `reward_model`."""

    folder: str = setting(
        "", "its folder, or run:RUN for that of a run", examples=["run:grpo-tiny"]
    )

    def __post_init__(self) -> None:
        rule = bool(self.folder), "folder is missing.", "Set it: folder: run:RUN."
        check_settings('verifier "reward_model"', rule)


@dataclass(frozen=True, slots=True)
class LearnedVerifier:
    """`about` says from what it was learned, and how often it agrees with that."""

    score: Score
    about: str

    async def check(self) -> None: ...

    async def verify(self, problem: Problem, rollouts: Sequence[Rollout]) -> Sequence[Verdict]:
        judged = [r for r in rollouts if r.attempt.answer]
        pairs = [(problem.question, r.attempt.answer or "") for r in judged]
        scores = await asyncio.to_thread(self.score, pairs) if pairs else ()
        found = {
            id(rollout): Verdict(round(score, 4), f"learned reward {score:.2f} ({self.about})")
            for rollout, score in zip(judged, scores, strict=True)
        }
        nothing = "failed: there is no answer to judge"
        return [found.get(id(one), Verdict(None, error=nothing)) for one in rollouts]

    async def aclose(self) -> None: ...
