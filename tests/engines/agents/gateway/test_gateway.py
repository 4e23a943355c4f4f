"""The gateway as the SDKs see it, and as the policy behind it does."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from engines.agents.gateway.server import Gateway
from engines.agents.guided_try import GuidedTry
from engines.agents.loops import prompt_messages
from engines.core.errors import AnswersPending, CallFailed
from engines.core.protocols import OnText
from engines.core.text.tool_text import CallMark, ResultMark, split_marks
from engines.core.types import Completion, Message, Sampling, ToolCall, Usage
from tests.support.builders import FakePolicy, answering

if TYPE_CHECKING:  # each worker reads this file, and the SDKs take two seconds to import
    from anthropic import AsyncAnthropic
    from openai import AsyncOpenAI

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
ADD = {"name": "add", "description": "Add.", "parameters": SCHEMA}
CALL = ToolCall("call_1", "add", '{"a":  1}')
ASKS = Completion("", "thinking", (CALL,), "tool_calls", Usage(10, 5, 1), token_ids=(1, 2))
OURS = Sampling(0.3, max_tokens=500, seed=None)


@asynccontextmanager
async def a_gateway(
    policy: Any, *, guidance: str = "", instructions: str = "", on_text: OnText | None = None
) -> AsyncIterator[Gateway]:
    guided = GuidedTry(policy, OURS, guidance, instructions, on_text)
    async with Gateway(guided) as gateway:
        yield gateway


def openai_client(gateway: Gateway, **more: Any) -> AsyncOpenAI:
    from openai import AsyncOpenAI

    env = gateway.environment()
    return AsyncOpenAI(base_url=env["OPENAI_BASE_URL"], api_key=env["OPENAI_API_KEY"], **more)


def anthropic_client(gateway: Gateway) -> AsyncAnthropic:
    from anthropic import AsyncAnthropic

    env = gateway.environment()
    return AsyncAnthropic(base_url=env["ANTHROPIC_BASE_URL"], api_key=env["ANTHROPIC_API_KEY"])


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


async def test_a_chat_request_reaches_the_policy_as_in_process() -> None:
    policy = answering("so 5")
    async with (
        a_gateway(policy, guidance="[E1] Mind it.") as gateway,
        openai_client(gateway) as client,
    ):
        messages: list[Any] = [{"role": "system", "content": "Solve it."}, *user("What?")]
        made = await client.chat.completions.create(
            model="gpt-4o", messages=messages, temperature=1.9, seed=4, max_tokens=9_000
        )
    assert policy.requests == [prompt_messages("Solve it.", "[E1] Mind it.", "What?")]
    assert policy.samplings == [OURS]
    assert set(gateway.replaced) == {"temperature", "seed"}
    assert made.choices[0].message.content == "so 5"
    assert made.choices[0].finish_reason == "stop"
    assert made.usage is not None
    assert (made.usage.prompt_tokens, made.usage.completion_tokens) == (10, 5)


async def test_without_a_system_message_the_instructions_stand_there() -> None:
    policy = answering("5", "5")
    async with (
        a_gateway(policy, guidance="[E1] Mind it.", instructions="Solve it.") as gateway,
        openai_client(gateway) as client,
    ):
        await client.chat.completions.create(model="m", messages=user("What?"))
        await client.responses.create(model="m", input="What?")
    assert policy.requests == [prompt_messages("Solve it.", "[E1] Mind it.", "What?")] * 2


async def test_a_chat_stream_adds_up_to_the_reply_and_the_screen_sees_it() -> None:
    seen: list[str] = []
    async with (
        a_gateway(answering("so 5"), on_text=seen.append) as gateway,
        openai_client(gateway) as client,
    ):
        chunks = [
            chunk
            async for chunk in await client.chat.completions.create(
                model="m",
                messages=user("What?"),
                stream=True,
                stream_options={"include_usage": True},
            )
        ]
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "so 5"
    assert chunks[-1].usage is not None and chunks[-1].usage.total_tokens == 15
    assert "".join(seen) == "so 5"


async def test_a_loop_of_tools_over_chat_asks_as_a_loop_in_process_does() -> None:
    policy, seen = answering(ASKS, "7"), list[str]()
    async with (
        a_gateway(policy, on_text=seen.append) as gateway,
        openai_client(gateway) as client,
    ):
        tools: list[Any] = [{"type": "function", "function": ADD}]
        messages: list[Any] = user("What?")
        async with client.chat.completions.stream(
            model="m", messages=messages, tools=tools
        ) as stream:
            said = (await stream.get_final_completion()).choices[0].message
        assert said.tool_calls is not None
        call = said.tool_calls[0]
        assert (call.id, call.function.name, call.function.arguments) == (
            CALL.id,
            CALL.name,
            CALL.arguments,
        )
        messages += [
            {"role": "assistant", "tool_calls": [{"id": call.id, "type": "function",
             "function": {"name": "add", "arguments": call.function.arguments}}]},
            {"role": "tool", "tool_call_id": call.id, "content": "7"},
        ]  # fmt: skip
        await client.chat.completions.create(model="m", messages=messages, tools=tools)
    expected = (
        Message("user", "What?"),
        ASKS.as_message(),
        Message("tool", "7", tool_call_id="call_1"),
    )
    assert policy.requests[1] == expected
    assert policy.samplings[0].tools == (ADD,)
    assert gateway.guided.trajectory == [*expected, Message("assistant", "7")]
    marks = [part for part in split_marks("".join(seen)) if not isinstance(part, str)]
    assert marks == [
        CallMark("call_1", "add", CALL.arguments),
        ResultMark("call_1", "add", "ok", "7"),
    ]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_loop_of_tools_over_responses(stream: bool) -> None:
    policy = answering(Completion("let me", "", (CALL,), usage=Usage(10, 5, 1)), "so 7")
    async with a_gateway(policy) as gateway, openai_client(gateway) as client:

        async def ask(items: list[Any]) -> Any:
            given: Any = {"model": "m", "input": items, "instructions": "Solve it."}
            given["tools"] = [{"type": "function", "strict": False, **ADD}]
            if not stream:
                return await client.responses.create(**given)
            async with client.responses.stream(**given) as events:
                kinds.extend([event.type async for event in events])
                return await events.get_final_response()

        kinds: list[str] = []
        first = await ask(user("What?"))
        text, call = first.output
        assert (text.content[0].text, call.name, call.arguments) == (
            "let me",
            "add",
            CALL.arguments,
        )
        output = {"type": "function_call_output", "call_id": call.call_id, "output": "7"}
        kept = [item.model_dump(exclude_none=True) for item in first.output]
        second = await ask([*user("What?"), *kept, output])
    assert second.output_text == "so 7" and second.status == "completed"
    assert second.usage.total_tokens == 15
    assert policy.requests[1] == (
        Message("system", "Solve it."),
        Message("user", "What?"),
        Message("assistant", "let me", tool_calls=(CALL,)),
        Message("tool", "7", tool_call_id="call_1"),
    )
    if stream:
        assert kinds[:5] == [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
            "response.output_text.delta",
        ]
        assert "response.function_call_arguments.done" in kinds
        assert kinds[-1] == "response.completed"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_loop_of_tools_over_messages(stream: bool) -> None:
    policy = answering(Completion("let me", "", (CALL,), usage=Usage(10, 5, 1)), "so 7")
    async with (
        a_gateway(policy, guidance="[E1] Mind it.") as gateway,
        anthropic_client(gateway) as client,
    ):

        async def ask(messages: list[Any]) -> Any:
            tool = {"name": "add", "description": "Add.", "input_schema": SCHEMA}
            given: Any = {"model": "claude", "max_tokens": 100, "messages": messages}
            given |= {"tools": [tool], "system": [{"type": "text", "text": "Solve it."}]}
            if not stream:
                return await client.messages.create(**given)
            async with client.messages.stream(**given) as events:
                return await events.get_final_message()

        first = await ask(user("What?"))
        text, call = first.content
        assert (text.text, call.name, call.input) == ("let me", "add", {"a": 1})
        assert first.stop_reason == "tool_use"
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "7"}
        said = {
            "role": "assistant",
            "content": [b.model_dump(exclude_none=True) for b in first.content],
        }
        second = await ask([*user("What?"), said, {"role": "user", "content": [result]}])
    assert second.content[0].text == "so 7" and second.stop_reason == "end_turn"
    assert second.usage.output_tokens == 5
    assert policy.requests[1] == (
        Message("system", "Solve it.\n\n[E1] Mind it."),
        Message("user", "What?"),
        Message("assistant", "let me", tool_calls=(CALL,)),
        Message("tool", "7", tool_call_id="call_1"),
    )
    assert policy.samplings[0].max_tokens == 100


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_that_failed_is_said_once_and_not_tried_again(stream: bool) -> None:
    from openai import APIStatusError

    policy = answering(CallFailed("timeout", "no answer within 1 s"))
    async with a_gateway(policy) as gateway, openai_client(gateway) as client:
        with pytest.raises(APIStatusError, match="no answer within 1 s") as failed:
            await client.chat.completions.create(model="m", messages=user("What?"), stream=stream)
    assert failed.value.status_code == 400 and len(policy.requests) == 1
    assert gateway.guided.failure == "timeout: no answer within 1 s"


async def test_what_ends_the_run_is_kept_for_the_rollout_and_no_call_is_taken_after_it() -> None:
    from openai import APIStatusError

    policy = answering(AnswersPending({"calls": ["a"]}))
    async with a_gateway(policy) as gateway, openai_client(gateway) as client:
        for _ in range(2):
            with pytest.raises(APIStatusError):
                await client.chat.completions.create(model="m", messages=user("What?"))
    assert isinstance(gateway.guided.fatal, AnswersPending) and len(policy.requests) == 1


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("chat/completions", {}, "non-empty array"),
    ("chat/completions", {"messages": user("a"), "n": 2}, '"n" must be 1'),
    ("chat/completions", {"messages": [{"role": "function"}]}, "known: system"),
    ("chat/completions", {"messages": user("a"), "max_tokens": 0}, "1 or more"),
    ("chat/completions", {"messages": user("a"), "tools": [{"type": "web"}]}, "give functions"),
    ("responses", {"input": "a", "previous_response_id": "r"}, "nothing is stored"),
    ("responses", {"input": [{"type": "computer_call"}]}, "computer_call"),
    ("messages", {"messages": [{"role": "tool", "content": "a"}]}, "known: user, assistant"),
    ("messages", {"messages": user("a"), "tools": [{"type": "bash_1"}]}, "give functions"),
]


def post(gateway: Gateway, path: str, body: bytes, token: str | None = None) -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {gateway.token if token is None else token}"}
    request = urllib.request.Request(f"http://127.0.0.1:{gateway.port}/v1/{path}", body, headers)
    try:
        with urllib.request.urlopen(request) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


@pytest.mark.parametrize(("path", "body", "reason"), REFUSED)
async def test_what_cannot_be_answered_is_refused_in_the_protocols_own_form(
    path: str, body: dict[str, Any], reason: str
) -> None:
    async with a_gateway(answering()) as gateway:
        status, said = await asyncio.to_thread(post, gateway, path, json.dumps(body).encode())
    assert status == 400 and reason in said["error"]["message"]
    assert (said.get("type") == "error") == (path == "messages")


async def test_only_the_token_of_the_try_opens_it() -> None:
    async with a_gateway(answering("5")) as gateway, a_gateway(answering("6")) as other:
        for token in ("", "wrong", other.token, "ünknown"):
            status, said = await asyncio.to_thread(post, gateway, "responses", b"{}", token)
            assert (status, said["error"]["type"]) == (401, "authentication_error")
        status, said = await asyncio.to_thread(post, gateway, "nothing", b"{}")
        assert status == 404
        async with openai_client(gateway) as client:
            assert [model.id async for model in client.models.list()] == ["fake:m"]


async def test_without_a_token_no_web_page_is_answered() -> None:
    guided = GuidedTry(answering("5"), OURS)
    async with Gateway(guided, token="") as gateway, httpx2.AsyncClient(trust_env=False) as client:
        url = f"http://127.0.0.1:{gateway.port}/v1/models"
        assert (await client.get(url)).status_code == 200
        assert (await client.get(url, headers={"origin": "http://page"})).status_code == 403


class Slow(FakePolicy):
    """Waits for ever, and says whether it was cut off."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.cut = asyncio.Event(), asyncio.Event()

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, on_text: OnText | None = None
    ) -> Completion:
        self.asked.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as error:
            self.cut.set()
            raise asyncio.CancelledError(Usage(7, 0, 1)) from error
        raise AssertionError


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_ends_its_call_and_what_it_cost_is_counted(
    stream: bool,
) -> None:
    policy = Slow()
    async with a_gateway(policy) as gateway, openai_client(gateway) as client:
        call = asyncio.ensure_future(
            client.chat.completions.create(model="m", messages=user("a"), stream=stream)
        )
        await policy.asked.wait()
        call.cancel()
        await asyncio.wait_for(policy.cut.wait(), 5)
    assert gateway.guided.usage == Usage(7, 0, 1)


