"""`studio serve`: what any client gets is what `studio try` gets."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import sample_data
from engines.core.codec import call_seed
from engines.core.errors import CallFailed, StudioError
from engines.core.types import Attempt, Message, Problem
from engines.data.dataset import read_problems
from engines.record.run_dir import Workspace
from studio.config.loading import load_run
from studio.evaluation.try_problem import KEY, Trial, run_trial
from studio.library.curation import commit_changes
from studio.run.library import choose_library
from studio.secrets.output import mask_text
from studio.serving import enhanced_agent
from studio.serving.enhanced_agent import (
    EnhancedAgent,
    load_enhanced,
    read_token,
    serving,
    status_of,
)
from tests.support.builders import answering
from tests.support.fake_endpoint import Exchange, fake_endpoint, hangs, refuses, says
from tests.support.forked_studio import STUDIO, ForkedStudio
from tests.support.run_studio import studio

if TYPE_CHECKING:
    from openai import AsyncOpenAI

Q: Any = [{"role": "user", "content": "What is 17 + 25?"}]
TOKEN = "0123456789-abcdef"
SEED = call_seed(1, KEY)
"""Of a try; a call has none of its own."""


def a_library(workspace: Path, *overrides: str, name: str = "rehearsal") -> EnhancedAgent:
    return load_enhanced(name, overrides, Workspace(workspace), "rehearsal")


@asynccontextmanager
async def a_server(agent: EnhancedAgent, *, token: str = "") -> AsyncIterator[AsyncOpenAI]:
    """A client of the server."""
    from openai import AsyncOpenAI

    async with (
        serving(agent, 0, "127.0.0.1", token) as url,
        AsyncOpenAI(base_url=url, api_key=token or "none", max_retries=0) as client,
    ):
        yield client


async def ask(client: AsyncOpenAI, messages: Any = Q, **more: Any) -> str:
    made = await client.chat.completions.create(model="m", messages=messages, **more)
    return made.choices[0].message.content or ""


async def tried(workspace: Path, problem: Problem, file: str, *words: str, name: Any) -> Attempt:
    """What `studio try` does."""
    loaded = load_run(file, words, workspace)
    trial = Trial(loaded, problem, *choose_library(loaded, Workspace(workspace), name))
    return (await run_trial(trial, Workspace(workspace)))[0].attempt


@pytest.mark.parametrize("kind", ["agent", "library"])
async def test_fifty_problems_get_the_text_of_a_try_streamed_or_not(
    practised: Path, kind: str
) -> None:
    file, name = str(practised / "runs/rehearsal/agent.yaml"), None
    agent = load_enhanced(file, (), Workspace(practised), None)
    if kind == "library":
        file, name = "rehearsal", "rehearsal"
        agent = a_library(practised)
    sets = (Path(sample_data.__file__).parent / f"arithmetic{x}.jsonl" for x in ("", "-heldout"))
    problems = [problem for path in sets for problem in read_problems(path)][:50]
    assert len(problems) == 50
    async with a_server(agent) as client:
        for problem in problems:
            text = (await tried(practised, problem, file, name=name)).answer
            asked: Any = [{"role": "user", "content": problem.question}]
            assert await ask(client, asked, seed=SEED) == text
            stream = await client.chat.completions.create(
                model="m", messages=asked, seed=SEED, stream=True
            )
            pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
            assert "".join(pieces) == text and len(pieces) > 3


async def test_the_endpoint_is_sent_what_a_try_sends_it_but_for_the_seed(practised: Path) -> None:
    async with fake_endpoint(says("42")) as fake:
        words = ("policy=openai:m", f"policy.base_url={fake.base_url}")
        problem = Problem("p", Q[0]["content"], "42")
        await tried(practised, problem, "rehearsal", *words, name="rehearsal")
        async with a_server(a_library(practised, *words)) as client:
            await ask(client)
    of_try, _, served = fake.bodies[1:]  # each begins with a ping
    assert served == {name: value for name, value in of_try.items() if name != "seed"}
    assert "[E1]" in served["messages"][0]["content"]


async def test_what_a_client_sets_counts_and_nothing_beyond_the_agents_limit(
    practised: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    form = {"type": "json_object"}
    async with fake_endpoint(says("42")) as fake:
        limit = ("policy.max_tokens=50", f"policy.base_url={fake.base_url}")
        agent = a_library(practised, "policy=openai:m", *limit)
        async with a_server(agent) as client:
            system: Any = [{"role": "system", "content": "Be short."}, *Q]
            more: Any = {"temperature": 0, "max_tokens": 900, "logprobs": True}
            await ask(client, system, response_format=form, stop="END", **more)
    body = fake.bodies[-1]
    assert body["messages"][0]["content"].startswith("Be short.\n\n## Experiences")
    assert (body["temperature"], body["max_tokens"], body["stop"]) == (0, 50, ["END"])
    assert body["response_format"] == form and not {"seed", "logprobs"} & body.keys()
    assert "calls answered 1, failed 0: 1 call, 10 tokens" in capsys.readouterr().err


async def test_a_commit_reaches_the_next_call_and_a_version_stays(practised: Path) -> None:
    async with fake_endpoint(says("42")) as fake:
        settings = ("policy=openai:m", f"policy.base_url={fake.base_url}")
        async with (
            a_server(a_library(practised, *settings)) as head,
            a_server(a_library(practised, *settings, name="rehearsal@1")) as fixed,
        ):
            await ask(head)
            change: Any = [("add", None, "Units: name them.")]
            commit_changes(
                Workspace(practised), "rehearsal", lambda _: change, person="p", reason=""
            )
            await ask(head)
            await ask(fixed)
    before, after, old = (body["messages"][0]["content"] for body in fake.bodies[2:])
    assert "Units: name them." in after
    assert "Units" not in before and "Units" not in old


def test_of_a_long_library_all_that_the_user_said_chooses(practised: Path) -> None:
    agent = a_library(practised, "library.select_above=1")
    change: Any = [("add", None, "Zebras: count stripes."), ("add", None, "Units: name them.")]
    commit_changes(Workspace(practised), "rehearsal", lambda _: change, person="p", reason="")
    said = (
        ("system", "zebras"),
        ("user", "Name units!"),
        ("assistant", "stripes"),
        ("user", "So?"),
    )
    called = agent.begin_call(answering(), [Message(*one) for one in said])
    for guidance in (called.guidance, agent.begin_turn((), "Name units!").guidance):
        assert "Units: name them." in guidance and guidance.count("[E") == 1


async def test_a_library_that_is_gone_fails_the_call_and_is_told(
    practised: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from openai import InternalServerError

    async with a_server(a_library(practised)) as client:
        (practised / "libraries/rehearsal/journal.jsonl").unlink()
        with pytest.raises(InternalServerError, match="there is no such library") as failed:
            await ask(client)
    assert str(practised) not in str(failed.value) and failed.value.status_code == 500
    assert [status_of(CallFailed(kind, "")) for kind in ("timeout", "cut")] == [504, 502]
    told = capsys.readouterr().err
    assert "a call failed: library rehearsal" in told and "answered 0, failed 1" in told


async def test_sixty_four_calls_are_under_way_at_once(practised: Path) -> None:
    async def behaviour(exchange: Exchange) -> None:
        await fake.until(lambda: len(fake.requests) >= 65)
        await says(exchange.request.body["messages"][-1]["content"])(exchange)

    async with fake_endpoint(says("pong"), behaviour) as fake:
        agent = a_library(practised, "policy=openai:m", f"policy.base_url={fake.base_url}")
        async with a_server(agent) as client:
            asked = [[{"role": "user", "content": f"ask {n}"}] for n in range(64)]
            said = await asyncio.gather(*(ask(client, one) for one in asked))
    assert said == [f"ask {n}" for n in range(64)]


@pytest.mark.parametrize("status", [400, 429, 503])
async def test_a_refusal_of_the_endpoint_keeps_its_status(practised: Path, status: int) -> None:
    from openai import APIStatusError

    async with fake_endpoint(says("pong"), refuses(status, "not today")) as fake:
        settings = (f"policy.base_url={fake.base_url}", "policy.max_retries=0")
        agent = a_library(practised, "policy=openai:m", *settings)
        async with a_server(agent) as client:
            with pytest.raises(APIStatusError, match="not today") as failed:
                await ask(client)
    assert failed.value.status_code == status


async def test_a_client_that_leaves_ends_the_call_of_the_endpoint(practised: Path) -> None:
    async with fake_endpoint(says("pong"), hangs()) as fake:
        agent = a_library(practised, "policy=openai:m", f"policy.base_url={fake.base_url}")
        async with a_server(agent) as client:
            call = asyncio.create_task(ask(client))
            await fake.until(lambda: len(fake.requests) == 2)
            call.cancel()
            await fake.until(lambda: fake.open_now == 0)


async def test_only_the_token_opens_it_and_without_one_no_web_page_does(practised: Path) -> None:
    from openai import AuthenticationError, PermissionDeniedError

    agent = a_library(practised)
    async with a_server(agent, token=TOKEN) as client:
        assert await ask(client)
        with pytest.raises(AuthenticationError):
            await ask(client.with_options(api_key="wrong"))
    async with a_server(agent) as client:
        assert [model.id async for model in client.models.list()] == ["rehearsal"]
        with pytest.raises(PermissionDeniedError):
            await ask(client, extra_headers={"Origin": "https://example.com"})


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "example.com", "127.0.0.1.example.com"])
def test_off_loopback_a_token_is_needed(host: str, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    assert read_token(host, file, None, {}) == TOKEN
    assert TOKEN not in mask_text(f"sent {TOKEN}")
    odd = ("", "short", "é" * 20, "two\nlines" * 3)
    for variable, value in ((None, ""), *(("T", one) for one in odd)):
        with pytest.raises(StudioError) as refused:
            read_token(host, None, variable, {"T": value})
        assert "short" not in str(refused.value)
    assert read_token("::1", None, None, {}) == read_token("localhost", None, None, {}) == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nope", "policy=rehearsal"), "There are: rehearsal"),
        (("nope.yaml",), "There is no such file"),
        (("rehearsal",), "Add policy=openai:MODEL"),
        (("rehearsal@99", "policy=rehearsal"), "newest version"),
        (("rehearsal@production", "policy=rehearsal"), "no such label"),
        (("rehearsal", "policy=rehearsal", "--host", "0.0.0.0"), "--token-file"),
        (("rehearsal", "policy=openai:m", "policy.base_url=http://127.0.0.1:1/v1"), "127.0.0.1:1"),
        (("rehearsal", "policy=rehearsal", "--port", "TAKEN"), "another port"),
    ],
)
def test_what_cannot_be_served_is_refused_with_a_way_out(
    practised: Path, words: tuple[str, ...], said: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        given = [port if word == "TAKEN" else word for word in words]
        refused = studio("serve", *given, workspace=practised)
    assert (refused.code, refused.stdout) == (2, "")
    assert said in refused.stderr


@pytest.mark.parametrize(
    ("words", "host", "told", "unsaid"),
    [
        (("rehearsal",), "127.0.0.1", "API_KEY=anything\nCtrl-C", "the token"),
        (
            ("math", "--token-env", "T"),
            "::1",
            "API_KEY=the token\nnote: this tools agent",
            "anything",
        ),
    ],
)
def test_how_to_ask_is_told(
    practised: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    host: str,
    told: str,
    unsaid: str,
) -> None:
    async def serve_until_ready(server: Any, on_ready: Any) -> None:
        async with server as url:
            on_ready(url)

    monkeypatch.setattr("studio.process.serve_until_signal", serve_until_ready)
    monkeypatch.setattr(
        enhanced_agent, "open_listener", lambda *_: socket.create_server(("127.0.0.1", 0))
    )
    monkeypatch.setenv("T", TOKEN)
    done = studio("serve", "rehearsal", "--host", host, "--run-file", *words, workspace=practised)
    assert done.stdout.startswith(f"http://{'[::1]' if host == '::1' else host}:")
    assert told in done.stderr and unsaid not in done.stderr


def test_who_answers_is_described(practised: Path) -> None:
    asked = a_library(practised, "policy=openai:m", "policy.base_url=http://127.0.0.1:1/v1")
    assert " of openai:m at http://127.0.0.1:1/v1: " in asked.description.replace("front ", "")
    policy = asked.config.policy.model_copy(update={"model": "hf:tiny", "adapter": "mine"})
    config = asked.config.model_copy(update={"policy": policy})
    assert "hf:tiny with adapter mine: " in replace(asked, config=config).description


def test_ctrl_c_ends_it_and_tells_what_it_did(practised: Path, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    agent = practised / "runs/rehearsal/agent.yaml"
    words = ["serve", str(agent), "--port", "0", "--token-file", str(tmp_path / "token"), "--json"]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with ForkedStudio([*STUDIO, *words], **pipes) as server:
        assert server.stdout is not None
        ready = json.loads(server.stdout.readline())
        server.send_signal(signal.SIGINT)
        rest, told = server.communicate(timeout=20)
    assert (server.returncode, rest, ready["model"]) == (130, "", "rehearsal")
    assert "rehearsal: replies are scripted" in told and "calls answered 0" in told
    assert "Traceback" not in told and TOKEN not in told
