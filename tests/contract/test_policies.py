"""What every policy keeps to, whatever stands behind it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import orjson
import pytest

from engines.core.errors import AnswersPending, CallFailed
from engines.core.protocols import Policy
from engines.core.types import Message, Sampling
from engines.data.dataset import read_rollout_log
from engines.policies.chat.endpoint import EndpointSettings
from engines.policies.limits import Slots, StreamPacedPolicy, Throttled
from engines.policies.open import open_policy
from engines.policies.rehearsal.server import background_server
from tests.support.fake_endpoint import fake_endpoint, says

QUESTION = (Message("user", "What is 47 + 38?"),)
SEEDED = Sampling(seed=3)
Opened = Callable[[Path], AbstractAsyncContextManager[Policy]]


@contextlib.asynccontextmanager
async def rehearsal(folder: Path) -> AsyncIterator[Policy]:
    yield open_policy("rehearsal")


@contextlib.asynccontextmanager
async def rehearsal_served(folder: Path) -> AsyncIterator[Policy]:
    async with background_server() as base_url:
        yield open_policy("openai:rehearsal", EndpointSettings(base_url=base_url))


@contextlib.asynccontextmanager
async def openai(folder: Path) -> AsyncIterator[Policy]:
    async with fake_endpoint(says("47 + 38", " is ", "85.")) as fake:
        yield open_policy("openai:m", EndpointSettings(base_url=fake.base_url))


@contextlib.asynccontextmanager
async def replay(folder: Path) -> AsyncIterator[Policy]:
    row = {"question": QUESTION[0].content, "rollouts": [{"response": "85", "model": "m"}]}
    path = folder / "log.jsonl"
    path.write_bytes(orjson.dumps(row))
    yield open_policy(f"replay:{path}", read_log=read_rollout_log)


@contextlib.asynccontextmanager
async def handoff(folder: Path) -> AsyncIterator[Policy]:
    policy = open_policy(f"handoff:{folder}")
    with contextlib.suppress(AnswersPending):
        await policy.complete(QUESTION, SEEDED)
    for call in list(folder.glob("*.call.json")):
        (folder / call.name.replace("call.json", "answer.txt")).write_text("85")
    yield policy


@contextlib.asynccontextmanager
async def throttled(folder: Path) -> AsyncIterator[Policy]:
    yield Throttled(open_policy("rehearsal"), Slots(2))


@contextlib.asynccontextmanager
async def paced(folder: Path) -> AsyncIterator[Policy]:
    yield StreamPacedPolicy(open_policy("rehearsal"), 1e6)


@contextlib.asynccontextmanager
async def hf_local(folder: Path) -> AsyncIterator[Policy]:
    from engines.policies.hf_local.policy import HFLocal  # torch takes seconds to import
    from tests.engines.grpo.models import a_local

    yield HFLocal(a_local(folder, says_little=True), name="hf:little")


every_policy = pytest.mark.parametrize(
    "opened", [rehearsal, rehearsal_served, openai, replay, handoff, throttled, paced, hf_local]
)


@every_policy
async def test_the_completion_is_the_pieces_that_were_shown(opened: Opened, tmp_path: Path) -> None:
    async with opened(tmp_path) as policy:
        pieces: list[str] = []
        made = await policy.complete(QUESTION, SEEDED, pieces.append)
        await policy.aclose()
    assert made.text == "".join(pieces) != ""
    assert all(pieces)
    assert (made.finish, made.usage.calls) == ("stop", 1)
    assert made.model


@every_policy
async def test_the_same_request_and_seed_give_the_same_reply(
    opened: Opened, tmp_path: Path
) -> None:
    async with opened(tmp_path) as policy:
        first = await policy.complete(QUESTION, SEEDED)
        together = await asyncio.gather(*(policy.complete(QUESTION, SEEDED) for _ in range(8)))
        await policy.aclose()
    assert {made.text for made in together} == {first.text}


@every_policy
async def test_cancellation_passes_and_the_policy_goes_on(opened: Opened, tmp_path: Path) -> None:
    async with opened(tmp_path) as policy:
        for turns in range(6):  # cancelled at its first awaits, one later each time
            task = asyncio.create_task(policy.complete(QUESTION, SEEDED))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            done = await asyncio.gather(task, return_exceptions=True)
            assert isinstance(done[0], asyncio.CancelledError) or turns > 1, done
            assert not isinstance(done[0], CallFailed)
        assert (await policy.complete(QUESTION, SEEDED)).text
        await policy.aclose()


@every_policy
async def test_a_call_cancelled_by_its_own_listener_ends(opened: Opened, tmp_path: Path) -> None:
    async with opened(tmp_path) as policy:
        begun = asyncio.Event()
        task = asyncio.create_task(policy.complete(QUESTION, SEEDED, lambda _: begun.set()))
        await begun.wait()
        task.cancel()
        done = await asyncio.gather(task, return_exceptions=True)
        assert not isinstance(done[0], Exception)  # cancelled, or whole by then
        await policy.aclose()


@every_policy
async def test_an_answering_policy_passes_its_ping(opened: Opened, tmp_path: Path) -> None:
    async with opened(tmp_path) as policy:
        await policy.ping()
        await policy.aclose()


@every_policy
async def test_closing_twice_is_fine_used_or_not(opened: Opened, tmp_path: Path) -> None:
    for used in (False, True):
        async with opened(tmp_path) as policy:
            if used:
                await policy.complete(QUESTION, SEEDED)
            await policy.aclose()
            await policy.aclose()


@every_policy
async def test_a_policy_has_the_name_it_was_opened_with(opened: Opened, tmp_path: Path) -> None:
    async with opened(tmp_path) as policy:
        expected = {
            "rehearsal": "rehearsal",
            "throttled": "rehearsal",
            "paced": "rehearsal",
            "rehearsal_served": "openai:rehearsal",
            "openai": "openai:m",
            "replay": "replay:log",
            "handoff": f"handoff:{tmp_path.name}",
            "hf_local": "hf:little",
        }
        assert policy.name == expected[opened.__name__]  # type: ignore[attr-defined]