async def test_the_end_of_a_try_ends_its_calls() -> None:
    policy = Slow()
    async with a_gateway(policy) as gateway, openai_client(gateway, max_retries=0) as client:
        call = asyncio.ensure_future(client.chat.completions.create(model="m", messages=user("a")))
        await policy.asked.wait()
        await gateway.__aexit__()
        assert policy.cut.is_set()
        with pytest.raises(Exception, match="Connection error"):
            await call


async def test_twelve_tries_at_once_get_their_own_replies() -> None:
    async def one(n: int) -> str:
        policy = answering(f"reply {n}")
        async with a_gateway(policy) as gateway, openai_client(gateway) as client:
            made = await client.chat.completions.create(model="m", messages=user(f"ask {n}"))
            assert policy.requests[0][-1].content == f"ask {n}"
        return made.choices[0].message.content or ""

    said = await asyncio.gather(*map(one, range(12)))
    assert said == [f"reply {n}" for n in range(12)]


async def test_sixty_four_calls_of_one_try_wait_for_each_other() -> None:
    policy = answering(*(f"reply {n}" for n in range(64)))
    async with a_gateway(policy) as gateway, openai_client(gateway) as client:
        made = await asyncio.gather(
            *(
                client.chat.completions.create(model="m", messages=user(f"ask {n}"))
                for n in range(64)
            )
        )
    assert len({one.choices[0].message.content for one in made}) == 64
    assert gateway.guided.usage == Usage(640, 320, 64)


