"""Measuring in two steps: the tries first, what judges them later.

The tries wait in the record of replies that every evaluation has, so that nothing is paid twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from engines.core.errors import CallFailed
from engines.core.types import Problem, Rollout, Verdict

EvalStep = Literal["all", "rollout", "judge"]


@dataclass(slots=True)
class UnjudgedTries:
    """A verifier that leaves every try for later, and counts those that can be judged."""

    count: int = 0

    async def check(self) -> None:
        """There is nothing to check."""

    async def verify(self, problem: Problem, rollouts: Sequence[Rollout]) -> tuple[Verdict, ...]:
        self.count += sum(rollout.attempt.answer is not None for rollout in rollouts)
        return tuple(Verdict(None) for _ in rollouts)

    async def aclose(self) -> None:
        """There is nothing to close."""


async def refuse_new_try() -> None:
    """What a policy of which only recorded replies are had waits for: they need not wait."""
    raise CallFailed("refused", "it was not tried yet, and --step judge makes no tries")
