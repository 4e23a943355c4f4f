"""How the number of calls at a time falls when an endpoint is crowded, and recovers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from engines.agents.single_turn import SingleTurn
from engines.core.errors import CallFailed
from engines.core.types import CallKey, Completion, Job, Message, Problem, Sampling
from engines.policies.congestion import Congestion
from engines.policies.endpoint import EndpointSettings
from engines.policies.openai_compat import OpenAICompat
from engines.policies.throttle import Slots, Throttled
from engines.record.ledger import RecordLedger
from engines.rollouts.manager import RolloutManager
from studio.config.settings import PolicyConfig
from studio.roles import slots_for
from tests.fake_endpoint import Behaviour, event, fake_endpoint, hangs, refuses, says, sends

QUESTION = (Message("user", "What is 2 + 2?"),)


async def at_once(_: float) -> None:
    """A sleep that returns at once."""


def a_control(limit: int, tell: Callable[[str], None] | None = None) -> tuple[Slots, Congestion]:
    slots = Slots(limit, tell)
    return slots, slots.congestion


def test_refusals_of_one_round_halve_the_limit_once() -> None:
    slots, control = a_control(16)
    round_one = [control.begin() for _ in range(16)]
    for began in round_one:
        control.refused(began)
    assert slots.limit == 8
    for began in [control.begin() for _ in range(8)]:
        control.refused(began)
    assert slots.limit == 4


def test_the_limit_never_falls_below_one() -> None:
    slots, control = a_control(3)
    limits = []
    for _ in range(4):
        control.refused(control.begin())
        limits.append(slots.limit)
    assert limits == [1, 1, 1, 1]


def test_one_more_runs_after_as_many_answers_as_run_at_a_time_up_to_the_first_limit() -> None:
    slots, control = a_control(4)
    control.refused(control.begin())
    limits = []
    for _ in range(9):
        control.answered()
        limits.append(slots.limit)
    # 2 answers for the third, 3 for the fourth, none for a fifth
    assert limits == [2, 3, 3, 3, 4, 4, 4, 4, 4]


def test_answers_before_a_cut_do_not_count_towards_the_recovery_from_it() -> None:
    slots, control = a_control(4)
    for _ in range(100):
        control.answered()
    control.refused(control.begin())
    control.answered()
    assert slots.limit == 2


def test_the_first_fall_is_told_once() -> None:
    told: list[str] = []
    _, control = a_control(8, told.append)
    for _ in range(3):
        control.refused(control.begin())
    assert len(told) == 1
    assert "fewer than 8" in told[0]


def a_policy(base_url: str) -> OpenAICompat:
    return OpenAICompat(EndpointSettings("m", base_url, max_retries=1), sleep=at_once)


@pytest.mark.parametrize(
    "crowded",
    [
        refuses(429),
        refuses(429, "later", {"retry-after": "1"}),
        refuses(503),
        sends(event({"error": {"code": 429, "message": "too many"}})),
    ],
)
async def test_a_role_narrows_its_slots_when_its_endpoint_is_crowded(crowded: Behaviour) -> None:
    async with fake_endpoint(crowded, says("4")) as fake:
        policy, slots = a_policy(fake.base_url), Slots(8)
        role = Throttled(policy, slots)
        assert (await role.complete(QUESTION, Sampling(seed=1))).text == "4"
        await policy.aclose()
    assert slots.limit == 4


@pytest.mark.parametrize(
    "fault", [refuses(500), refuses(400), refuses(429, "pay first", code="insufficient_quota")]
)
async def test_other_failures_leave_the_limit_alone(fault: Behaviour) -> None:
    async with fake_endpoint(fault) as fake:
        policy, slots = a_policy(fake.base_url), Slots(8)
        with pytest.raises(CallFailed):
            await Throttled(policy, slots).complete(QUESTION, Sampling(seed=1))
        await policy.aclose()
    assert slots.limit == 8


async def test_rollouts_and_reflections_on_the_same_slots_fall_and_recover_together(
    tmp_path: Path,
) -> None:
    script = [refuses(429)] * 2 + [says("4")]
    async with fake_endpoint(*script) as fake:
        policy, slots = a_policy(fake.base_url), Slots(4)
        agent = SingleTurn("", Sampling())
        rollouts = RolloutManager(agent, policy, RecordLedger(tmp_path, 1), slots, 60.0)
        job = Job(Problem("p", "2 + 2?", "4"), "", CallKey("rollout", 1, 1, 0, 0), 0, 0)
        attempt, _ = await rollouts.roll(job)  # refused twice: at 4, then at 2
        assert (attempt.status, slots.limit) == ("failed", 1)
        role = Throttled(policy, slots)
        limits = []
        for _ in range(6):
            await role.complete(QUESTION, Sampling(seed=1))
            limits.append(slots.limit)
        await policy.aclose()
    # 1 answer for the second, 2 for the third, 3 for the fourth
    assert limits == [2, 2, 3, 3, 3, 4]


async def test_what_waits_for_a_slot_has_its_own_deadline_still_before_it() -> None:
    """The first call waits its whole deadline away; the second then has all of its own."""
    async with fake_endpoint(hangs(), says("4")) as fake:
        endpoint = EndpointSettings("m", fake.base_url, timeout_s=1.0)
        policy = OpenAICompat(endpoint, sleep=at_once)
        role = Throttled(policy, Slots(1))
        first = asyncio.create_task(role.complete(QUESTION, Sampling(seed=1)))
        await fake.until(lambda: len(fake.requests) == 1)
        second = asyncio.create_task(role.complete(QUESTION, Sampling(seed=2)))
        failed, made = await asyncio.gather(first, second, return_exceptions=True)
        await policy.aclose()
    assert isinstance(failed, CallFailed) and failed.kind == "timeout"
    assert isinstance(made, Completion) and made.text == "4"


def test_a_role_with_slots_of_its_own_falls_alone_and_tells_too() -> None:
    told: list[str] = []
    shared = Slots(8, told.append)
    own = slots_for(PolicyConfig(model="openai:m", concurrency=4), shared)
    own.congestion.refused(own.congestion.begin())
    assert (own.limit, shared.limit, len(told)) == (2, 8, 1)
    assert slots_for(PolicyConfig(model="openai:m"), shared) is shared