async def test_a_reply_begun_anew_is_told_as_broken_and_not_as_two() -> None:
    class Restarts(FakePolicy):
        async def complete(
            self, messages: Sequence[Message], sampling: Sampling, on_text: OnText | None = None
        ) -> Completion:
            assert on_text is not None
            on_text("It is six")
            await asyncio.sleep(0.01)
            return Completion("It is five")

    async with a_gateway(Restarts()) as gateway, openai_client(gateway) as client:
        stream = await client.chat.completions.create(model="m", messages=user("a"), stream=True)
        with pytest.raises(Exception, match="begun anew"):
            async for _ in stream:
                pass


STREAMS = {
    "chat/completions": [
        (None, {"delta": {"role": "assistant", "content": ""}, "finish_reason": None}),
        (None, {"delta": {"content": "so"}, "finish_reason": None}),
        (
            None,
            {
                "delta": {
                    "tool_calls": [
                        {
                            "index": 0,
                            "id": "call_1",
                            "type": "function",
                            "function": {"name": "add", "arguments": CALL.arguments},
                        }
                    ]
                },
                "finish_reason": None,
            },
        ),
        (None, {"delta": {}, "finish_reason": "tool_calls"}),
        (None, "[DONE]"),
    ],
    "messages": [
        ("message_start", {}),
        ("content_block_start", {"index": 0, "content_block": {"type": "text", "text": ""}}),
        ("content_block_delta", {"index": 0, "delta": {"type": "text_delta", "text": "so"}}),
        ("content_block_stop", {"index": 0}),
        (
            "content_block_start",
            {
                "index": 1,
                "content_block": {"type": "tool_use", "id": "call_1", "name": "add", "input": {}},
            },
        ),
        (
            "content_block_delta",
            {"index": 1, "delta": {"type": "input_json_delta", "partial_json": '{"a":1}'}},
        ),
        ("content_block_stop", {"index": 1}),
        (
            "message_delta",
            {
                "delta": {"stop_reason": "tool_use", "stop_sequence": None},
                "usage": {"input_tokens": 10, "output_tokens": 5},
            },
        ),
        ("message_stop", {}),
    ],
    "responses": [
        ("response.created", {"sequence_number": 0}),
        ("response.in_progress", {"sequence_number": 1}),
        ("response.output_item.added", {"output_index": 0}),
        ("response.content_part.added", {"content_index": 0}),
        ("response.output_text.delta", {"delta": "so"}),
        ("response.output_text.done", {"text": "so"}),
        ("response.content_part.done", {"output_index": 0}),
        ("response.output_item.done", {"output_index": 0}),
        ("response.output_item.added", {"output_index": 1}),
        ("response.function_call_arguments.delta", {"delta": CALL.arguments}),
        ("response.function_call_arguments.done", {"arguments": CALL.arguments}),
        ("response.output_item.done", {"output_index": 1}),
        ("response.completed", {"sequence_number": 12}),
    ],
}
"""The events of a text and a call in each protocol, as its reference lists them, in part."""


