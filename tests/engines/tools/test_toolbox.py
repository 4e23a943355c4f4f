"""What a call comes to when the tool fails, and which tools cannot stand together."""

from __future__ import annotations

import asyncio

import pytest

from engines.core.errors import AnswersPending, CallFailed, ConfigError, ToolError
from engines.core.types import ToolResult, Usage
from engines.tools.function import FunctionTool
from tests.support.tool_tries import a_call, a_toolbox, a_try

SPENT = Usage(3, 4, 1)


class RudeError(Exception):
    def __str__(self) -> str:
        raise RuntimeError


async def fail(how: str) -> str:
    """Fail in one of many ways."""
    errors: dict[str, BaseException] = {
        "value": ValueError("no\nsuch \x1b[31mrow"),
        "silent": KeyError(),
        "rude": RudeError(),
        "group": ExceptionGroup("two", [OSError("disk"), ValueError()]),
        "model": CallFailed("timeout", "no reply", SPENT),
        "exit": SystemExit(1),
        "own timeout": TimeoutError("the host is silent"),
        "tool": ToolError("MCP server", "it is gone.", "Start it."),
        "pending": AnswersPending({"calls": ["c1"]}),
    }
    raise errors[how]


async def failed(how: str) -> ToolResult:
    async with a_try() as within:
        return await a_toolbox(FunctionTool(fail)).call(
            a_call("fail", f'{{"how": "{how}"}}'), within
        )


@pytest.mark.parametrize(
    ("how", "text", "usage"),
    [
        ("value", "ValueError: no such \\u001b[31mrow", Usage()),
        ("silent", "KeyError", Usage()),
        ("rude", "RudeError", Usage()),
        ("group", "OSError: disk", Usage()),
        ("model", "CallFailed: timeout: no reply", SPENT),
        ("exit", "SystemExit: 1", Usage()),
        ("own timeout", "TimeoutError: the host is silent", Usage()),
        ("tool", "MCP server: it is gone. Start it.", Usage()),
    ],
)
async def test_an_error_of_a_tool_is_a_result(how: str, text: str, usage: Usage) -> None:
    assert await failed(how) == ToolResult(text, "error", usage)


async def test_what_stops_a_run_passes() -> None:
    with pytest.raises(AnswersPending):
        await failed("pending")


async def test_a_call_that_takes_too_long_is_ended_and_what_it_spent_is_kept() -> None:
    async def hang() -> None:
        """Wait for a model for ever."""
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as cut:
            raise asyncio.CancelledError(SPENT) from cut

    async with a_try() as within:
        result = await a_toolbox(FunctionTool(hang), timeout_s=0.01).call(a_call("hang"), within)
    assert result == ToolResult("It gave no result within 0.01 s and was ended.", "timeout", SPENT)


async def test_output_is_shortened() -> None:
    async def talk() -> str:
        """Say much."""
        return "a" * 9_000

    async with a_try() as within:
        result = await a_toolbox(FunctionTool(talk)).call(a_call("talk"), within)
    assert len(result.text) <= 2_000


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError) as refused:
        a_toolbox(FunctionTool(fail), FunctionTool(fail))
    assert 'tool "fail": it and tool "fail" both have a tool "fail".' in str(refused.value)


async def test_every_tool_is_closed_although_one_fails() -> None:
    closed: list[str] = []

    class Closing(FunctionTool):
        async def aclose(self) -> None:
            closed.append(self.spec.name)
            raise OSError

    async def other() -> None:
        """Do nothing."""

    with pytest.raises(OSError):
        await a_toolbox(Closing(fail), Closing(other)).aclose()
    assert closed == ["other", "fail"]
