"""Settings of the tools of the web: what fits what, and where files and keys are found."""

from __future__ import annotations

from pathlib import Path

import pytest

from engines.tools.settings import PROVIDERS
from studio.config.loading import load_run
from studio.config.run_yaml import differences, dump_run_yaml, fingerprint
from studio.config.settings.agent import READERS, ToolConfig
from tests.studio.config.run_files import SMALL, loaded, refused, write


def file_with(tool: str) -> str:
    return f"{SMALL}agent:\n  tools:\n  - {tool}\n"


def tool_of(folder: Path, text: str) -> ToolConfig:
    return loaded(folder, file_with(text)).config.agent.tools[0]


@pytest.mark.parametrize("name", list(PROVIDERS))
def test_a_name_alone_is_a_tool_and_readers_have_more_time(tmp_path: Path, name: str) -> None:
    tool = tool_of(tmp_path, name)
    assert (tool.name, tool.provider, tool.answer, tool.cache) == (name, None, "model", True)
    assert tool.timeout_s == (120 if name in READERS else 30)
    assert tool_of(tmp_path, f"{{name: {name}, timeout_s: 5}}").timeout_s == 5


@pytest.mark.parametrize(
    "text",
    [
        "{name: web_search, provider: searxng, source: 'http://127.0.0.1:8888'}",
        "{name: web_search, provider: gemini}",
        "{name: web_search, provider: gemini, source: gemini-3-flash}",
        "{name: read_page, provider: fixture}",
        "{name: read_page, provider: jina, allow_hosts: wiki.intern}",
        "{name: read_page, allow_hosts: [10.0.0.5, '10.0.0.5:8000', '[::1]:80']}",
        "{name: wikipedia, source: zh-yue}",
        "{name: wikipedia, source: 'https://wiki.intern/w/api.php', answer: passages}",
        "{name: wikipedia, model: openai:m, embedding: rehearsal, user_agent: me/1.0}",
    ],
)
def test_what_fits_a_tool_is_taken(tmp_path: Path, text: str) -> None:
    assert tool_of(tmp_path, text).name


@pytest.mark.parametrize(
    ("text", "at", "cause"),
    [
        ("{name: calculator, provider: serper}", "provider", "does not fit the tool"),
        ("{name: python, source: a}", "source", "does not fit the tool"),
        ("{name: calculator, model: openai:m}", "model", "does not fit the tool"),
        ("{name: web_search, model: openai:m}", "model", "does not fit the tool"),
        ("{name: web_search, answer: passages}", "answer", "does not fit the tool"),
        ("{name: web_search, embedding: rehearsal}", "embedding", "does not fit the tool"),
        ("{name: read_page, answer: passages, model: openai:m}", "model", "no model is asked"),
        ("{url: 'http://x/mcp', cache: false}", "cache", "does not fit the tool"),
        ("{command: [a], allow_hosts: [b]}", "allow_hosts", "does not fit the tool"),
        ("{function: 'a.py:f', user_agent: me}", "user_agent", "does not fit the tool"),
        ("{name: python, pass_env: [HOME]}", "pass_env", "it is a key of MCP servers"),
        ("{function: 'a.py:f', only: [f]}", "only", "it is a key of MCP servers"),
        ("{name: calculator, readable: [data]}", "readable", "it is a key of MCP servers"),
        ("{name: web_search, provider: jina}", "provider", "has no such provider"),
        ("{name: web_search, provider: searxng}", "source", "does not fit the provider"),
        ("{name: web_search, provider: searxng, source: x}", "source", "does not fit the prov"),
        ("{name: web_search, provider: fixture}", "source", "does not fit the provider"),
        ("{name: web_search, source: x}", "source", "does not fit the provider"),
        ("{name: read_page, provider: jina, source: x}", "source", "does not fit the provider"),
        ("{name: wikipedia, provider: folder}", "source", "does not fit the provider"),
        ("{name: wikipedia, source: 'e/n'}", "source", "does not fit the provider"),
        ("{name: read_page, allow_hosts: ['http://x/']}", "allow_hosts", "is no host"),
        ('{name: read_page, user_agent: "a\\nX-Key: b"}', "user_agent", "user_agent"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_key(
    tmp_path: Path, text: str, at: str, cause: str
) -> None:
    error = refused(tmp_path, file_with(text))
    assert "mine.yaml:5" in error.place and error.move
    assert f"tools.0.{at}" in error.cause and cause in error.cause


@pytest.mark.parametrize(
    ("key", "move"),
    [("provder", 'Did you mean "agent.tools.0.provider"?'), ("xx", "Known here: allow_hosts, ")],
)
def test_an_unknown_key_of_a_tool_is_told_what_a_tool_has(
    tmp_path: Path, key: str, move: str
) -> None:
    assert refused(tmp_path, file_with(f"{{name: wikipedia, {key}: x}}")).move.startswith(move)


def test_pages_are_found_beside_the_file_in_the_workspace_and_in_the_bundled_data(
    tmp_path: Path,
) -> None:
    text = "{{name: web_search, provider: fixture, source: {}}}"
    bundled = tool_of(tmp_path, text.format("web-pages.jsonl")).source
    assert bundled is not None and bundled.endswith("/sample_data/web-pages.jsonl")
    for place in (tmp_path / "workspace", tmp_path):
        place.mkdir(exist_ok=True)
        (place / "web-pages.jsonl").write_text("{}")
        assert tool_of(tmp_path, text.format("web-pages.jsonl")).source == str(
            place / "web-pages.jsonl"
        )
    assert tool_of(tmp_path, text.format("none.jsonl")).source == "none.jsonl"
    (tmp_path / "de").mkdir()  # a language is no folder
    assert tool_of(tmp_path, "{name: wikipedia, source: de}").source == "de"


def test_a_resume_compares_pages_by_name_wherever_they_lie(tmp_path: Path) -> None:
    prints = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        (folder / "wiki").mkdir(parents=True)
        text = file_with("{name: wikipedia, provider: folder, source: wiki}")
        prints.append(fingerprint(loaded(folder, text).config))
    assert prints[0]["agent.tools"][0]["source"] == "wiki"
    assert differences(*prints) == ()


def test_keys_come_from_the_environment_or_its_file_and_are_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JINA_API_KEY", raising=False)
    monkeypatch.setenv("SERPER_API_KEY", "a1b2c3d4e5f6a7b8")
    (tmp_path / ".env").write_text("JINA_API_KEY=jina_0a1b2c3d4e5f\n")
    path = write(tmp_path, file_with("web_search"))
    found = load_run(str(path), [], tmp_path / "workspace", cwd=tmp_path)
    keys = {"SERPER_API_KEY": "a1b2c3d4e5f6a7b8", "JINA_API_KEY": "jina_0a1b2c3d4e5f"}
    assert keys.items() <= found.config.tool_keys.items()
    written = dump_run_yaml(found.config, found.mask) + repr(found.config)
    assert not [key for key in keys.values() if key in written]
    assert found.mask("key a1b2c3d4e5f6a7b8") != "key a1b2c3d4e5f6a7b8"