@pytest.mark.parametrize("path", STREAMS)
async def test_a_stream_has_the_events_of_its_protocol_in_their_order(path: str) -> None:
    def read(gateway: Gateway) -> str:
        body = {"messages": user("a"), "input": "a", "stream": True, "max_tokens": 50}
        request = urllib.request.Request(
            f"http://127.0.0.1:{gateway.port}/v1/{path}",
            json.dumps(body).encode(),
            {"x-api-key": gateway.token},
        )
        with urllib.request.urlopen(request) as reply:
            assert reply.headers["content-type"] == "text/event-stream"
            return reply.read().decode()

    policy = answering(Completion("so", "", (CALL,), "tool_calls", Usage(10, 5, 1)))
    async with a_gateway(policy) as gateway:
        blocks = (await asyncio.to_thread(read, gateway)).removesuffix("\n\n").split("\n\n")
    found = []
    for block in blocks:
        *head, data = block.split("\n")
        name = head[0].removeprefix("event: ") if head else None
        text = data.removeprefix("data: ")
        found.append((name, text if text == "[DONE]" else json.loads(text)))
    expected = STREAMS[path]
    assert [name for name, _ in found] == [name for name, _ in expected]
    for (name, made), (_, part) in zip(found, expected, strict=True):
        if isinstance(made, dict):
            assert isinstance(part, dict)
            where = made["choices"][0] if name is None else made
            assert where.items() >= part.items()
            assert name is None or made["type"] == name


