"""The tools of real MCP servers, of such that die and of such that lie."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from engines.core.errors import ConfigError, StudioError
from engines.core.types import ToolResult
from engines.tools.mcp import MAX_STARTS, McpServer
from engines.tools.settings import ToolSettings
from engines.tools.toolbox import CheckedToolbox, Entry, open_toolbox
from engines.tools.web.tools import WebContext
from tests.support.builders import answering
from tests.support.mcp_server import serve_http
from tests.support.tool_tries import a_call, a_try

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.getcwd(), "SHARED": "yes", "SECRET": "no"}
WEB = WebContext(ENVIRONMENT, lambda _: answering())


def a_server(name: str, **more: Any) -> ToolSettings:
    command = (sys.executable, "-m", "tests.support.mcp_server", name)
    env = ("PYTHONPATH", "SHARED")
    return ToolSettings(command=command, pass_env=env, network="public", **more)


@asynccontextmanager
async def opened(
    *settings: ToolSettings, told: list[str] | None = None
) -> AsyncIterator[CheckedToolbox]:
    tell = told.append if told is not None else pytest.fail
    toolbox = open_toolbox(settings, WEB, tell=tell)
    try:
        await toolbox.check()
        yield toolbox
    finally:
        await toolbox.aclose()


async def called(toolbox: CheckedToolbox, name: str, arguments: str = "{}") -> ToolResult:
    async with a_try() as within:
        return await toolbox.call(a_call(name, arguments), within)


async def refusal(*settings: ToolSettings) -> str:
    with pytest.raises(StudioError) as refused:
        async with opened(*settings):
            pass
    return str(refused.value)


async def test_a_server_that_we_start_serves_its_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANTED", "secret")
    async with opened(a_server("honest")) as toolbox:
        specs = {spec.name: spec for spec in toolbox.specs}
        assert list(specs) == ["add", "environment", "picture", "fail", "hang", "die"]
        assert specs["add"].description == "Add two numbers."
        assert (specs["add"].repeatable, specs["die"].repeatable) == (True, False)
        assert specs["add"].network == "public"
        assert specs["add"].tier.endswith("it has PATH, PYTHONPATH, SHARED")
        assert await called(toolbox, "add", '{"a": 2, "b": 3}') == ToolResult("5")
        picture = await called(toolbox, "picture")
        assert picture.text == "Here:\n[image: image/png]"
        failed = await called(toolbox, "fail")
        assert failed == ToolResult("Error executing tool fail", "error")  # the SDK's words
        refused = await called(toolbox, "add", '{"a": 2}')
        assert (refused.status, refused.text[:26]) == ("refused", "arguments.b: is missing. I")
        wrong = await called(toolbox, "add", '{"a": 2, "b": "many"}')
        assert wrong.status == "error" and "valid integer" in wrong.text
        has = set((await called(toolbox, "environment")).text.split())
        # LC_CTYPE is set by Python itself.
        assert has - {"LC_CTYPE"} == {"PATH", "PYTHONPATH", "SHARED"}


async def test_a_server_that_dies_costs_its_calls_and_is_started_again() -> None:
    told: list[str] = []
    async with opened(a_server("honest"), told=told) as toolbox:
        for _ in range(MAX_STARTS - 1):
            died = await called(toolbox, "die")
            assert (died.status, died.text) == ("unavailable", "its server is gone: it ended")
            assert await called(toolbox, "add", '{"a": 2, "b": 3}') == ToolResult("5")
        await called(toolbox, "die")
        gone = await called(toolbox, "add", '{"a": 2, "b": 3}')
        assert "it was lost 4 times" in gone.text
    assert len(told) == 1
    assert 'tests.support.mcp_server honest": it ended. It said: out of paper' in told[0]


async def test_a_call_that_is_never_answered_is_ended_and_the_next_one_works() -> None:
    server = McpServer(a_server("honest"), ENVIRONMENT, pytest.fail)
    hurried, patient = (CheckedToolbox([Entry(server, "it", s)]) for s in (0.1, 60))
    await hurried.check()
    await patient.check()
    assert (await called(hurried, "hang")).status == "timeout"
    assert await called(patient, "add", '{"a": 2, "b": 3}') == ToolResult("5")
    await server.aclose()


async def test_a_server_over_http_serves_its_tools_and_may_go_and_come_back() -> None:
    told: list[str] = []
    async with serve_http() as port:
        settings = ToolSettings(url=f"http://127.0.0.1:{port}/mcp", only=("add", "fail"))
        toolbox = open_toolbox([settings], WEB, tell=told.append)
        await toolbox.check()
        assert [spec.name for spec in toolbox.specs] == ["add", "fail"]
        assert toolbox.specs[0].tier == f"a server at http://127.0.0.1:{port}/mcp"
        assert await called(toolbox, "add", '{"a": 2, "b": 3}') == ToolResult("5")
    gone = await called(toolbox, "add", '{"a": 2, "b": 3}')
    assert gone.status == "unavailable" and len(told) == 1
    async with serve_http(port):
        assert await called(toolbox, "add", '{"a": 2, "b": 3}') == ToolResult("5")
        await toolbox.aclose()
    assert len(told) == 1


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("array", "its tools cannot be listed (ValidationError: "),
        ("required", 'tool "odd": its schema is not that of an object with its properties.'),
        ("large", 'tool "odd": its schema has 30,'),
        ("nameless", "its tools cannot be listed (ValidationError: "),
        ("no-list", "its tools cannot be listed (ValidationError: "),
        ("broken", "It said: no licence"),
    ],
)
async def test_what_lists_no_tools_is_refused(name: str, said: str) -> None:
    assert said in await refusal(a_server(name))


async def test_a_server_that_never_answers_stops_the_run() -> None:
    assert "it lists no tools within 0.2 s" in await refusal(a_server("silent", timeout_s=0.2))


async def test_what_hides_in_descriptions_is_shown_and_bounded() -> None:
    async with opened(a_server("hidden")) as toolbox:
        (spec,) = toolbox.specs
        assert spec.name == "odd_name"
        assert spec.description.startswith("Adds.\\u202exxx") and len(spec.description) == 2_000
        assert spec.parameters["properties"]["x"]["description"] == "\\u001b[2J"
        sloppy = await called(toolbox, "odd_name")
        assert sloppy.status == "error" and sloppy.text.startswith("ValidationError: ")


async def test_what_no_server_can_be_reached_with_is_said_before_anything_starts() -> None:
    missing = ToolSettings(command=("no-such-command",))
    assert await refusal(missing) == (
        'MCP server "no-such-command": there is no command "no-such-command". Install it.'
    )
    unset = ToolSettings(command=("env",), pass_env=("NOT_SET",))
    assert "the environment variable NOT_SET is not set." in await refusal(unset)
    nobody = ToolSettings(url="http://127.0.0.1:9/mcp")
    assert "its tools cannot be listed (" in await refusal(nobody)


async def test_tools_of_two_servers_may_not_have_one_name() -> None:
    pair = a_server("honest", only=("add",)), a_server("honest", only=("add", "fail"))
    said = await refusal(*pair)
    assert said.count("MCP server") == 2 and 'both have a tool "add"' in said


async def test_a_tool_that_the_server_has_not_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r'it has no tool "ad"\. Did you mean "add"'):
        async with opened(a_server("honest", only=("ad",))):
            pass


async def test_without_the_sdk_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    said = await refusal(a_server("honest"))
    assert "the package mcp is not installed. Run: " in said and "[mcp]" in said


async def test_calls_at_one_time_share_a_server_and_each_learns_of_its_end() -> None:
    told: list[str] = []
    async with opened(a_server("honest"), told=told) as toolbox:
        calls = [called(toolbox, name) for name in ("hang", "hang", "die")]
        assert [result.status for result in await asyncio.gather(*calls)] == ["unavailable"] * 3
        again = [called(toolbox, "add", f'{{"a": {n}, "b": 1}}') for n in range(5)]
        assert [result.text for result in await asyncio.gather(*again)] == list("12345")
    assert len(told) == 1
