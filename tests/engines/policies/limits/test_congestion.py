"""How the number of calls at a time falls when an endpoint is crowded, and recovers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from engines.agents.loops import SingleTurn
from engines.core.errors import CallFailed
from engines.core.protocols import Policy
from engines.core.types import CallKey, Completion, Job, Message, Problem, Sampling
from engines.pipeline.budget import Budget, BudgetedPolicy, BudgetLimits, CallPricing
from engines.policies.chat.client import OpenAICompat
from engines.policies.chat.endpoint import EndpointSettings
from engines.policies.limits import Slots, Throttled
from engines.record.ledger import RecordLedger
from engines.rollouts.manager import RolloutManager
from studio.config.settings.policy import PolicyConfig
from studio.run.models import slots_for
from tests.support.fake_endpoint import (
    Behaviour,
    Exchange,
    event,
    fake_endpoint,
    hangs,
    refuses,
    says,
    sends,
)

QUESTION = (Message("user", "What is 2 + 2?"),)


async def at_once(_: float) -> None:
    """A sleep that returns at once."""


def test_refusals_of_one_round_halve_the_limit_once() -> None:
    slots = Slots(16)
    round_one = [slots.note_request() for _ in range(16)]
    for began in round_one:
        slots.note_refusal(began)
    assert slots.limit == 8
    for began in [slots.note_request() for _ in range(8)]:
        slots.note_refusal(began)
    assert slots.limit == 4


def test_the_limit_never_falls_below_one() -> None:
    slots = Slots(3)
    limits = []
    for _ in range(4):
        slots.note_refusal(slots.note_request())
        limits.append(slots.limit)
    assert limits == [1, 1, 1, 1]


def test_one_more_runs_after_as_many_answers_as_run_at_a_time_up_to_the_first_limit() -> None:
    slots = Slots(4)
    slots.note_refusal(slots.note_request())
    limits = []
    for _ in range(9):
        slots.note_answer()
        limits.append(slots.limit)
    # 2 answers for the third, 3 for the fourth, none for a fifth
    assert limits == [2, 3, 3, 3, 4, 4, 4, 4, 4]


def test_answers_before_a_cut_do_not_count_towards_the_recovery_from_it() -> None:
    slots = Slots(4)
    for _ in range(100):
        slots.note_answer()
    slots.note_refusal(slots.note_request())
    slots.note_answer()
    assert slots.limit == 2


def test_the_first_fall_is_told_once() -> None:
    told: list[str] = []
    slots = Slots(8, told.append)
    for _ in range(3):
        slots.note_refusal(slots.note_request())
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
    script = [refuses(429)] * 2 + [refuses(400), says("4")]
    async with fake_endpoint(*script) as fake:
        policy, slots = a_policy(fake.base_url), Slots(4)
        agent = SingleTurn("", Sampling())
        rollouts = RolloutManager(agent, policy, RecordLedger(tmp_path, 1), slots, 60.0)
        job = Job(Problem("p", "2 + 2?", "4"), "", CallKey("rollout", 1, 1, 0, 0), 0, 0)
        attempt, _ = await rollouts.roll_out(job)  # refused twice: at 4, then at 2
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
    own.note_refusal(own.note_request())
    assert (own.limit, shared.limit, len(told)) == (2, 8, 1)
    assert slots_for(PolicyConfig(model="openai:m"), shared) is shared


class Narrow:
    """Takes so many at a time, and refuses the rest."""

    def __init__(self, most: int) -> None:
        self.most, self.now, self.refused = most, 0, 0

    async def __call__(self, exchange: Exchange) -> None:
        if self.now >= self.most:
            self.refused += 1
            await exchange.plain(429, b"{}", {"retry-after-ms": "1"})
            return
        self.now += 1
        try:
            for _ in range(20):  # turns of the loop, in which others come
                await asyncio.sleep(0)
            await says("4")(exchange)
        finally:
            self.now -= 1


@pytest.mark.parametrize("budget", [None, BudgetLimits(calls=10_000)])
async def test_an_endpoint_that_takes_three_at_a_time_loses_none_of_32(
    budget: BudgetLimits | None,
) -> None:
    narrow = Narrow(3)
    async with fake_endpoint(narrow) as fake:
        endpoint = OpenAICompat(EndpointSettings("m", fake.base_url, max_retries=0), sleep=at_once)
        policy: Policy = endpoint
        if budget is not None:
            policy = BudgetedPolicy(endpoint, Budget(budget, pytest.fail), CallPricing(100))
        slots = Slots(32)
        role = Throttled(policy, slots)
        made = await asyncio.gather(
            *(role.complete(QUESTION, Sampling(seed=seed)) for seed in range(64))
        )
        await endpoint.aclose()
    assert [reply.text for reply in made] == ["4"] * 64
    assert narrow.refused > 29 and slots.limit < 16  # a budget takes nothing of the control away
    assert slots.held_count == 0


async def test_a_refused_call_holds_no_slot_while_it_waits() -> None:
    slots, waiting, over = Slots(1), asyncio.Event(), asyncio.Event()

    async def wait(_: float) -> None:
        waiting.set()
        await over.wait()

    async with fake_endpoint(refuses(429), says("4")) as fake:
        policy = OpenAICompat(EndpointSettings("m", fake.base_url, max_retries=0), sleep=wait)
        asking = asyncio.create_task(Throttled(policy, slots).complete(QUESTION, Sampling(seed=1)))
        await waiting.wait()
        assert slots.held_count == 0
        async with slots.acquire():
            over.set()
            await turns_until(lambda: slots.waiting_count == 1)
            assert len(fake.requests) == 1  # others have the slot, so it does not try again
        assert (await asking).text == "4"
        await policy.aclose()
    assert slots.held_count == 0


async def test_a_call_cancelled_while_it_waits_for_a_slot_again_gives_none_back_twice() -> None:
    slots, waiting, over = Slots(1), asyncio.Event(), asyncio.Event()

    async def wait(_: float) -> None:
        waiting.set()
        await over.wait()

    async with fake_endpoint(refuses(429)) as fake:
        policy = OpenAICompat(EndpointSettings("m", fake.base_url), sleep=wait)
        for goes_on in (False, True):  # while it rests, and while it waits for a slot
            waiting.clear()
            over.clear()
            asking = asyncio.create_task(
                Throttled(policy, slots).complete(QUESTION, Sampling(seed=1))
            )
            await waiting.wait()
            async with slots.acquire():
                if goes_on:
                    over.set()
                    await turns_until(lambda: slots.waiting_count == 1)
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)
                assert slots.held_count == 1
            assert slots.held_count == 0
        await policy.aclose()


async def turns_until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():
            await asyncio.sleep(0)


async def test_an_endpoint_that_only_ever_refuses_ends_each_call_at_its_deadline() -> None:
    async with fake_endpoint(refuses(429, "never", {"retry-after-ms": "600"})) as fake:
        policy = OpenAICompat(EndpointSettings("m", fake.base_url, timeout_s=1.0))
        with pytest.raises(CallFailed, match="timeout") as caught:
            await Throttled(policy, Slots(4)).complete(QUESTION, Sampling(seed=1))
        await policy.aclose()
    assert "never" in str(caught.value)
