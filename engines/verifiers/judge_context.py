"""What a verifier that asks a model needs to ask it."""

from __future__ import annotations

from dataclasses import dataclass

from engines.core.protocols import Ledger, Policy
from engines.core.types import CallKey, Problem, Rollout, Sampling


@dataclass(frozen=True, slots=True)
class JudgeContext:
    """The judge role of a run."""

    policy: Policy
    sampling: Sampling
    ledger: Ledger


def judge_key(problem: Problem, rollout: Rollout, turn: int = 0) -> CallKey:
    """The key of one question about a rollout; turns count over all questions about it."""
    held_out = problem.id if rollout.epoch == 0 else ""
    return CallKey(
        purpose="judge",
        epoch=rollout.epoch,
        step=rollout.step,
        position=rollout.position,
        index=rollout.index,
        turn=turn,
        problem=held_out,
    )
