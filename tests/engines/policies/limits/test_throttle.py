"""Slots by priority: order, limits, cancellation, and the policy that holds one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.core.protocols import OnText
from engines.core.types import CallKey, Completion, Job, Message, Problem, Sampling
from engines.policies.limits import Slots, Throttled
from engines.policies.replay import ReplayPolicy


async def settle() -> None:
    """Let every task run until it waits: each turn of the loop steps all that are ready."""
    for _ in range(20):
        await asyncio.sleep(0)


@dataclass
class Stage:
    """Holders that leave when told, over slots that are watched all the time."""

    slots: Slots
    entered: list[int] = field(default_factory=list)
    inside: set[int] = field(default_factory=set)
    doors: dict[int, asyncio.Event] = field(default_factory=dict)
    tasks: dict[int, asyncio.Task[None]] = field(default_factory=dict)

    def come(self, number: int, priority: tuple[int, ...] = ()) -> None:
        self.doors[number] = asyncio.Event()
        self.tasks[number] = asyncio.create_task(self._hold(number, priority))

    async def _hold(self, number: int, priority: tuple[int, ...]) -> None:
        async with self.slots.acquire(priority):
            self.entered.append(number)
            self.inside.add(number)
            try:
                await self.doors[number].wait()
            finally:
                self.inside.discard(number)

    async def close(self) -> None:
        for task in self.tasks.values():
            task.cancel()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)


async def test_free_slots_go_to_the_smallest_priority_and_among_equals_to_the_first() -> None:
    stage = Stage(Slots(1))
    stage.come(0)
    await settle()
    for number, priority in enumerate([(2, 0), (1, 5), (1, 5), (1,), (0, 9, 9)], start=1):
        stage.come(number, priority)
        await settle()
    for number in [0, 5, 4, 2, 3]:
        stage.doors[number].set()
        await settle()
    assert stage.entered == [0, 5, 4, 2, 3, 1]
    await stage.close()
    assert stage.slots.held_count == 0


async def test_a_waiter_cancelled_in_the_turn_it_is_granted_passes_the_slot_on() -> None:
    stage = Stage(Slots(1))
    for number in range(3):
        stage.come(number)
    await settle()
    assert stage.inside == {0}
    stage.doors[0].set()
    # One turn in which 0 leaves and grants 1, which has not run since.
    while stage.slots.waiting_count == 2:
        await asyncio.sleep(0)
    assert stage.entered == [0]
    stage.tasks[1].cancel()
    await settle()
    assert stage.entered == [0, 2]
    await stage.close()
    assert stage.slots.held_count == 0


async def test_a_cancelled_holder_frees_its_slot() -> None:
    stage = Stage(Slots(1))
    stage.come(0)
    stage.come(1)
    await settle()
    stage.tasks[0].cancel()
    await settle()
    assert stage.inside == {1}
    await stage.close()


async def test_a_larger_limit_starts_waiters_and_a_smaller_one_stops_nobody() -> None:
    stage = Stage(Slots(1))
    for number in range(5):
        stage.come(number)
    await settle()
    stage.slots.resize(3)
    await settle()
    assert stage.inside == {0, 1, 2}
    stage.slots.resize(1)
    stage.doors[0].set()
    stage.doors[1].set()
    await settle()
    assert (stage.inside, stage.slots.waiting_count) == ({2}, 2)
    stage.doors[2].set()
    await settle()
    assert stage.inside == {3}
    await stage.close()


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_under_one_is_refused(limit: int) -> None:
    with pytest.raises(ValueError, match="for ever"):
        Slots(limit)


moves = st.lists(
    st.one_of(
        st.tuples(st.just("come"), st.integers(0, 3)),
        st.tuples(st.just("leave"), st.integers(0, 30)),
        st.tuples(st.just("cancel"), st.integers(0, 30)),
        st.tuples(st.just("resize"), st.integers(1, 4)),
        st.tuples(st.just("settle"), st.just(0)),
    ),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(moves=moves, limit=st.integers(1, 3))
def test_no_slot_is_lost_or_made_whatever_happens(moves: list[tuple[str, int]], limit: int) -> None:
    asyncio.run(play(moves, limit))


async def play(moves: list[tuple[str, int]], limit: int) -> None:
    stage = Stage(Slots(limit))
    highest = limit
    for what, number in moves:
        match what:
            case "come":
                stage.come(len(stage.tasks), (number,))
            case "leave" if number in stage.doors:
                stage.doors[number].set()
            case "cancel" if number in stage.tasks:
                stage.tasks[number].cancel()
            case "resize":
                stage.slots.resize(number)
                highest = max(highest, number)
            case "settle":
                await settle()
                # At rest: nobody waits while a slot is free, and the counts agree.
                assert stage.slots.held_count == len(stage.inside) <= highest
                assert stage.slots.waiting_count == 0 or stage.slots.held_count >= stage.slots.limit
    for door in stage.doors.values():
        door.set()
    await asyncio.gather(*stage.tasks.values(), return_exceptions=True)
    assert (stage.slots.held_count, stage.slots.waiting_count) == (0, 0)


class Counting:
    """A policy that counts how many of its calls run at once."""

    def __init__(self) -> None:
        self.running = self.most = 0
        self.closed = False

    @property
    def name(self) -> str:
        return "counting"

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, on_text: OnText | None = None
    ) -> Completion:
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0)
        self.running -= 1
        return Completion(messages[-1].content)

    async def ping(self) -> None: ...

    async def aclose(self) -> None:
        self.closed = True


async def test_a_throttled_policy_never_runs_more_calls_than_there_are_slots() -> None:
    inner = Counting()
    policy = Throttled(inner, Slots(3))
    asked = [policy.complete([Message("user", str(n))], Sampling()) for n in range(20)]
    assert [made.text for made in await asyncio.gather(*asked)] == [str(n) for n in range(20)]
    assert (inner.most, policy.name) == (3, "counting")
    await policy.aclose()
    assert inner.closed


async def test_a_throttled_policy_binds_to_a_job_when_the_inner_one_can(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    log = {"q?": (Completion("a"), Completion("b"))}
    job = Job(Problem("p", "q?"), "", CallKey("rollout", 1, 1, 0, 1), 0, 0)
    bound = Throttled(ReplayPolicy(path, log), Slots(1)).for_job(job)
    assert isinstance(bound, Throttled)
    assert (await bound.complete([Message("user", "q?")], Sampling(seed=0))).text == "b"
    plain = Throttled(Counting(), Slots(1))
    assert plain.for_job(job) is plain
