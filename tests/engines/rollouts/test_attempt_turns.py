"""What a policy that owns its weights sampled reaches the engine as exact ids, from any agent."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from engines.agents.loops import SingleTurn
from engines.core import events as ev
from engines.core.errors import CallFailed
from engines.core.protocols import Agent, OnText, Policy
from engines.core.state.run_state import StepState
from engines.core.types import (
    Attempt,
    CallKey,
    Completion,
    Job,
    Message,
    Problem,
    RecordRef,
    Sampling,
    Turn,
    Usage,
)
from engines.pipeline.replay_training import load_rollout
from engines.policies.limits import Slots
from engines.record.ledger import RecordLedger
from engines.rollouts.manager import RolloutManager

FIRST = Turn((1, 2), (3, 4), (-0.5, -0.1234567890123), "stop")
SECOND = Turn((1, 2, 3, 4, 5), (6,), (-0.25,), "length")


@dataclass
class Scripted:
    """Gives these turns one after the other, then never answers."""

    turns: Sequence[Turn | None]
    name: str = "hf:scripted"
    asked: list[tuple[Message, ...]] = field(default_factory=list)

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, on_text: OnText | None = None
    ) -> Completion:
        self.asked.append(tuple(messages))
        if len(self.asked) > len(self.turns):
            await asyncio.get_running_loop().create_future()
        turn = self.turns[len(self.asked) - 1]
        if turn is None:
            return Completion("said", usage=Usage(1, 1, 1))
        return Completion(
            "said",
            finish=turn.finish,
            usage=Usage(1, 1, 1),
            prompt_ids=turn.prompt_ids,
            token_ids=turn.token_ids,
            logprobs=turn.logprobs,
        )

    async def ping(self) -> None: ...

    async def aclose(self) -> None: ...


@dataclass(frozen=True)
class Talks:
    """Knows nothing of ids; asks so many times, and then fails where it is told to."""

    times: int
    error: Exception | None = None

    async def attempt(self, job: Job, policy: Policy, on_text: OnText | None = None) -> Attempt:
        messages: tuple[Message, ...] = (Message("user", job.problem.question),)
        for _ in range(self.times):
            reply = await policy.complete(messages, Sampling())
            messages = (*messages, reply.as_message(), Message("user", "go on"))
        if self.error is not None:
            raise self.error
        return Attempt(messages, "said")


JOB = Job(Problem("p", "6 * 7?", "42"), "", CallKey("rollout", 1, 2, 3, 4), 7, 0)


async def rolled(
    folder: Path, agent: Agent, policy: Scripted, timeout_s: float = 60.0
) -> tuple[Attempt, tuple[RecordRef, ...]]:
    ledger = RecordLedger(folder, 1)
    try:
        return await RolloutManager(agent, policy, ledger, Slots(1), timeout_s).roll_out(JOB)
    finally:
        await ledger.aclose()


def again(folder: Path, attempt: Attempt, refs: tuple[RecordRef, ...]) -> Attempt:
    """The same try as a later process knows it."""
    now = StepState(1, 2, ("p",), 0, policy_version=7)
    done = ev.RolloutFinished(
        step=2,
        position=3,
        index=4,
        seed=9,
        status=attempt.status,
        answer=attempt.answer,
        error=attempt.error,
        usage=attempt.usage,
        elapsed_s=0.0,
        tail="",
        refs=refs,
    )
    rollout = load_rollout(folder, now, done)
    assert rollout.policy_version == 7
    return rollout.attempt


async def test_every_turn_of_any_agent_is_kept_and_remembered_as_it_was(tmp_path: Path) -> None:
    policy = Scripted([FIRST, SECOND])
    attempt, refs = await rolled(tmp_path, Talks(2), policy)
    assert attempt.turns == (FIRST, SECOND)
    assert policy.asked[1][1].token_ids == FIRST.token_ids  # no later turn reads text again
    assert again(tmp_path, attempt, refs).turns == attempt.turns


@pytest.mark.parametrize(
    "error", [CallFailed("too long", "no room"), ValueError("the agent's own fault")]
)
async def test_a_failed_try_keeps_the_turns_it_came_to(error: Exception, tmp_path: Path) -> None:
    attempt, refs = await rolled(tmp_path, Talks(1, error), Scripted([FIRST]))
    assert (attempt.status, attempt.messages, attempt.turns) == ("failed", (), (FIRST,))
    known = again(tmp_path, attempt, refs)
    assert (known.status, known.messages, known.turns) == ("failed", (), (FIRST,))


async def test_a_try_that_ran_out_of_time_keeps_the_turns_before(tmp_path: Path) -> None:
    attempt, _ = await rolled(tmp_path, Talks(2), Scripted([FIRST]), timeout_s=0.05)
    assert attempt.error is not None
    assert attempt.error.startswith("timeout")
    assert attempt.turns == (FIRST,)


async def test_a_policy_without_ids_gives_no_turns(tmp_path: Path) -> None:
    attempt, refs = await rolled(tmp_path, SingleTurn("", Sampling()), Scripted([None]))
    assert attempt.turns == again(tmp_path, attempt, refs).turns == ()


async def test_a_recorded_reply_is_asked_for_again_only_where_tries_attend(tmp_path: Path) -> None:
    """The company gets its reply; the try gets the one that was recorded."""
    await rolled(tmp_path, Talks(1), Scripted([FIRST]))
    for attends, asked in ((False, 0), (True, 1)):
        policy, ledger = Scripted([SECOND]), RecordLedger(tmp_path, 1)
        attending = Counted().attending if attends else None
        manager = RolloutManager(
            agent=Talks(1),
            policy=policy,
            ledger=ledger,
            slots=Slots(1),
            task_timeout_s=60.0,
            cleared=None,
            attending=attending,
        )
        attempt, _ = await manager.roll_out(JOB)
        assert (attempt.turns, len(policy.asked)) == ((FIRST,), asked)
        assert (ledger.asked, ledger.paid.calls, ledger.reused) == (0, 0, 1)
        await ledger.aclose()


@dataclass
class Counted:
    now: int = 0
    most: int = 0

    @contextmanager
    def attending(self) -> Iterator[None]:
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            yield
        finally:
            self.now -= 1


async def test_a_try_attends_from_its_slot_on_until_it_ends_however_it_does(tmp_path: Path) -> None:
    counted, running = Counted(), asyncio.Event()
    policy, ledger = Scripted([]), RecordLedger(tmp_path, 1)
    manager = RolloutManager(
        agent=Talks(1),
        policy=policy,
        ledger=ledger,
        slots=Slots(2),
        task_timeout_s=60.0,
        cleared=running.wait,
        attending=counted.attending,
    )
    tasks = [asyncio.create_task(manager.roll_out(JOB)) for _ in range(3)]
    for _ in range(10):
        await asyncio.sleep(0)
    assert counted.most == 0  # a pause holds them before
    running.set()
    for _ in range(10):
        await asyncio.sleep(0)
    assert counted.now == 2  # the third has no slot
    assert manager.kill(2, 3, 4, "killed by ann")
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert counted.now == 0
    await ledger.aclose()
