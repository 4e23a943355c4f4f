"""A reward that was learned from the verdicts of a run: a guess, and marked as one."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engines.core.settings import setting
from engines.core.types import Problem, Rollout, Verdict
from engines.verifiers.spec import check_settings

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
