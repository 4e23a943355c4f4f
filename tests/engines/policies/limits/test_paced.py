"""Scripted replies that stream at a pace: on a clock that jumps, so that no test waits."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from engines.agents.loops import SingleTurn
from engines.core.errors import lost_usage
from engines.core.types import CallKey, Completion, Job, Message, Problem, Sampling, Usage
from engines.core.waiting import deadline
from engines.policies.limits import Slots, StreamPacedPolicy
from engines.policies.open import is_scripted
from engines.record.ledger import RecordLedger
from engines.rollouts.manager import RolloutManager
from tests.support.builders import a_timeout, answering
from tests.support.virtual_clock import on_virtual_clock

ASKED = (Message("user", "What is 47 + 38?"),)
# 400 characters count as 100 tokens: 10 s at 10 tokens a second.
LONG = Completion("0123456789" * 40, usage=Usage(7, 100, 1))
PACE = 10.0


def played(policy: StreamPacedPolicy) -> tuple[Completion, list[tuple[float, str]]]:
    """The reply, and its pieces with the second in which each was heard."""

    async def listened() -> tuple[Completion, list[tuple[float, str]]]:
        clock = asyncio.get_running_loop().time
        heard: list[tuple[float, str]] = []
        made = await policy.complete(ASKED, Sampling(seed=1), lambda t: heard.append((clock(), t)))
        heard.append((clock(), ""))
        return made, heard

    return on_virtual_clock(listened())


def test_a_reply_streams_at_its_pace_and_says_the_same() -> None:
    made, heard = played(StreamPacedPolicy(answering(LONG), PACE))
    assert made == LONG
    assert "".join(text for _, text in heard) == LONG.text
    assert heard[0] == (0.0, "0123")  # at once: who watches sees that it has begun
    assert heard[-1][0] == pytest.approx(10.0)
    # A second after it began 10 tokens are there, of 4 characters each, and the next one.
    assert sum(len(text) for at, text in heard if at < 1.01) in (40, 44)


@pytest.mark.parametrize("pace", [1e-3, 0.5, 25.0, 1e6, 1e300])
def test_any_pace_takes_as_long_as_it_says(pace: float) -> None:
    made, heard = played(StreamPacedPolicy(answering(LONG), pace))
    assert "".join(text for _, text in heard) == made.text == LONG.text
    assert heard[-1][0] == pytest.approx(100 / pace)


def test_a_reply_to_which_nobody_listens_is_there_at_once() -> None:
    async def asked() -> tuple[Completion, float]:
        made = await StreamPacedPolicy(answering(LONG), PACE).complete(ASKED, Sampling())
        return made, asyncio.get_running_loop().time()

    assert on_virtual_clock(asked()) == (LONG, 0.0)


def test_the_pace_is_no_part_of_any_deadline() -> None:
    async def hurried() -> Completion:
        heard: list[str] = []
        async with deadline(0.5):
            return await StreamPacedPolicy(answering(LONG), PACE).complete(
                ASKED, Sampling(), heard.append
            )

    assert on_virtual_clock(hurried()) == LONG


def test_a_reply_that_is_cancelled_ends_at_once_and_tells_what_it_cost() -> None:
    async def cancelled() -> tuple[str, float, Usage]:
        heard: list[str] = []
        task = asyncio.create_task(
            StreamPacedPolicy(answering(LONG), PACE).complete(ASKED, Sampling(), heard.append)
        )
        await asyncio.sleep(2.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as cut:
            await task
        return "".join(heard), asyncio.get_running_loop().time(), lost_usage(cut.value)

    text, ended, usage = on_virtual_clock(cancelled())
    assert (len(text), ended) == (21 * 4, 2.05)  # one piece of a token each tenth of a second
    assert usage == LONG.usage


def test_a_pause_stops_the_text_where_it_is_and_it_goes_on_from_there() -> None:
    async def paused() -> list[int]:
        going = asyncio.Event()
        going.set()
        heard: list[str] = []
        task = asyncio.create_task(
            StreamPacedPolicy(answering(LONG), PACE, going.wait).complete(
                ASKED, Sampling(), heard.append
            )
        )
        lengths = []
        await asyncio.sleep(1.05)
        going.clear()
        lengths.append(len("".join(heard)))
        await asyncio.sleep(3600)
        lengths.append(len("".join(heard)))
        going.set()
        assert await task == LONG
        return [*lengths, len("".join(heard))]

    assert on_virtual_clock(paused()) == [44, 44, 400]


def test_a_call_that_fails_fails_as_without_a_pace() -> None:
    with pytest.raises(type(a_timeout())):
        played(StreamPacedPolicy(answering(a_timeout()), PACE))


def test_a_rollout_that_is_killed_midway_ends_at_once_as_a_failed_one(tmp_path: Path) -> None:
    key = CallKey("rollout", 1, 1, 0, 0)

    async def killed() -> tuple[str, str | None, float]:
        heard: list[str] = []
        ledger = RecordLedger(tmp_path, 1)
        manager = RolloutManager(
            SingleTurn("solve", Sampling()),
            StreamPacedPolicy(answering(LONG), PACE),
            ledger,
            Slots(1),
            60.0,
        )
        task = asyncio.create_task(
            manager.roll_out(Job(Problem("p", "q"), "", key, 0, 0), heard.append)
        )
        await asyncio.sleep(3)
        assert manager.kill(1, 0, 0, "killed by ann")
        attempt, _ = await task
        await ledger.aclose()
        assert attempt.usage == LONG.usage  # it was paid for, however little was seen of it
        return attempt.status, attempt.error, asyncio.get_running_loop().time()

    assert on_virtual_clock(killed()) == ("failed", "killed by ann", 3.0)


@pytest.mark.parametrize(
    ("spec", "scripted"),
    [
        ("rehearsal", True),
        ("rehearsal:slow", True),
        ("replay:log.jsonl", True),
        ("openai:rehearsal", False),
        ("openai:m", False),
    ],
)
def test_only_what_asks_no_model_is_scripted(spec: str, scripted: bool) -> None:
    assert is_scripted(spec) is scripted