async def test_what_is_no_text_stands_as_a_note_and_the_library_is_not_put_in_twice() -> None:
    policy = answering("5")
    parts = [{"type": "text", "text": "What? "}, {"type": "image_url", "image_url": {"url": "x"}}]
    async with (
        a_gateway(policy, guidance="[E1] Mind it.") as gateway,
        openai_client(gateway) as client,
    ):
        messages: list[Any] = [
            {"role": "developer", "content": "Solve. [E1] Mind it. Now."},
            {"role": "user", "content": parts},
        ]
        await client.chat.completions.create(model="m", messages=messages)
    assert policy.requests == [
        (
            Message("system", "Solve. [E1] Mind it. Now."),
            Message("user", "What? [image_url: not shown]"),
        )
    ]


async def test_calls_without_ids_get_some_that_a_program_can_answer() -> None:
    policy = answering(Completion("", "", (ToolCall("", "add", "{}"), ToolCall("", "add", "{}"))))
    async with a_gateway(policy) as gateway, openai_client(gateway) as client:
        made = await client.chat.completions.create(model="m", messages=user("a"))
    calls = made.choices[0].message.tool_calls
    assert calls is not None and [call.id for call in calls] == ["call_1_0", "call_1_1"]


async def test_a_program_that_asks_in_a_circle_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    from openai import APIStatusError

    monkeypatch.setattr("engines.agents.guided_try.MOST_CALLS", 2)
    policy = answering("a", "b", "c")
    async with a_gateway(policy) as gateway, openai_client(gateway) as client:
        for _ in range(2):
            await client.responses.create(model="m", input="a")
        with pytest.raises(APIStatusError, match="the try has made 2 calls"):
            await client.responses.create(model="m", input="a")
    assert len(policy.requests) == 2
