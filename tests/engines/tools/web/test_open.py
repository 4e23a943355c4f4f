"""From settings to tools of the web: who answers, what each setting does, and what is absent."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engines.agents.loops import ToolLoop
from engines.core.errors import ConfigError, ToolError
from engines.core.types import Completion, Sampling, ToolCall, ToolResult
from engines.policies.limits import Slots
from engines.record.ledger import RecordLedger
from engines.rollouts.manager import RolloutManager
from engines.tools.settings import ToolSettings
from engines.tools.toolbox import CheckedToolbox, open_toolbox
from engines.tools.web.tools import WebContext, with_provider
from tests.support.builders import a_job, a_problem, answering
from tests.support.tool_tries import a_call, a_try
from tests.support.web_server import Asked, json_reply, reply, serving

TOWNS = {"Ostden": "Its mayor is Ada Lomar.", "Pelton Tower": "The tower stands in Ostden."}


@pytest.fixture
def fixture(tmp_path: Path) -> str:
    path = tmp_path / "pages.jsonl"
    rows = [{"title": t, "url": f"https://e.example/{t[:6]}", "text": s} for t, s in TOWNS.items()]
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


def opened(*tools: ToolSettings, policy: object = None, **more: Any) -> CheckedToolbox:
    more = {"open_model": lambda wanted: policy or answering(), "environment": {}, **more}
    return open_toolbox(tools, WebContext(**more))


async def called(toolbox: CheckedToolbox, name: str, **arguments: str) -> ToolResult:
    async with a_try() as within:
        return await toolbox.call(a_call(name, json.dumps(arguments)), within)


async def test_an_agent_searches_reads_and_answers(fixture: str, tmp_path: Path) -> None:
    def calling(name: str, **arguments: str) -> Completion:
        call = ToolCall(name, name, json.dumps(arguments))
        return Completion("", tool_calls=(call,), finish="tool_calls")

    question = "Who is mayor where the Pelton Tower stands?"
    policy = answering(
        calling("web_search", query="Pelton Tower"),
        calling("read_page", url="https://e.example/Ostden", question="Who is the mayor?"),
        "Ada Lomar, says the page.",
        "A: Ada Lomar",
    )
    tools = ToolSettings(name="web_search", provider="fixture", source=fixture)
    toolbox = opened(tools, ToolSettings(name="read_page"), policy=policy)
    await toolbox.check()
    ledger = RecordLedger(tmp_path / "records", 1)
    agent = ToolLoop("Use tools.", Sampling(0.7), toolbox, 4)
    manager = RolloutManager(agent, policy, ledger, Slots(1), 60.0)
    attempt, _ = await manager.roll_out(a_job(a_problem(question)), None)
    await ledger.aclose()
    assert (attempt.answer, attempt.status) == ("A: Ada Lomar", "ok")
    found, page = (m.content for m in attempt.messages if m.role == "tool")
    note = "(a page of the fixture file pages.jsonl)"
    assert f"From outside, https://e.example/Pelton {note}:\n> Pelton Tower" in found
    assert page == f"From outside, https://e.example/Ostden {note}:\n> Ada Lomar, says the page."
    assert "| Its mayor is Ada Lomar." in policy.requests[2][0].content


def test_each_tool_says_who_answers_and_what_it_reaches(fixture: str, tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("# A\ntext")
    keys = {"SERPER_API_KEY": "s", "GOOGLE_API_KEY": "g", "JINA_API_KEY": ""}
    cases = {
        ("web_search", None, None): "serper",
        ("web_search", "gemini", None): "gemini",
        ("web_search", "searxng", "http://127.0.0.1:8888"): "searxng",
        ("web_search", "fixture", fixture): "fixture",
        ("read_page", None, None): "direct",
        ("read_page", "jina", None): "jina",
        ("read_page", "fixture", fixture): "fixture",
        ("wikipedia", None, "de"): "api",
        ("wikipedia", "folder", str(tmp_path)): "folder",
    }
    for (name, provider, source), who in cases.items():
        tool = ToolSettings(name=name, provider=provider, source=source)
        (spec,) = opened(tool, environment=keys).specs
        assert (spec.name, spec.tier) == (name, f"in the studio's process, by {who}")
        assert spec.network == ("none" if who in ("fixture", "folder") else "public")
        assert spec.repeatable and "Limits:" in spec.description


async def test_a_tool_without_its_key_is_absent_and_says_so() -> None:
    search, read = ToolSettings(name="web_search"), ToolSettings(name="read_page", provider="jina")
    toolbox = opened(search, read)
    assert [spec.name for spec in toolbox.specs] == ["read_page"]
    assert toolbox.absent == ('tool "web_search" is absent: SERPER_API_KEY is not set',)
    refused = await called(toolbox, "web_search", query="q")
    assert refused.status == "refused" and 'no tool "web_search"' in refused.text
    assert opened(search, environment={"SERPER_API_KEY": "k"}).absent == ()


def test_where_no_tool_is_left_the_variable_is_named() -> None:
    with pytest.raises(ConfigError) as refused:
        opened(
            ToolSettings(name="web_search", provider="gemini"), environment={"GOOGLE_API_KEY": ""}
        )
    assert str(refused.value).startswith(
        'agent.tools: no tool is left: tool "web_search" is absent: GEMINI_API_KEY or '
        "GOOGLE_API_KEY is not set. Set GEMINI_API_KEY or GOOGLE_API_KEY in the environment"
    )


def test_pages_that_cannot_be_read_stop_a_run_before_it_begins(tmp_path: Path) -> None:
    for name, provider in (("read_page", "fixture"), ("wikipedia", "folder")):
        for source in (str(tmp_path / "none"), None):
            with pytest.raises(ToolError, match="Set source to"):
                opened(ToolSettings(name=name, provider=provider, source=source))


async def test_servers_are_told_the_user_agent_and_private_ones_are_listed(tmp_path: Path) -> None:
    async with serving({"/": reply("the text", kind="text/plain")}) as web:
        for allow, agent, said in (
            ((), "me/1.0", "which is no public address"),
            (("127.0.0.1",), "me/1.0 (me@example.org)", "> the text"),
        ):
            tool = ToolSettings(
                name="read_page", answer="passages", user_agent=agent, allow_hosts=allow
            )
            assert said in (await called(opened(tool), "read_page", url=web.url, question="q")).text
        assert [a.headers["user-agent"] for a in web.asked] == ["me/1.0 (me@example.org)"]


async def test_an_instance_of_ones_own_may_lie_here_and_pages_are_kept_unless_told(
    tmp_path: Path,
) -> None:
    def answer(asked: Asked) -> bytes:
        hit = {"url": "https://x.example/", "title": "t", "content": "c"}
        if not asked.query.get("q"):
            return json_reply({"error": "No query"}, 400)
        return json_reply({"results": [hit]})

    async with serving(answer) as web:
        counts = []
        for keep in (True, True, False, False):
            tool = ToolSettings(name="web_search", provider="searxng", source=web.url, cache=keep)
            toolbox = opened(tool, cache=tmp_path / "web")
            await toolbox.check()
            found = await called(toolbox, "web_search", query="q")
            assert "https://x.example/" in found.text
            counts.append(sum(asked.query.get("q") == "q" for asked in web.asked))
    assert counts == [1, 1, 2, 3]
    with pytest.raises(ToolError, match="SearXNG cannot be used"):
        await opened(ToolSettings(name="web_search", provider="searxng", source=web.url)).check()


async def test_wikipedia_asks_the_api_that_source_names() -> None:
    page = {"title": "T", "extract": "Text.", "fullurl": "https://w.example/T"}
    found = {"search": [{"title": "T"}], "pages": [page]}
    async with serving({"/w/api.php": json_reply({"query": found})}) as web:
        tool = ToolSettings(name="wikipedia", source=f"{web.url}/w/api.php", answer="passages")
        policy = answering('{"matched_query_ids": [1]}')
        result = await called(opened(tool, policy=policy), "wikipedia", question="T?")
    assert result.text == "From outside, https://w.example/T:\n> Text."


@pytest.mark.parametrize("name", ["read_page", "wikipedia"])
def test_models_are_those_of_the_tool(name: str, tmp_path: Path) -> None:
    asked: list[object] = []

    def keep(kind: str) -> Callable[[object], Any]:
        return lambda wanted: asked.append((kind, wanted))

    tool = ToolSettings(name=name, model="openai:small", embedding="openai:vectors")
    opened(tool, open_model=keep("model"), open_embedder=keep("vectors"))
    assert sorted(asked, key=str) == [("model", "openai:small"), ("vectors", "openai:vectors")]


async def test_key_and_model_reach_the_service_they_are_of(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {"SERPER_API_KEY": "of-serper", "GEMINI_API_KEY": "of-gemini", "JINA_API_KEY": "of-jina"}
    asked: list[tuple[str, ...]] = []
    async with serving(lambda request: json_reply({}, 400)) as web:
        for place in ("SERPER", "GEMINI", "JINA"):
            monkeypatch.setattr(f"engines.tools.web.tools.{place}", f"{web.url}/{place}/")
        host = web.url.removeprefix("http://")
        for name, provider, source in (
            ("web_search", "serper", None),
            ("web_search", "gemini", "gemini-9"),
            ("read_page", "jina", None),
        ):
            tool = ToolSettings(name=name, provider=provider, source=source, allow_hosts=(host,))
            given = {"query": "q"} if name == "web_search" else {"url": web.url, "question": "q"}
            await called(opened(tool, environment=keys), name, **given)
        for request in web.asked:
            sent = request.headers
            key = sent.get("x-api-key") or sent.get("x-goog-api-key") or sent.get("authorization")
            asked.append((request.path.split("/")[1], str(key), request.path.rpartition("/")[2]))
    assert asked == [
        ("SERPER", "of-serper", "search"),
        ("GEMINI", "of-gemini", "gemini-9:generateContent"),
        ("JINA", "Bearer of-jina", host),
    ]


@pytest.mark.parametrize(
    ("tool", "source"),
    [
        (ToolSettings(name="read_page"), "search.jsonl"),
        (ToolSettings(name="read_page", provider="fixture"), "search.jsonl"),
        (ToolSettings(name="read_page", source="own.jsonl"), "own.jsonl"),
        (ToolSettings(name="read_page", provider="jina"), None),
        (ToolSettings(name="wikipedia"), None),
    ],
)
def test_pages_are_those_of_the_search_unless_told(tool: ToolSettings, source: str | None) -> None:
    search = ToolSettings(name="web_search", provider="fixture", source="search.jsonl")
    assert with_provider(tool, (search, tool)).source == source
