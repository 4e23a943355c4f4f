"""Reserving, settling and giving up: what a budget lets through."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from engines.core.errors import CallFailed, lost_usage
from engines.core.protocols import OnText
from engines.core.types import NO_USAGE, CallKey, Completion, Message, Sampling, Usage
from engines.core.waiting import deadline, gather_all, pause_deadlines
from engines.pipeline.budget import (
    Amounts,
    Budget,
    BudgetedPolicy,
    BudgetLimits,
    CallPricing,
    earlier_amounts,
    estimate_prompt_tokens,
)
from engines.policies.chat.client import OpenAICompat
from engines.policies.chat.endpoint import EndpointSettings
from engines.policies.limits import Slots, Throttled
from engines.record.ledger import RecordLedger
from studio.config.settings.policy import PolicyConfig
from studio.run.models import terms_of
from tests.support.builders import FakePolicy, answering
from tests.support.fake_endpoint import delta, fake_endpoint, refuses, says, sends
from tests.support.virtual_clock import on_virtual_clock

ASKED = (Message("user", "x" * 30),)  # 30 bytes / 3 + 8 = 18 tokens
A_SHORT_REPLY = Sampling(max_tokens=100)
TERMS = CallPricing(4096, 1.0, 2.0)


class Endings(list[str]):
    """The reasons a run was ended for; it goes on here, so that tests can look."""

    def __init__(self) -> None:
        super().__init__()
        self.happened = asyncio.Event()

    def __call__(self, reason: str) -> None:
        self.append(reason)
        self.happened.set()


class Busy:
    """A policy whose replies take a few turns of the loop and are as long as it pleases."""

    name = "busy:m"

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.spent = Amounts()
        self.under_way = 0
        self.most_at_once = 0

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, on_text: OnText | None = None
    ) -> Completion:
        self.under_way += 1
        self.most_at_once = max(self.most_at_once, self.under_way)
        try:
            for _ in range(self._random.randint(1, 9)):
                await asyncio.sleep(0)
        finally:
            self.under_way -= 1
        assert sampling.max_tokens is not None
        reply = self._random.randint(1, sampling.max_tokens)
        asked = self._random.randint(1, estimate_prompt_tokens(messages))
        usage = Usage(asked, reply, 1, TERMS.cost_usd(asked, reply))
        self.spent += TERMS.amounts_of(usage)
        if self._random.random() < 0.2:
            raise CallFailed("cut", "in the middle", usage)
        return Completion("ok", usage=usage)

    async def ping(self) -> None: ...

    async def aclose(self) -> None: ...


async def until_ended(work: asyncio.Task[list[None]], endings: Endings) -> None:
    """Wait until the work is done or the run was given up, then cancel it."""
    async with asyncio.timeout(20):
        given_up = asyncio.create_task(endings.happened.wait())
        await asyncio.wait({work, given_up}, return_when=asyncio.FIRST_COMPLETED)
        for task in (work, given_up):
            task.cancel()
        await asyncio.gather(work, given_up, return_exceptions=True)


@pytest.mark.parametrize("seed", range(40))
async def test_no_limit_is_ever_exceeded_however_long_the_replies_of_32_at_once(seed: int) -> None:
    chance = random.Random(seed)
    limits = chance.choice(
        [
            BudgetLimits(calls=90),
            BudgetLimits(tokens=6000),
            BudgetLimits(cost_usd=0.012),
            BudgetLimits(150, 9000, 0.01),
        ]
    )
    endings = Endings()
    budget = Budget(limits, endings)
    busy = Busy(seed)
    policy = Throttled(BudgetedPolicy(busy, budget, TERMS), Slots(32))

    async def ask() -> None:
        try:
            await policy.complete(ASKED, Sampling(max_tokens=chance.randint(10, 300)))
        except CallFailed:
            return

    await until_ended(asyncio.create_task(gather_all(ask() for _ in range(300))), endings)
    assert limits.first_exceeded(busy.spent) is None
    assert len(endings) == 1
    assert busy.most_at_once > 4  # the limits did not simply serialise the calls
    assert (budget.spent.calls, budget.spent.tokens) == (busy.spent.calls, busy.spent.tokens)
    assert budget.spent.cost_usd == pytest.approx(busy.spent.cost_usd)


async def test_a_run_that_fits_its_budget_to_the_call_ends_by_itself() -> None:
    endings = Endings()
    budget = Budget(BudgetLimits(calls=3), endings)
    policy = BudgetedPolicy(answering("a", "b", "c"), budget, TERMS)
    for _ in range(3):
        await policy.complete(ASKED, A_SHORT_REPLY)
    assert endings == []
    assert budget.remaining == {"calls": 0}


@pytest.mark.parametrize(("told", "calls"), [((), 1), ((NO_USAGE,), 0)])
async def test_a_call_that_is_cut_is_charged_unless_it_says_that_it_cost_nothing(
    told: tuple[Usage, ...], calls: int
) -> None:
    class Cut(FakePolicy):
        async def complete(
            self, messages: Sequence[Message], sampling: Sampling, on_text: OnText | None = None
        ) -> Completion:
            raise asyncio.CancelledError(*told)

    budget = Budget(BudgetLimits(calls=3), Endings())
    with pytest.raises(asyncio.CancelledError):
        await BudgetedPolicy(Cut("cut"), budget, TERMS).complete(ASKED, A_SHORT_REPLY)
    assert budget.spent.calls == calls


async def test_a_reply_that_is_drawn_again_is_not_paid_for_again(tmp_path: Path) -> None:
    budget = Budget(BudgetLimits(calls=1), Endings())
    policy = BudgetedPolicy(answering("a", "a"), budget, TERMS)
    ledger = RecordLedger(tmp_path, 1)
    key = CallKey("rollout", 1, 0, 0, 0)
    for _ in range(2):
        async with asyncio.timeout(20):
            reply, _ = await ledger.ask(key, policy, ASKED, A_SHORT_REPLY, again=True)
        assert reply.text == "a"
    await ledger.aclose()
    assert budget.spent.calls == 1


async def test_who_waits_for_money_stands_aside_until_there_is_some() -> None:
    aside: list[str] = []

    @contextlib.contextmanager
    def standing() -> Iterator[None]:
        aside.append("in")
        yield
        aside.append("out")

    budget = Budget(BudgetLimits(calls=1, tokens=10_000), Endings())
    settle = await budget.reserve(Amounts(1, 100))
    policy = BudgetedPolicy(answering("a"), budget, TERMS, aside=standing)
    asking = asyncio.create_task(policy.complete(ASKED, A_SHORT_REPLY))
    await asyncio.sleep(0)
    assert aside == ["in"]
    settle(Amounts())
    await asking
    assert aside == ["in", "out"]


async def test_a_call_waits_for_others_whose_reservations_come_back() -> None:
    endings = Endings()
    budget = Budget(BudgetLimits(tokens=200), endings)
    settle = await budget.reserve(Amounts(1, 150))
    waiting = asyncio.create_task(budget.reserve(Amounts(1, 120)))
    await asyncio.sleep(0)
    assert not waiting.done()
    settle(Amounts(1, 20))
    await asyncio.wait_for(waiting, 5)
    assert endings == []


async def test_what_is_under_way_is_awaited_before_the_run_is_given_up() -> None:
    endings = Endings()
    budget = Budget(BudgetLimits(tokens=200), endings)
    settle = await budget.reserve(Amounts(1, 50))
    too_long = asyncio.create_task(budget.reserve(Amounts(1, 500)))
    await asyncio.sleep(0)
    assert endings == []  # another call is being paid for
    settle(Amounts(1, 10))
    await asyncio.wait_for(endings.happened.wait(), 5)
    assert endings == [
        "budget.tokens=200: 10 spent, the next call may take 500; "
        "it takes budget.tokens=510 at least to go on"
    ]
    assert not too_long.done()  # no call is made: it waits to be cancelled with its run
    too_long.cancel()


async def test_nothing_is_begun_once_a_call_was_found_that_never_fits() -> None:
    endings = Endings()
    budget = Budget(BudgetLimits(tokens=200), endings)
    settle = await budget.reserve(Amounts(1, 50))
    never = asyncio.create_task(budget.reserve(Amounts(1, 500)))
    await asyncio.sleep(0)
    small = asyncio.create_task(budget.reserve(Amounts(1, 1)))
    await asyncio.sleep(0)
    never.cancel()
    settle(Amounts(1, 10))
    await asyncio.wait_for(endings.happened.wait(), 5)
    assert len(endings) == 1 and not small.done()
    small.cancel()


async def test_a_failed_call_gives_back_what_it_did_not_cost() -> None:
    budget = Budget(BudgetLimits(calls=9, tokens=1000), Endings())
    refused = CallFailed("refused", "nobody there")
    cut = CallFailed("cut", "in the middle", Usage(10, 5, 2))
    policy = BudgetedPolicy(answering(refused, cut), budget, TERMS)
    for _ in range(2):
        with pytest.raises(CallFailed):
            await policy.complete(ASKED, A_SHORT_REPLY)
    assert budget.remaining == {"calls": 7, "tokens": 985}


async def test_a_cancelled_call_gives_back_all_but_its_prompt() -> None:
    class Hanging(FakePolicy):
        async def complete(self, *_: object) -> Completion:
            return await asyncio.get_running_loop().create_future()

    budget = Budget(BudgetLimits(tokens=1000), Endings())
    asking = asyncio.create_task(
        BudgetedPolicy(Hanging(), budget, TERMS).complete(ASKED, A_SHORT_REPLY)
    )
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert budget.remaining == {"tokens": 1000 - 18}


async def test_waiting_for_money_and_waiting_for_a_slot_never_wait_for_each_other() -> None:
    """A rollout holds the only slot and wants money; a reflection wants the slot.

    Had the reflection reserved before it got the slot, neither could go on.
    """
    endings = Endings()
    slots = Slots(1)
    replies = answering(*(Completion("ok", usage=Usage(1, 1, 1)) for _ in range(2)))
    below = BudgetedPolicy(
        replies, Budget(BudgetLimits(tokens=120), endings), TERMS
    )  # for one at a time

    async with asyncio.timeout(5):
        async with slots.acquire():
            reflecting = asyncio.create_task(
                Throttled(below, slots, (0,)).complete(ASKED, Sampling(max_tokens=90))
            )
            await asyncio.sleep(0)
            await below.complete(ASKED, Sampling(max_tokens=1))
        await reflecting
    assert endings == []


async def test_an_endpoint_that_counts_nothing_is_counted_by_the_length_of_its_texts() -> None:
    budget = Budget(BudgetLimits(tokens=1000), Endings())
    uncounted = Completion("y" * 30, usage=Usage(calls=1))
    reply = await BudgetedPolicy(answering(uncounted), budget, TERMS).complete(ASKED, A_SHORT_REPLY)
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (18, 10)
    assert reply.usage.cost_usd == pytest.approx(38e-6)  # 18 at $1 and 10 at $2 a million
    assert budget.remaining == {"tokens": 972}


async def test_prompts_that_were_longer_than_estimated_make_later_estimates_longer() -> None:
    budget = Budget(BudgetLimits(tokens=1000), Endings())
    long = Completion("a", usage=Usage(180, 2, 1))  # ten times the 18 that were estimated
    policy = BudgetedPolicy(answering(long, "b"), budget, TERMS)
    await policy.complete(ASKED, A_SHORT_REPLY)
    # 818 are left: 18 + 700 would fit, 180 + 700 does not.
    second = asyncio.create_task(policy.complete(ASKED, Sampling(max_tokens=700)))
    await asyncio.sleep(0)
    assert not second.done()
    second.cancel()


async def test_a_reply_without_a_limit_of_its_own_is_reserved_at_the_endpoints() -> None:
    endings = Endings()
    policy = BudgetedPolicy(answering("a"), Budget(BudgetLimits(tokens=4000), endings), TERMS)
    asking = asyncio.create_task(policy.complete(ASKED, Sampling()))
    await asyncio.wait_for(endings.happened.wait(), 5)
    assert "the next call may take 4114" in endings[0]  # 18 + 4096
    asking.cancel()


def test_what_was_recorded_without_a_price_is_priced_by_the_run_file() -> None:
    paid = [("m", Usage(1000, 1000, 1, None)), ("m", Usage(0, 0, 1, 0.5)), ("n", Usage(7, 1, 1))]
    found = earlier_amounts(paid, {"m": TERMS})
    # 1,000 at $1 and 1,000 at $2 a million are $0.003; what is recorded with a cost keeps it.
    assert (found.calls, found.tokens) == (3, 2008)
    assert found.cost_usd == pytest.approx(0.503)


def test_the_first_limit_that_does_not_hold_is_named() -> None:
    assert BudgetLimits(calls=1, tokens=5).first_exceeded(Amounts(1, 6)) == "tokens"
    assert (
        BudgetLimits(cost_usd=0.3).first_exceeded(Amounts(9, 9, 0.1 + 0.2)) is None
    )  # sums of prices
    assert not BudgetLimits() and BudgetLimits(calls=1)


async def at_once(_: float) -> None:
    await asyncio.sleep(0)


async def test_retries_of_calls_that_cost_something_pass_no_limit() -> None:
    endings = Endings()
    async with fake_endpoint(sends(delta(content="hello "), cut=True)) as fake:
        endpoint = OpenAICompat(EndpointSettings("m", fake.base_url, max_retries=4), sleep=at_once)
        budget = Budget(BudgetLimits(calls=10), endings)
        policy = Throttled(BudgetedPolicy(endpoint, budget, CallPricing(100)), Slots(32))

        async def ask(seed: int) -> None:
            with contextlib.suppress(CallFailed):
                await policy.complete(ASKED, Sampling(seed=seed))

        await until_ended(asyncio.create_task(gather_all(ask(seed) for seed in range(30))), endings)
        await endpoint.aclose()
    assert len(fake.requests) == budget.spent.calls == 10
    assert len(endings) == 1


async def test_a_lone_call_is_tried_again_as_often_as_its_budget_allows() -> None:
    endings = Endings()
    async with fake_endpoint(sends(delta(content="hello "), cut=True)) as fake:
        endpoint = OpenAICompat(EndpointSettings("m", fake.base_url, max_retries=9), sleep=at_once)
        budget = Budget(BudgetLimits(calls=3), endings)
        asking = asyncio.create_task(
            BudgetedPolicy(endpoint, budget, CallPricing(100)).complete(ASKED, Sampling(seed=1))
        )
        await asyncio.wait_for(endings.happened.wait(), 5)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError) as cut:
            await asking
        await endpoint.aclose()
    assert (len(fake.requests), budget.spent.calls) == (3, 3)
    assert lost_usage(cut.value).calls == 3  # what its tries have cost is told with the end


async def test_a_call_that_waits_to_be_tried_again_holds_no_money() -> None:
    """Who waits for a slot with money in hand, and who waits for money in a slot, wait for ever."""
    resting, over = asyncio.Event(), asyncio.Event()

    async def rest(_: float) -> None:
        resting.set()
        await over.wait()

    async with fake_endpoint(refuses(500), says("4")) as fake:
        endpoint = OpenAICompat(EndpointSettings("m", fake.base_url), sleep=rest)
        budget = Budget(BudgetLimits(calls=2), Endings())
        asking = asyncio.create_task(
            BudgetedPolicy(endpoint, budget, CallPricing(100)).complete(ASKED, Sampling(seed=1))
        )
        await resting.wait()
        settle = await asyncio.wait_for(budget.reserve(Amounts(2, 10)), 5)
        settle(Amounts(1, 5))
        over.set()
        assert (await asking).text == "4"
        await endpoint.aclose()
    assert budget.spent.calls == 2


def test_waiting_for_money_is_no_part_of_a_deadline() -> None:
    async def main() -> tuple[str, float]:
        budget = Budget(BudgetLimits(calls=1), Endings())
        settle = await budget.reserve(Amounts(1))
        loop = asyncio.get_running_loop()
        loop.call_later(3600, settle, Amounts())  # an hour for others

        class Slow(FakePolicy):
            async def complete(self, *given: Any) -> Completion:
                await asyncio.sleep(20)
                return await super().complete(*given)

        policy = BudgetedPolicy(Slow().enqueue(["4"]), budget, TERMS)
        async with deadline(30):
            reply = await policy.complete(ASKED, A_SHORT_REPLY)
        with pytest.raises(TimeoutError):
            async with deadline(30), deadline(60):
                with pause_deadlines():
                    await asyncio.sleep(100)
                await asyncio.sleep(31)
        return reply.text, loop.time()

    # An hour and 20 s, then 100 s that do not count and 30 s that do.
    assert on_virtual_clock(main()) == ("4", 3600 + 20 + 100 + 30)


async def test_what_stands_before_every_prompt_does_not_multiply_long_ones() -> None:
    budget = Budget(BudgetLimits(tokens=10_000), Endings())
    short = Completion("a", usage=Usage(1518, 2, 1))  # 18 estimated, 1,500 of the endpoint's own
    policy = BudgetedPolicy(answering(short, "b"), budget, TERMS)
    await policy.complete(ASKED, A_SHORT_REPLY)
    long = (Message("user", "y" * 9000),)  # 3,008 estimated; 85 times as many do not fit
    assert (await asyncio.wait_for(policy.complete(long, A_SHORT_REPLY), 5)).text == "b"


async def test_limits_among_further_fields_and_several_replies_are_reserved() -> None:
    endings = Endings()
    terms = CallPricing(100, further_max_tokens=5000, replies=2)
    asking = asyncio.create_task(
        BudgetedPolicy(answering(), Budget(BudgetLimits(tokens=4000), endings), terms).complete(
            ASKED, A_SHORT_REPLY
        )
    )
    await asyncio.wait_for(endings.happened.wait(), 5)
    assert "may take 10018" in endings[0]  # 18 + 2 × 5,000
    asking.cancel()


@pytest.mark.parametrize(
    ("body", "most"),
    [
        ({}, 300),
        ({"max_completion_tokens": 900}, 900),
        ({"max_tokens": 700, "max_completion_tokens": 500, "n": 3}, 2100),
        ({"max_tokens": True, "n": "many"}, 300),
    ],
)
def test_the_terms_of_a_role_know_its_further_fields(body: dict[str, Any], most: int) -> None:
    settings = PolicyConfig(model="openai:m", max_tokens=300, extra_body=body)
    assert terms_of(settings).reply_tokens(300) == most
