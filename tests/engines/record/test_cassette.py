"""One cassette, recorded and played by its parts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from engines.core.errors import CallFailed
from engines.core.protocols import Embedder, EmbeddingResult, OnText, ToolTry
from engines.core.types import (
    CallKey,
    Completion,
    Message,
    Sampling,
    ToolCall,
    ToolResult,
    ToolSpec,
    Usage,
)
from engines.core.waiting import deadline, name_call
from engines.policies.chat.embedding import Reserve
from engines.record.cassette import (
    Cassette,
    CassetteError,
    PlayedPolicy,
    RecordingPolicy,
    Tape,
    TapedEmbedder,
    TapedToolbox,
)
from engines.secrets.mask import NO_SECRETS
from tests.support.tool_tries import a_call, a_try

KEY = CallKey("rollout", 1, 1, 0, 0)
QUESTION = (Message("user", "What?"),)
DRAWN = Sampling(seed=1)


def recording(path: Path, *, resumes: bool = False) -> Cassette:
    tape = Tape(path, plays=False)
    return tape.open("a test", mask=NO_SECRETS, resumes=resumes, tell=lambda _: None)


def playing(path: Path) -> Cassette:
    tape = Tape(path, plays=True)
    return tape.open("a test", mask=NO_SECRETS, resumes=False, tell=lambda _: None)


@dataclass
class Scripted:
    """Says its texts one after another; "" fails, and "…" never comes."""

    texts: list[str]
    name: str = "scripted:model"

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, on_text: OnText | None = None
    ) -> Completion:
        text = self.texts.pop(0)
        if text == "…":
            await asyncio.get_running_loop().create_future()
        if not text:
            raise CallFailed("status", "500", Usage(3, 0, 1, 0.25))
        return Completion(text, usage=Usage(3, 1, 1, 0.5))

    async def ping(self) -> None: ...

    async def aclose(self) -> None: ...


async def test_equal_requests_are_played_in_the_order_in_which_they_were_made(
    tmp_path: Path,
) -> None:
    policy = RecordingPolicy(Scripted(["one", "", "two"]), tape := recording(tmp_path / "tape"))
    for _ in range(3):
        try:
            await policy.complete(QUESTION, DRAWN)
        except CallFailed as failed:
            assert failed.usage.cost_usd == 0.25
    await tape.aclose()
    played, streamed = PlayedPolicy(playing(tmp_path / "tape"), "scripted:model"), list[str]()
    one = await played.complete(QUESTION, DRAWN, streamed.append)
    assert (one.text, one.usage, streamed) == ("one", Usage(3, 1, 1, 0.0), ["one"])
    with pytest.raises(CallFailed, match=r"^status: 500$") as failed_again:
        await played.complete(QUESTION, DRAWN)
    assert failed_again.value.usage == Usage(3, 0, 1, 0.0)
    assert (await played.complete(QUESTION, DRAWN)).text == "two"
    with pytest.raises(CassetteError, match="the same was asked less often"):
        await played.complete(QUESTION, DRAWN)


async def test_each_place_of_a_run_gets_its_own_reply_and_another_place_what_is_left(
    tmp_path: Path,
) -> None:
    policy = RecordingPolicy(Scripted(["first", "second"]), recording(tmp_path / "tape"))
    places = KEY, replace(KEY, index=1)
    for place in places:
        with name_call(place):
            await policy.complete(QUESTION, DRAWN)
    played = PlayedPolicy(playing(tmp_path / "tape"), "scripted:model")
    with name_call(places[1]):
        assert (await played.complete(QUESTION, DRAWN)).text == "second"
    assert (await played.complete(QUESTION, DRAWN)).text == "first"


async def test_a_call_that_its_deadline_ended_ends_by_it_again_without_the_wait(
    tmp_path: Path,
) -> None:
    policy = RecordingPolicy(Scripted(["…"]), tape := recording(tmp_path / "tape"))
    with pytest.raises(TimeoutError):
        async with deadline(0.01):
            await policy.complete(QUESTION, DRAWN)
    await tape.aclose()
    played = PlayedPolicy(playing(tmp_path / "tape"), "scripted:model")
    with pytest.raises(TimeoutError):
        async with deadline(600):
            await played.complete(QUESTION, DRAWN)


async def test_what_a_person_cut_short_is_not_recorded(tmp_path: Path) -> None:
    policy = RecordingPolicy(Scripted(["…", "made again"]), recording(tmp_path / "tape"))
    cut = asyncio.create_task(policy.complete(QUESTION, DRAWN))
    await asyncio.sleep(0)
    cut.cancel()
    await asyncio.gather(cut, return_exceptions=True)
    await policy.complete(QUESTION, DRAWN)
    played = PlayedPolicy(playing(tmp_path / "tape"), "scripted:model")
    assert (await played.complete(QUESTION, DRAWN)).text == "made again"


async def test_a_reply_that_a_killed_process_did_not_use_gives_way_to_the_one_that_was(
    tmp_path: Path,
) -> None:
    first = RecordingPolicy(Scripted(["unused"]), recording(tmp_path / "tape"))
    await first.complete(QUESTION, DRAWN)
    second = RecordingPolicy(Scripted(["used"]), recording(tmp_path / "tape", resumes=True))
    await second.complete(QUESTION, DRAWN)
    played = PlayedPolicy(playing(tmp_path / "tape"), "scripted:model")
    assert (await played.complete(QUESTION, DRAWN)).text == "used"
    with pytest.raises(CassetteError):
        await played.complete(QUESTION, DRAWN)


@dataclass
class Counting:
    """A tool that counts its calls, has an effect, and asks a model each time."""

    model: Scripted
    specs: tuple[ToolSpec, ...] = (ToolSpec("count", "Counts.", {}, repeatable=False),)
    calls: list[str] = field(default_factory=list)
    dies: bool = False

    async def check(self) -> None: ...

    async def call(self, call: ToolCall, within: ToolTry) -> ToolResult:
        if self.dies:
            raise asyncio.CancelledError
        self.calls.append(call.arguments)
        said = await within.ask(self.model, QUESTION, DRAWN)
        return ToolResult(f"{len(self.calls)} {said.text}", usage=said.usage)

    async def aclose(self) -> None: ...


async def test_a_tool_with_state_gives_its_results_in_place_and_its_model_is_asked_again(
    tmp_path: Path,
) -> None:
    tape = recording(tmp_path / "tape")
    model, asked = RecordingPolicy(Scripted(["x", "y"]), tape), list[str]()
    inner = Counting(model)  # type: ignore[arg-type]
    toolbox = TapedToolbox(inner, tape)
    async with a_try() as within:
        with name_call(KEY):
            assert (await toolbox.call(a_call("count"), within)).text == "1 x"
        with name_call(replace(KEY, turn=1)):
            assert (await toolbox.call(a_call("count"), within)).text == "2 y"
    played = TapedToolbox(Counting(Scripted([])), playing(tmp_path / "tape"))
    async with a_try() as within:
        plain = within.ask

        async def ask(policy, messages, sampling):  # type: ignore[no-untyped-def]
            asked.append((await plain(policy, messages, sampling)).text)

        within.ask = ask  # type: ignore[assignment]
        with name_call(replace(KEY, turn=1)):
            result = await played.call(a_call("count"), within)
        assert (result.text, result.usage.cost_usd, asked) == ("2 y", 0.0, ["y"])
        with name_call(replace(KEY, turn=2)), pytest.raises(CassetteError, match="nothing was"):
            await played.call(a_call("count"), within)


async def test_a_call_with_an_effect_under_way_as_the_process_died_is_played_as_interrupted(
    tmp_path: Path,
) -> None:
    toolbox = TapedToolbox(Counting(Scripted([]), dies=True), recording(tmp_path / "tape"))
    async with a_try() as within:
        with pytest.raises(asyncio.CancelledError):
            await toolbox.call(a_call("count"), within)
        played = TapedToolbox(Counting(Scripted([])), playing(tmp_path / "tape"))
        assert (await played.call(a_call("count"), within)).status == "interrupted"


async def test_vectors_are_played_exactly_and_what_they_took_is_settled_at_no_cost(
    tmp_path: Path,
) -> None:
    paid = list[Usage]()

    async def reserve(texts: Sequence[str]):  # type: ignore[no-untyped-def]
        return paid.append

    class Third:
        name = "openai:third"

        def __init__(self, reserve: Reserve) -> None:
            self.reserve = reserve

        async def embed(self, texts: Sequence[str]) -> EmbeddingResult:
            (await self.reserve(texts))(usage := Usage(5, 0, 1, 0.1))
            return EmbeddingResult(((1 / 3, -1e-8),) * len(texts), usage)

        async def ping(self) -> None: ...

        async def aclose(self) -> None: ...

    def refuse(reserve: Reserve) -> Embedder:
        raise AssertionError("it is opened")

    tape = TapedEmbedder("openai:third", recording(tmp_path / "tape"), reserve, Third)
    await tape.embed(["a", "b"])
    played = TapedEmbedder("openai:third", playing(tmp_path / "tape"), reserve, refuse)
    await played.ping()
    found = await played.embed(["a", "b"])
    assert [list(v) for v in found.vectors] == [pytest.approx([1 / 3, -1e-8])] * 2
    assert [usage.cost_usd for usage in paid] == [0.1, 0.0] and found.usage == paid[1]
