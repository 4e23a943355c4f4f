"""`wikipedia`: ten titles, of which a model keeps three, each of them read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from engines.core.errors import CallFailed, ToolError
from engines.core.types import NOTHING_FOUND, Completion, ToolResult, Usage
from engines.tools.web.fetch import AddressGuard, Fetcher, WebCache
from engines.tools.web.tools import LocalPages, MediaWiki, PageReader, wikipedia_tool
from tests.support.builders import answering
from tests.support.tool_tries import a_call, a_toolbox, a_try
from tests.support.web_server import Asked, json_reply, reply, serving

FETCHER = Fetcher("tester/1.0", AddressGuard(("127.0.0.1",)))
TITLES = [f"Town {n}" for n in range(1, 11)]


def mediawiki(missing: str = "", titles: list[str] = TITLES) -> Callable[[Asked], bytes]:
    """The API of MediaWiki with formatversion=2."""

    def answer(asked: Asked) -> bytes:
        query = asked.query
        assert (query["action"], query["format"], query["formatversion"]) == ("query", "json", "2")
        if query.get("list") == "search":
            assert query["srlimit"] == "10"
            more = {"ns": 0, "size": 900, "wordcount": 90, "timestamp": "2026-01-01T00:00:00Z"}
            more["snippet"] = 'a <span class="searchmatch">town</span>'
            rows = [{**more, "title": title, "pageid": at} for at, title in enumerate(titles)]
            found = {"searchinfo": {"totalhits": 4711}, "search": rows}
            on = {"sroffset": 10, "continue": "-||"}
            return json_reply({"batchcomplete": True, "continue": on, "query": found})
        assert query["prop"] == "extracts|info" and query["explaintext"] == "1"
        title = query["titles"]
        if title == missing:
            page: dict[str, object] = {"ns": 0, "title": title, "missing": True}
        else:
            text = f"{title} is a town.\n\n\n== Market ==\nIt is on Monday."
            place = f"https://en.wikipedia.org/wiki/{title.replace(' ', '_')}"
            page = {"pageid": 1, "ns": 0, "title": title, "extract": text, "fullurl": place}
        warned = {"extracts": {"warnings": '"exlimit" was too large'}}
        return json_reply({"batchcomplete": True, "warnings": warned, "query": {"pages": [page]}})

    return answer


async def asked_for(
    pages: MediaWiki | LocalPages,
    *replies: Completion | CallFailed,
    cache: Path | None = None,
    answers: bool = True,
) -> tuple[ToolResult, list[str]]:
    """The result of one call, and the prompts that the model was sent."""
    policy = answering(*replies)
    reader = PageReader(policy if answers else None)
    tool = wikipedia_tool(pages, policy, reader, WebCache(cache), "wikipedia test")
    async with a_try() as within:
        arguments = json.dumps({"question": "When is the market of Town 2?"})
        result = await a_toolbox(tool).call(a_call("wikipedia", arguments), within)
    return result, [request[0].content for request in policy.requests]


def chosen(*numbers: object, names: tuple[str, ...] = ()) -> Completion:
    reply = {"matched_queries": list(names), "matched_query_ids": list(numbers)}
    return Completion(json.dumps(reply), usage=Usage(1, 1, 1))


SAYS = [Completion(f"Answer {n}.", usage=Usage(2, 2, 1)) for n in range(3)]


async def test_a_model_keeps_three_of_ten_titles_and_each_page_answers(tmp_path: Path) -> None:
    async with serving(mediawiki()) as web:
        pages = MediaWiki(FETCHER, f"{web.url}/w/api.php")
        result, prompts = await asked_for(pages, chosen(2, 5, 2, 7, 9), *SAYS, cache=tmp_path)
        assert web.asked[0].query["srsearch"] == "When is the market of Town 2?"
        assert [asked.query.get("titles") for asked in web.asked] == [
            None,
            *TITLES[1:7:3],
            "Town 7",
        ]
        again, _ = await asked_for(pages, chosen(2, 5, 7), *SAYS, cache=tmp_path)
        assert len(web.asked) == 4  # titles and pages are kept
    where = "From outside, https://en.wikipedia.org/wiki/Town_{}:\n> Answer {}."
    assert result.text == "\n".join(where.format(n, at) for at, n in enumerate((2, 5, 7)))
    assert result == again and result.usage == Usage(7, 7, 4)
    assert "| 1. Town 1\n| 2. Town 2\n" in prompts[0] and "at most 3 titles" in prompts[0]
    assert "Town 2 is a town." in prompts[1] and "Town 5" not in prompts[1]


@pytest.mark.parametrize(
    ("said", "title"),
    [
        ('Sure!\n```json\n{"matched_queries": [], "matched_query_ids": [3]}\n```', "Town 3"),
        ('{"matched_queries": ["town 4"], "matched_query_ids": [0, 99]}', "Town 4"),
        ('{"matched_queries": "Town 6"}', "Town 6"),
        ('{"matched_query_ids": "8"}', "Town 8"),
        ('{"matched_queries": ["Nowhere"], "matched_query_ids": [-1]}', "Town 1"),
        ('{"matched_queries": [], "matched_query_ids": []}', "Town 1"),
        ("I would read the second.", "Town 1"),
        ("", "Town 1"),
        ("[[[{{{", "Town 1"),
    ],
)
async def test_a_choice_is_read_leniently_and_the_first_title_stands_in(
    said: str, title: str
) -> None:
    async with serving(mediawiki()) as web:
        pages = MediaWiki(FETCHER, f"{web.url}/w/api.php")
        _, prompts = await asked_for(pages, Completion(said), *SAYS)
        assert [asked.query.get("titles") for asked in web.asked[1:]] == [title]
    assert len(prompts) == 2


async def test_a_page_that_fails_stands_beside_those_that_answer() -> None:
    failed = CallFailed("timeout", "no reply within 1 s", Usage(3, 0, 1))
    async with serving(mediawiki(missing="Town 1")) as web:
        pages = MediaWiki(FETCHER, f"{web.url}/w/api.php")
        result, _ = await asked_for(pages, chosen(1, 2, 3), failed, SAYS[0])
        lost, _ = await asked_for(pages, chosen(1), SAYS[0])
    assert result.status == "ok" and result.usage == Usage(6, 3, 3)
    assert result.text.splitlines() == [
        'The page "Town 1" was not read: it does not exist.',
        'The page "Town 2" was not read: timeout: no reply within 1 s',
        "From outside, https://en.wikipedia.org/wiki/Town_3:",
        "> Answer 0.",
    ]
    assert lost.status == "error"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            json_reply({"error": {"code": "ratelimited", "info": "Wait.", "docref": "See …"}}),
            "refused it (ratelimited: Wait.)",
        ),
        (reply("Please set a user agent", 403), "answered 403"),
        (reply("<html>", 429), "answered 429"),
    ],
)
async def test_a_refusal_of_the_api_is_an_error(answer: bytes, said: str) -> None:
    async with serving(lambda asked: answer) as web:
        result, prompts = await asked_for(MediaWiki(FETCHER, f"{web.url}/w/api.php"))
    assert result.status == "error" and said in result.text and prompts == []


async def test_no_title_is_nothing_found_and_no_model_is_asked() -> None:
    async with serving(mediawiki(titles=[])) as web:
        result, prompts = await asked_for(MediaWiki(FETCHER, f"{web.url}/w/api.php"))
    assert result.text.startswith(NOTHING_FOUND) and prompts == []


async def test_a_folder_is_an_encyclopedia_and_gives_passages_without_a_model(
    tmp_path: Path,
) -> None:
    (tmp_path / "ostden.md").write_text("# Ostden\n\nA town. The market is on Monday.\n")
    (tmp_path / "quinham.md").write_text("# Quinham\n\nThe market of this town is on Friday.\n")
    pages = LocalPages(tmp_path, "it")
    result, prompts = await asked_for(pages, chosen(names=("Quinham",)), answers=False)
    note = f"(a page of the folder {tmp_path.name})"
    assert result.text == (
        f"From outside, quinham.md {note}:\n> The market of this town is on Friday."
    )
    assert len(prompts) == 1
    (tmp_path / "bad.md").write_text("No title\n")
    with pytest.raises(ToolError, match=r"bad\.md: its first line is no # Title"):
        LocalPages(tmp_path, "it")
