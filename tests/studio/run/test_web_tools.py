"""Tools of the web within a run: what is absent, what is kept, and what vectors cost."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from engines.core import events as ev
from engines.core.errors import ConfigError, StudioError
from engines.core.types import Usage
from engines.pipeline.budget import Budget
from engines.record.ledger import RecordLedger
from studio.render.run_lines import agent_lines
from studio.run.models import check_budget, limits_of, open_roles
from tests.studio.config.run_files import SMALL, loaded
from tests.support.harness import practised
from tests.support.tool_tries import a_call, a_try
from tests.support.usage import read_usage
from tests.support.web_server import json_reply, serving

FILE = SMALL + "agent:\n  tools:\n"
SEARCH = "{name: web_search, provider: fixture, source: web-pages.jsonl}"


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SERPER_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY", "JINA_API_KEY"):
        monkeypatch.delenv(name, raising=False)


async def test_a_run_searches_and_reads_the_pages_of_a_fixture(tmp_path: Path) -> None:
    done = await practised(
        tmp_path / "practice",
        *("practice.epochs=1", "practice.batch_size=1", "practice.group_size=2"),
        *("data.practice=web", "data.truncate=1", "verifier=text"),
        f"agent.tools=[{SEARCH}, {{name: read_page, answer: passages}}]",
        preset="math",
    )
    (facts,) = (e.event.facts for e in done.run.entries() if isinstance(e.event, ev.AgentOpened))
    assert [tool["tier"] for tool in facts["tools"]] == ["in the studio's process, by fixture"] * 2
    assert "absent" not in facts
    records = (done.run.records / "step-0001.jsonl").read_text()
    assert records.count("a page of the fixture file web-pages.jsonl") >= 4


async def test_a_tool_without_a_key_is_told_and_without_any_tool_nothing_starts(
    tmp_path: Path,
) -> None:
    both = loaded(tmp_path, FILE + "  - web_search\n  - calculator\n").config
    async with AsyncExitStack() as stack:
        facts = await open_roles(both, stack).acting.check()
    assert [tool["name"] for tool in facts["tools"]] == ["calculator"]
    said = 'tool "web_search" is absent: SERPER_API_KEY is not set'
    assert facts["absent"] == [said] and agent_lines(facts)[-1] == said
    with pytest.raises(ConfigError, match=r"no tool is left: .* Set SERPER_API_KEY in the"):
        async with AsyncExitStack() as stack:
            open_roles(loaded(tmp_path, FILE + "  - web_search\n").config, stack)
    given = loaded(tmp_path, FILE + "  - web_search\n", environ={"SERPER_API_KEY": "k"}).config
    async with AsyncExitStack() as stack:
        toolbox = open_roles(given, stack).acting.toolbox
    assert toolbox is not None and [spec.name for spec in toolbox.specs] == ["web_search"]


async def test_what_is_found_is_kept_in_the_workspace(tmp_path: Path) -> None:
    hit = {"url": "https://x.example/", "title": "t", "content": "c"}
    async with serving({"/search": json_reply({"results": [hit]})}) as web:
        tool = f"  - {{name: web_search, provider: searxng, source: '{web.url}'}}\n"
        config = loaded(tmp_path, FILE + tool).config
        for _ in range(2):
            async with AsyncExitStack() as stack, a_try() as within:
                acting = open_roles(config, stack, workspace=tmp_path / "workspace").acting
                assert acting.toolbox is not None
                result = await acting.toolbox.call(a_call("web_search", '{"query": "q"}'), within)
                assert result.status == "ok"
        assert len(web.asked) == 1
    (kept,) = (tmp_path / "workspace" / "cache" / "web").iterdir()
    assert json.loads(kept.read_bytes())["about"] == "q"


async def test_vectors_of_a_tool_come_out_of_the_budget_and_are_recorded(tmp_path: Path) -> None:
    data = {"data": [{"index": n, "embedding": [1.0, n]} for n in range(4)]}
    reply = {**data, "model": "m", "usage": {"prompt_tokens": 100, "total_tokens": 100}}
    row = {"title": "t", "url": "https://e.example/", "text": "word " * 500}  # 3 passages
    (tmp_path / "pages.jsonl").write_text(json.dumps(row))
    async with serving(lambda asked: json_reply(reply)) as web:
        model = f"{{model: 'openai:m', base_url: '{web.url}/v1', api_key: none}}"
        pages = "provider: fixture, source: pages.jsonl, answer: passages"
        tool = f"  - {{name: read_page, {pages}, embedding: {model}}}\n"
        run = loaded(tmp_path, FILE + tool + "budget: {tokens: 1000}\n")
        budget = Budget(limits_of(run.config), pytest.fail)
        ledger = RecordLedger(tmp_path / "records", 1)
        async with AsyncExitStack() as stack, a_try() as within:
            acting = open_roles(run.config, stack, budget=budget, ledger=ledger).acting
            assert acting.toolbox is not None
            arguments = '{"url": "https://e.example/", "question": "q"}'
            result = await acting.toolbox.call(a_call("read_page", arguments), within)
            await ledger.aclose()
        assert result.usage == Usage(100, 0, 1) and result.text.count("> …") == 2
        assert budget.remaining["tokens"] == 900
        assert list(read_usage(tmp_path / "records")) == [("openai:m", Usage(100, 0, 1))]
        assert [asked.path for asked in web.asked] == ["/v1/embeddings"]
    prices = ("policy.price_in_usd_per_mtok=1", "policy.price_out_usd_per_mtok=1")
    dear = loaded(tmp_path, FILE + tool, "budget.cost_usd=1", *prices)
    with pytest.raises(ConfigError, match=r"Set agent\.tools\.0\.embedding\.price_in_usd"):
        check_budget(dear, dear.config)


async def test_an_embedding_model_that_does_not_answer_stops_a_run(tmp_path: Path) -> None:
    model = "{model: 'openai:m', base_url: 'http://127.0.0.1:9/v1', api_key: none, timeout_s: 1}"
    tool = f"  - {{name: read_page, embedding: {model}}}\n"
    async with AsyncExitStack() as stack:
        acting = open_roles(loaded(tmp_path, FILE + tool).config, stack).acting
        with pytest.raises(StudioError, match=r"127\.0\.0\.1:9"):
            await acting.check()
