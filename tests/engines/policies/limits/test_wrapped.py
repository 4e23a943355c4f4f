"""Policies round another one: what they do not change reaches the one inside."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from unittest.mock import AsyncMock

import pytest

from engines.core.protocols import Policy
from engines.core.types import CallKey, Completion, Job, Message, Problem, Sampling
from engines.pipeline.budget import Budget, BudgetedPolicy, BudgetLimits, CallPricing
from engines.policies.limits import (
    PausablePolicy,
    Slots,
    StreamPacedPolicy,
    Throttled,
    WrappedPolicy,
)
from engines.policies.open import open_policy
from engines.policies.replay import ReplayPolicy
from engines.policies.tool_use import TeamPolicy, ToolUsePolicy
from tests.support.builders import answering

QUESTION = "What is 47 + 38?"
AROUND: list[Callable[[Policy], WrappedPolicy]] = [
    lambda policy: StreamPacedPolicy(policy, 1e9),
    lambda policy: PausablePolicy(policy, lambda: asyncio.sleep(0)),
    lambda policy: BudgetedPolicy(
        policy, Budget(BudgetLimits(tokens=10**6), pytest.fail), CallPricing(100)
    ),
    ToolUsePolicy,
    lambda policy: TeamPolicy(policy, "planner_main"),
]


@pytest.mark.parametrize("around", AROUND)
async def test_every_reply_of_a_log_goes_to_its_rollout(
    around: Callable[[Policy], WrappedPolicy], tmp_path: Path
) -> None:
    """Else a group gets one logged reply several times, since a request names no rollout."""
    log = {QUESTION: (Completion("a"), Completion("b"))}
    policy = Throttled(around(ReplayPolicy(tmp_path / "log.jsonl", log)), Slots(1))
    said: list[str] = []
    for index in range(2):
        job = Job(Problem("p", QUESTION), "", CallKey("rollout", 1, 1, 0, index), 0, 0)
        asked = (Message("user", QUESTION),)
        said.append((await policy.for_job(job).complete(asked, Sampling(seed=0))).text)
    assert said == ["a", "b"]


@pytest.mark.parametrize("around", AROUND)
async def test_it_is_named_and_reached_as_the_one_inside(
    around: Callable[[Policy], WrappedPolicy],
) -> None:
    inner = open_policy("rehearsal")
    policy = around(inner)
    assert policy.name == "rehearsal"  # in the records, and so in what is found there again
    seen = policy.with_slots(Slots(1))
    assert type(seen) is type(policy) and seen.inner is not inner  # a view of it
    inner = AsyncMock()
    await around(inner).ping()
    inner.ping.assert_awaited_once_with()
    await around(inner).aclose()
    inner.aclose.assert_awaited_once_with()


def test_what_cannot_be_bound_to_a_job_is_asked_as_it_is() -> None:
    job = Job(Problem("p", "q"), "", CallKey("rollout", 1, 1, 0, 0), 0, 0)
    policy = StreamPacedPolicy(answering(Completion("a")), 1e9)
    assert policy.for_job(job) is policy
