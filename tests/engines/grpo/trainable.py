"""Groups whose rollouts carry token ids, as a policy with weights of its own makes them."""

from __future__ import annotations

import random
from collections.abc import Sequence

from engines.core.types import Attempt, AttemptStatus, Group, Problem, Rollout, Turn, Verdict

VOCABULARY = 320


def a_turn(prompt: Sequence[int], sampled: Sequence[int], logp: float = -5.0) -> Turn:
    return Turn(tuple(prompt), tuple(sampled), tuple(logp for _ in sampled))


def a_try(
    *turns: Turn,
    step: int = 1,
    position: int = 0,
    index: int = 0,
    status: AttemptStatus = "ok",
) -> Rollout:
    answer = None if status == "failed" else "text"
    attempt = Attempt((), answer, status, turns=turns)
    return Rollout(
        attempt=attempt,
        epoch=1,
        step=step,
        position=position,
        index=index,
        seed=0,
        policy_version=0,
        library_version=0,
    )


def a_scored(
    rewards: Sequence[float | None],
    rollouts: Sequence[Rollout],
    *,
    step: int = 1,
    position: int = 0,
) -> Group:
    verdicts = tuple(Verdict(r, error=None if r is not None else "timeout: 2 s") for r in rewards)
    problem = Problem(f"p{position}", "question", "answer")
    return Group(
        problem=problem,
        epoch=1,
        step=step,
        position=position,
        rollouts=tuple(rollouts),
        verdicts=verdicts,
    )


def a_random_group(
    rewards: Sequence[float | None],
    *,
    position: int = 0,
    step: int = 1,
    seed: int = 0,
    prompt: int = 9,
    longest: int = 7,
) -> Group:
    """One prompt, and for each reward a completion of random ids and of random length."""
    chance = random.Random(f"{seed}/{step}/{position}")
    shown = [chance.randrange(8, VOCABULARY) for _ in range(prompt + chance.randrange(4))]
    rollouts = [
        a_try(
            a_turn(
                shown,
                [chance.randrange(8, VOCABULARY) for _ in range(chance.randrange(2, longest + 1))],
            ),
            step=step,
            position=position,
            index=index,
        )
        for index in range(len(rewards))
    ]
    return a_scored(rewards, rollouts, step=step, position=position)


def a_batch(groups: int = 4, size: int = 4, *, step: int = 1, seed: int = 0) -> list[Group]:
    """Groups with contrast; the first rollout of each is the best."""
    rewards = [[1.0, *[float(n % 3 == 2) / 2 for n in range(1, size)]] for _ in range(groups)]
    return [
        a_random_group(row, position=position, step=step, seed=seed)
        for position, row in enumerate(rewards)
    ]
