"""In process and over a real socket, rehearsal is one and the same endpoint."""

from __future__ import annotations

import httpx2
import orjson
import pytest

from engines.core.errors import ConfigError
from engines.core.types import Message, Sampling
from engines.policies.chat.client import OpenAICompat
from engines.policies.chat.endpoint import EndpointSettings
from engines.policies.open import open_policy
from engines.policies.rehearsal.server import RehearsalTransport, answer_request, background_server
from tests.support.fake_endpoint import fake_endpoint, says

QUESTIONS = [
    "What is 47 + 38?",
    "What is 62 - 27?",
    "What is 3 + 4 * 5?",
    "What colour is the sky?",
]


def a_request(**fields: object) -> bytes:
    told = [{"role": "user", "content": QUESTIONS[0]}]
    return orjson.dumps({"model": "rehearsal", "messages": told, "seed": 1, **fields})


@pytest.mark.parametrize("question", QUESTIONS)
async def test_both_ways_give_the_same_completion(question: str) -> None:
    told, sampling = [Message("user", question)], Sampling(seed=9)
    inside = open_policy("rehearsal")
    async with background_server() as base_url:
        outside = open_policy("openai:rehearsal", EndpointSettings(base_url=base_url))
        assert await inside.complete(told, sampling) == await outside.complete(told, sampling)
        await outside.aclose()
    await inside.aclose()


async def test_both_ways_send_the_same_body() -> None:
    sent: list[object] = []

    class Watching(RehearsalTransport):
        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            sent.append(orjson.loads(await request.aread()))
            return await super().handle_async_request(request)

    opened = open_policy("rehearsal")
    assert isinstance(opened, OpenAICompat)
    inside = OpenAICompat(opened.settings, name=opened.name, transport=Watching)
    await inside.complete([Message("user", QUESTIONS[0])], Sampling(seed=9))
    await inside.aclose()
    async with fake_endpoint(says("x")) as fake:
        outside = open_policy("openai:rehearsal", EndpointSettings(base_url=fake.base_url))
        await outside.complete([Message("user", QUESTIONS[0])], Sampling(seed=9))
        await outside.aclose()
    assert sent == fake.bodies


async def test_the_transport_streams_instead_of_keeping_the_body_back() -> None:
    async with httpx2.AsyncClient(transport=RehearsalTransport()) as client:
        asked = client.stream(
            "POST", "http://r/v1/chat/completions", content=a_request(stream=True)
        )
        async with asked as response:
            first = await anext(response.aiter_raw())
    assert first.startswith(b"data: ") and b"[DONE]" not in first


async def test_a_reply_that_is_left_in_the_middle_ends_there() -> None:
    made = answer_request("POST", "/v1/chat/completions", a_request(stream=True))
    assert await anext(made.body)
    await made.body.aclose()
    with pytest.raises(StopAsyncIteration):
        await anext(made.body)


@pytest.mark.parametrize("real", [False, True], ids=["in process", "served"])
@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/v1/models", b"", 200),
        ("POST", "/v1/chat/completions", a_request(), 200),
        ("POST", "/v1/chat/completions", a_request(model="another"), 404),
        ("POST", "/v1/chat/completions", b"{", 400),
        ("POST", "/v1/chat/completions", b"[]", 400),
        ("POST", "/v1/chat/completions", b'{"model": "rehearsal"}', 400),
        ("GET", "/v1/chat/completions", b"", 404),
        ("POST", "/elsewhere", b"", 404),
    ],
)
async def test_every_route_answers_in_json(
    real: bool, method: str, path: str, body: bytes, status: int
) -> None:
    async def ask(client: httpx2.AsyncClient, root: str) -> httpx2.Response:
        return await client.request(method, root + path, content=body)

    if real:
        async with background_server() as base_url, httpx2.AsyncClient(trust_env=False) as client:
            got = await ask(client, base_url.removesuffix("/v1"))
    else:
        async with httpx2.AsyncClient(transport=RehearsalTransport()) as client:
            got = await ask(client, "http://r")
    assert got.status_code == status
    assert got.headers["content-type"] == "application/json"
    value = got.json()
    assert value["error"]["message"] if status != 200 else "error" not in value


async def test_a_server_has_its_port_alone_and_frees_it_at_the_end() -> None:
    async with background_server() as base_url:
        port = int(base_url.removesuffix("/v1").rpartition(":")[2])
        with pytest.raises(ConfigError, match="another program listens there"):
            await background_server(port).__aenter__()
    async with background_server(port) as base_url:
        assert f":{port}/" in base_url


async def test_a_port_that_cannot_be_is_a_user_error() -> None:
    with pytest.raises(ConfigError, match="from 0 to 65535"):
        await background_server(70000).__aenter__()
