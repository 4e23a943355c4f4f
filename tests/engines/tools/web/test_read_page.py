"""`read_page`: fetched here, read by Jina, or from a fixture."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from engines.core.types import Completion, ToolResult, Usage
from engines.tools.web.fetch import AddressGuard, Fetcher, WebCache
from engines.tools.web.tools import (
    MAX_TEXT_CHARS,
    LoadPage,
    LocalPages,
    PageReader,
    load_by_jina,
    load_directly,
    read_page_tool,
)
from tests.support.builders import answering
from tests.support.tool_tries import a_call, a_toolbox, a_try
from tests.support.web_server import json_reply, reply, serving

FETCHER = Fetcher("tester/1.0", AddressGuard(("127.0.0.1",)))
PAGE = "<html><title>Ostden</title><body><p>Ostden is a town. Its mayor is Ada Lomar.</p>"
JINA = json.loads(Path(__file__).with_name("replies.json").read_text("utf-8"))["jina"]


async def read(
    load: LoadPage, url: str, cache: Path | None = None, reader: PageReader | None = None
) -> ToolResult:
    tool = read_page_tool(load, reader or PageReader(None), WebCache(cache), "page test")
    arguments = json.dumps({"url": url, "question": "Who is the mayor?"})
    async with a_try() as within:
        return await a_toolbox(tool).call(a_call("read_page", arguments), within)


async def test_a_page_is_fetched_read_and_kept(tmp_path: Path) -> None:
    policy = answering(*[Completion("Ada Lomar.", usage=Usage(5, 6, 1))] * 2)
    async with serving({"/": reply(PAGE)}) as web:
        first = await read(
            partial(load_directly, FETCHER), f"{web.url}/", tmp_path, PageReader(policy)
        )
        again = await read(
            partial(load_directly, FETCHER), f"{web.url}/", tmp_path, PageReader(policy)
        )
        assert len(web.asked) == 1
    said = f"From outside, {web.url}/:\n> Ada Lomar."
    assert first == again == ToolResult(said, usage=Usage(5, 6, 1))
    prompt = policy.requests[0][0].content
    assert f"| Ostden\n| {web.url}/" in prompt and "Its mayor is Ada Lomar." in prompt
    assert policy.requests[0] == policy.requests[1]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (reply("gone", 404), "answered 404"),
        (reply(b"%PDF", kind="application/pdf"), "is of the type application/pdf"),
        (reply("<script>x</script>"), "has no text that could be read"),
    ],
)
async def test_a_page_that_cannot_be_read_is_an_error_and_is_not_kept(
    answer: bytes, said: str, tmp_path: Path
) -> None:
    async with serving({"/": answer}) as web:
        result = await read(partial(load_directly, FETCHER), f"{web.url}/", tmp_path)
    assert result.status == "error" and result.text.startswith("The page was not read: ")
    assert said in result.text and list(tmp_path.iterdir()) == []


async def test_of_an_endless_page_the_beginning_is_read_and_said_to_be() -> None:
    for text in ("word " * 1_100_000, "x" * (MAX_TEXT_CHARS + 1)):  # cut as bytes, and as text
        async with serving({"/": reply(text, kind="text/plain")}) as web:
            result = await read(partial(load_directly, FETCHER), f"{web.url}/")
        assert result.text.startswith(f"From outside, {web.url}/ (only its beginning was read):")


@pytest.mark.parametrize("key", ["the-key", ""])
async def test_jina_is_asked_with_the_key_where_there_is_one(key: str) -> None:
    async with serving(lambda asked: json_reply(JINA)) as web:
        load = partial(load_by_jina, FETCHER, web.url, key)
        result = await read(load, f"{web.url}/a?b=c#d")
        (asked,) = web.asked
    assert asked.target == f"/{web.url}/a?b=c"
    assert asked.headers.get("authorization") == (f"Bearer {key}" if key else None)
    assert asked.headers["accept"] == "application/json"
    assert "> Its mayor is Ada Lomar." in result.text


@pytest.mark.parametrize(
    ("value", "status", "said"),
    [
        (
            {
                "data": None,
                "code": 422,
                "name": "AssertionFailureError",
                "status": 42206,
                "message": "Failed to goto",
                "readableMessage": "AssertionFailureError: Failed to goto",
            },
            422,
            "answered 422 and says",
        ),
        ({"code": 429, "message": "Rate limit exceeded"}, 429, "Rate limit exceeded"),
        ({"code": 200, "data": {"title": "", "content": " "}}, 200, "no text that Jina could read"),
        ({"code": 200, "data": None}, 200, "no text that Jina could read"),
    ],
)
async def test_what_jina_cannot_read_is_an_error(value: object, status: int, said: str) -> None:
    async with serving(lambda asked: json_reply(value, status)) as web:
        result = await read(partial(load_by_jina, FETCHER, web.url, "k"), f"{web.url}/x")
    assert result.status == "error" and said in result.text


async def test_a_private_address_is_not_told_to_jina() -> None:
    async with serving(lambda asked: json_reply(JINA)) as web:
        load = partial(load_by_jina, FETCHER, web.url, "k")
        result = await read(load, "http://10.0.0.7/wiki")
        assert web.asked == []
    assert "10.0.0.7, which is no public address" in result.text


async def test_a_fixture_gives_the_pages_that_it_has(tmp_path: Path) -> None:
    path = tmp_path / "pages.jsonl"
    row = {"title": "Ostden", "url": "https://e.example/ostden", "text": "Its mayor is Ada."}
    path.write_text(json.dumps(row))
    load = LocalPages(path, "it").load
    there = await read(load, "https://e.example/ostden/#top")
    heading = "From outside, https://e.example/ostden (a page of the fixture file pages.jsonl):"
    assert there.text == f"{heading}\n> Its mayor is Ada."
    none = await read(load, "https://e.example/other")
    assert none.status == "error"
    assert "other is not a page of the fixture file pages.jsonl" in none.text
