"""Rollouts: one limit, one deadline each, every failure a fact."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from engines.agents.loops import SingleTurn
from engines.core.errors import CallFailed, RecordError
from engines.core.protocols import OnText
from engines.core.types import (
    NO_USAGE,
    Attempt,
    CallKey,
    Completion,
    Job,
    Message,
    Problem,
    Sampling,
    Usage,
)
from engines.pipeline.budget import Amounts, Budget, BudgetedPolicy, BudgetLimits, CallPricing
from engines.policies.chat.client import OpenAICompat
from engines.policies.chat.endpoint import EndpointSettings
from engines.policies.limits import Slots
from engines.record.ledger import RecordLedger, read_record, read_trajectory
from engines.rollouts.manager import RecordedPolicy, RolloutManager
from tests.support.builders import FakePolicy, answering
from tests.support.fake_endpoint import delta, fake_endpoint, hangs
from tests.support.usage import read_usage
from tests.support.virtual_clock import on_virtual_clock


@dataclass
class Gated:
    """Answers once `open` is set; counts how many are asked at a time."""

    name: str = "gated"
    open: asyncio.Event = field(default_factory=asyncio.Event)
    asked: int = 0
    now: int = 0
    most: int = 0

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, on_text: OnText | None = None
    ) -> Completion:
        self.asked += 1
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await self.open.wait()
        finally:
            self.now -= 1
        return Completion("42")

    async def ping(self) -> None: ...

    async def aclose(self) -> None: ...


def a_job(index: int = 0) -> Job:
    return Job(Problem("p", "6 * 7?", "42"), "", CallKey("rollout", 1, 1, 0, index), 0, 0)


def manager(tmp_path: Path, policy: Gated, *, limit: int = 2, timeout_s: float = 60.0, **more):  # type: ignore[no-untyped-def]
    agent = more.pop("agent", SingleTurn("", Sampling()))
    return RolloutManager(agent, policy, RecordLedger(tmp_path, 1), Slots(limit), timeout_s, **more)


async def idle() -> None:
    """Let everything run that can."""
    for _ in range(50):
        await asyncio.sleep(0)


async def test_no_more_rollouts_run_at_a_time_than_the_limit(tmp_path: Path) -> None:
    policy = Gated()
    rollouts = manager(tmp_path, policy, limit=2)
    tasks = [asyncio.create_task(rollouts.roll_out(a_job(n))) for n in range(6)]
    await idle()
    assert policy.asked == 2
    policy.open.set()
    await asyncio.gather(*tasks)
    assert (policy.asked, policy.most) == (6, 2)


async def test_a_pause_also_holds_jobs_that_had_queued_for_a_slot(tmp_path: Path) -> None:
    policy, running = Gated(), asyncio.Event()
    running.set()
    rollouts = manager(tmp_path, policy, limit=1, cleared=running.wait)
    tasks = [asyncio.create_task(rollouts.roll_out(a_job(n))) for n in range(3)]
    await idle()
    running.clear()
    policy.open.set()
    await tasks[0]  # what was under way ends
    await idle()
    assert policy.asked == 1
    running.set()
    await asyncio.gather(*tasks)
    assert policy.asked == 3


async def test_a_rollout_past_its_deadline_fails_and_frees_its_slot(tmp_path: Path) -> None:
    policy = Gated()
    rollouts = manager(tmp_path, policy, limit=1, timeout_s=0.01)
    attempt, refs = await rollouts.roll_out(a_job())
    assert (attempt.status, attempt.answer, refs) == ("failed", None, ())
    assert attempt.error == "timeout: no answer within 0.01 s"
    assert policy.now == 0
    assert rollouts.slots.held_count == 0


@dataclass(frozen=True)
class Broken:
    error: Exception

    async def attempt(self, job: Job, policy: object, on_text: OnText | None = None) -> Attempt:
        raise self.error


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (CallFailed("refused", "nobody there"), "refused: nobody there"),
        (ZeroDivisionError("division by zero"), "ZeroDivisionError: division by zero"),
    ],
)
async def test_a_failure_is_a_recorded_fact_with_its_text(
    error: Exception, text: str, tmp_path: Path
) -> None:
    attempt, _ = await manager(tmp_path, Gated(), agent=Broken(error)).roll_out(a_job())
    assert attempt.status == "failed"
    assert attempt.error == text
    assert attempt.usage == NO_USAGE


async def test_a_record_that_cannot_be_written_is_no_fact_of_practice(tmp_path: Path) -> None:
    broken = Broken(RecordError("disk", "is full.", "Make room."))
    with pytest.raises(RecordError):
        await manager(tmp_path, Gated(), agent=broken).roll_out(a_job())


async def test_a_cancelled_rollout_passes_the_cancellation_on(tmp_path: Path) -> None:
    rollouts = manager(tmp_path, Gated())
    task = asyncio.create_task(rollouts.roll_out(a_job()))
    await idle()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert rollouts.slots.held_count == 0


@dataclass(frozen=True)
class Twice:
    """Asks, adds the reply, asks again."""

    async def attempt(self, job: Job, policy: Gated, on_text: OnText | None = None) -> Attempt:
        messages: tuple[Message, ...] = (Message("user", job.problem.question),)
        for _ in range(2):
            reply = await policy.complete(messages, Sampling())
            messages = (*messages, reply.as_message())
        return Attempt(messages, messages[-1].content)


async def test_every_turn_is_recorded_under_its_own_key(tmp_path: Path) -> None:
    policy = Gated()
    policy.open.set()
    rollouts = manager(tmp_path, policy, agent=Twice())
    attempt, refs = await rollouts.roll_out(a_job())
    assert len(refs) == 2
    assert read_trajectory(tmp_path, refs) == attempt.messages
    await rollouts.roll_out(a_job())  # the same try again costs nothing
    assert policy.asked == 2


@dataclass
class Talkative:
    """Answers a million characters, thoughts included, and asks again for ever."""

    name: str = "talkative"

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, on_text: OnText | None = None
    ) -> Completion:
        return Completion("x" * 600_000, "y" * 400_000, usage=Usage(1, 250_000, 1))

    async def ping(self) -> None: ...

    async def aclose(self) -> None: ...


@dataclass(frozen=True)
class Endless:
    async def attempt(self, job: Job, policy: Talkative, on_text: OnText | None = None) -> Attempt:
        while True:
            await policy.complete((Message("user", job.problem.question),), Sampling())


async def test_a_try_whose_replies_grow_too_long_together_fails_and_is_paid(
    tmp_path: Path,
) -> None:
    rollouts = manager(tmp_path, Talkative(), agent=Endless())  # type: ignore[arg-type]
    attempt, refs = await rollouts.roll_out(a_job())
    assert attempt.error == "too long: the replies of one try have more than 4,000,000 characters"
    assert (attempt.status, attempt.usage.calls, len(refs)) == ("failed", 5, 5)


async def test_a_rollout_that_failed_still_tells_what_its_call_may_have_cost(
    tmp_path: Path,
) -> None:
    @dataclass
    class Lost(Talkative):
        async def complete(self, *_: object) -> Completion:  # type: ignore[override]
            raise CallFailed("cut", "in the middle", Usage(9, 4, 2))

    rollouts = manager(tmp_path, Lost(), agent=SingleTurn("", Sampling()))  # type: ignore[arg-type]
    attempt, _ = await rollouts.roll_out(a_job())
    assert (attempt.status, attempt.usage) == ("failed", Usage(9, 4, 2))


async def test_a_rollout_cut_by_its_deadline_is_charged_for_the_call_that_was_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = asyncio.timeout(None)  # when the first words have come, on a busy machine too
    monkeypatch.setattr("engines.core.waiting.deadline", lambda _: ends)
    async with fake_endpoint(hangs(delta(content="w" * 400))) as fake:
        policy = OpenAICompat(EndpointSettings("m", fake.base_url))
        ledger = RecordLedger(tmp_path, 1)
        rollouts = RolloutManager(SingleTurn("", Sampling()), policy, ledger, Slots(1), 2.0)
        attempt, _ = await rollouts.roll_out(a_job(), lambda _: ends.reschedule(0))
        await policy.aclose()
        await ledger.aclose()
    assert attempt.error == "timeout: no answer within 2 s"
    ((_, recorded),) = read_usage(tmp_path)
    assert attempt.usage == recorded
    assert (recorded.calls, recorded.completion_tokens) == (1, 100)


def test_waiting_for_money_is_no_part_of_a_rollout_s_deadline(tmp_path: Path) -> None:
    async def main() -> Attempt:
        budget = Budget(BudgetLimits(calls=1), lambda _: None)
        settle = await budget.reserve(Amounts(1))
        asyncio.get_running_loop().call_later(3600, settle, Amounts())
        policy = BudgetedPolicy(answering("42"), budget, CallPricing(100))
        ledger = RecordLedger(tmp_path, 1)
        rollouts = RolloutManager(SingleTurn("", Sampling()), policy, ledger, Slots(1), 30.0)
        attempt, _ = await rollouts.roll_out(a_job())
        await ledger.aclose()
        return attempt

    assert on_virtual_clock(main()).status == "ok"


async def test_the_calls_of_a_try_are_numbered_also_where_no_token_ids_come_back(
    tmp_path: Path,
) -> None:
    ledger = RecordLedger(tmp_path, 1)
    policy = FakePolicy().enqueue(["one", "two"])
    recorded = RecordedPolicy(policy, ledger, CallKey("rollout", 1, 1, 0, 0))
    for _ in range(2):
        await recorded.complete([Message("user", "go on")], Sampling())
    await ledger.aclose()
    assert [read_record(tmp_path, ref).key.turn for ref in recorded.refs] == [0, 1]
