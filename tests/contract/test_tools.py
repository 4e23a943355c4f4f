"""What every tool keeps to: what it says of itself, and that a call has a result."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files

import pytest

from engines.core.protocols import Tool
from engines.core.types import ToolResult
from engines.tools.function import FunctionTool
from engines.tools.mcp import McpServer
from engines.tools.settings import ToolSettings
from engines.tools.toolbox import (
    CheckedToolbox,
    Entry,
    ask_model_tool,
    calculator_tool,
    python_tool,
)
from engines.tools.web.tools import WebContext, open_web_tool
from tests.support.builders import answering
from tests.support.sample_tool import shout
from tests.support.tool_tries import FakeSandbox, a_call, a_try


@dataclass(frozen=True)
class Kind:
    make: Callable[[], Tool | McpServer]
    name: str
    arguments: str  # of a call that works


def a_server() -> McpServer:
    command = (sys.executable, "-m", "tests.support.mcp_server", "honest")
    settings = ToolSettings(command=command, pass_env=("PYTHONPATH",), only=("add",))
    path = {"PATH": "/usr/local/bin:/usr/bin:/bin", "PYTHONPATH": "."}
    return McpServer(settings, path, pytest.fail)


def a_web_tool(name: str, provider: str, source: str) -> Tool:
    where = str(files("sample_data") / source)
    tool = ToolSettings(name=name, provider=provider, source=where)
    return open_web_tool(tool, WebContext({}, lambda _: answering("A", "B")))


KINDS = {
    "web_search": Kind(
        lambda: a_web_tool("web_search", "fixture", "web-pages.jsonl"),
        "web_search",
        '{"query": "Ostden"}',
    ),
    "read_page": Kind(
        lambda: a_web_tool("read_page", "fixture", "web-pages.jsonl"),
        "read_page",
        '{"url": "https://example.com/ostden", "question": "Q"}',
    ),
    "wikipedia": Kind(
        lambda: a_web_tool("wikipedia", "folder", "wiki"), "wikipedia", '{"question": "Ostden"}'
    ),
    "function": Kind(lambda: FunctionTool(shout), "shout", '{"word": "a"}'),
    "calculator": Kind(calculator_tool, "calculator", '{"expression": "1+1"}'),
    "ask_model": Kind(lambda: ask_model_tool(answering("A")), "ask_model", '{"question": "Q"}'),
    "python": Kind(lambda: python_tool(FakeSandbox()), "python", '{"code": "1"}'),
    "mcp": Kind(a_server, "add", '{"a": 1, "b": 1}'),
}
every_tool = pytest.mark.parametrize("kind", list(KINDS.values()), ids=list(KINDS))


@every_tool
async def test_a_checked_tool_says_what_it_takes_and_answers_a_call(kind: Kind) -> None:
    toolbox = CheckedToolbox([Entry(kind.make(), "it", 60)])
    try:
        await toolbox.check()
        (spec,) = toolbox.specs
        assert (spec.name, bool(spec.description)) == (kind.name, True)
        json.dumps(spec.function)
        assert spec.parameters["type"] == "object"
        assert all(inner for inner in spec.parameters["properties"].values())
        async with a_try() as within:
            right = await toolbox.call(a_call(kind.name, kind.arguments), within)
            missing = await toolbox.call(a_call(kind.name, "{}"), within)
            extra = await toolbox.call(a_call(kind.name, '{"of_nobody": 1}'), within)
    finally:
        await toolbox.aclose()
    assert right.status == "ok" and right.text
    assert (missing.status, extra.status) == ("refused", "refused")
    assert isinstance(right, ToolResult)
