"""The shipped tools: what they take, say and refuse."""

from __future__ import annotations

import pytest

from engines.core.errors import ToolError
from engines.core.text.maths import MAX_CHARS, MAX_DIGITS
from engines.core.types import Completion, Message, ToolResult, Usage
from engines.tools.sandbox.sandbox import RunResult
from engines.tools.toolbox import ask_model_tool, calculator_tool, python_tool
from tests.support.builders import answering
from tests.support.tool_tries import FakeSandbox, a_call, a_toolbox, a_try


async def test_the_calculator_computes_and_says_what_it_cannot() -> None:
    toolbox = a_toolbox(calculator_tool())
    async with a_try() as within:
        right = await toolbox.call(a_call("calculator", '{"expression": "17*(3+4)"}'), within)
        wrong = await toolbox.call(a_call("calculator", '{"expression": "1/2"}'), within)
    assert right == ToolResult("119")
    assert wrong.status == "error" and "'/' is not allowed" in wrong.text


def test_the_calculators_limits_are_those_of_its_description() -> None:
    told = calculator_tool().spec.description
    assert f"{MAX_CHARS} characters, numbers of {MAX_DIGITS} digits" in told


async def test_ask_model_asks_at_temperature_zero_and_quotes_the_reply() -> None:
    policy = answering(Completion("Ulm.\nIt lies on the Danube.", usage=Usage(5, 6, 1)))
    toolbox = a_toolbox(ask_model_tool(policy))
    question = '{"question": "Where?", "instruction": "In one sentence."}'
    async with a_try() as within:
        result = await toolbox.call(a_call("ask_model", question), within)
    text = "The model replies:\n> Ulm.\n> It lies on the Danube."
    assert result == ToolResult(text, usage=Usage(5, 6, 1))
    assert policy.requests == [(Message("system", "In one sentence."), Message("user", "Where?"))]
    assert policy.samplings[0].temperature == 0


async def test_a_reply_without_text_is_an_error_and_one_that_was_cut_says_so() -> None:
    policy = answering(Completion(" ", finish="content_filter"), Completion("so", finish="length"))
    toolbox = a_toolbox(ask_model_tool(policy))
    async with a_try() as within:
        none = await toolbox.call(a_call("ask_model", '{"question": "q"}'), within)
        cut = await toolbox.call(a_call("ask_model", '{"question": "q"}'), within)
    assert (none.status, none.text) == (
        "error",
        "The model gave no text (it ended with 'content_filter').",
    )
    assert cut.text == "The model replies:\n> so\n(cut at its length limit)"


def code(text: str) -> str:
    return f'{{"code": "{text}"}}'


OUTCOMES = {
    "print": RunResult("ok", stdout="a\nb\n"),
    "both": RunResult("ok", stdout="a\n", value="5", variables=("x",)),
    "value": RunResult("ok", value="[1, 2]"),
    "nothing": RunResult("ok", variables=tuple(f"v{n}" for n in range(14))),
    "bad": RunResult("error", stdout="so far\n", error="NameError: name 'y' is not defined"),
    "long": RunResult("timeout", error="stopped after 10 s"),
    "warn": RunResult("ok", stderr="careful\n", value="1"),
    "no value": RunResult("ok", stdout="a\n"),
}


@pytest.mark.parametrize(
    ("ran", "result"),
    [
        ("print", ToolResult("a\nb")),
        ("both", ToolResult("a\nValue: 5\nVariables: x")),
        ("value", ToolResult("[1, 2]")),
        ("no value", ToolResult("a")),
        (
            "nothing",
            ToolResult(
                "(no output: print the result, or leave it as the last line)\n"
                "Variables: v0, v1, v2, v3, v4, v5, v6, v7, v8, v9, v10, v11 and 2 more"
            ),
        ),
        (
            "bad",
            ToolResult("so far\nFailed (error): NameError: name 'y' is not defined", "error"),
        ),
        ("long", ToolResult("Failed (timeout): stopped after 10 s", "timeout")),
        ("warn", ToolResult("1\nstderr: careful")),
    ],
)
async def test_what_code_comes_to_reads_well(ran: str, result: ToolResult) -> None:
    async with a_try() as within:
        toolbox = a_toolbox(python_tool(FakeSandbox(OUTCOMES)))
        assert await toolbox.call(a_call("python", code(ran)), within) == result


async def test_the_calls_of_a_try_share_a_session_which_its_end_closes() -> None:
    sandbox = FakeSandbox()
    toolbox = a_toolbox(python_tool(sandbox))
    async with a_try() as within, a_try() as other:
        for text in ("x = 1", "x"):
            await toolbox.call(a_call("python", code(text)), within)
        await toolbox.call(a_call("python", code("y")), other)
        assert [session.ran for session in sandbox.sessions] == [["x = 1", "x"], ["y"]]
        assert not sandbox.sessions[0].closed
    assert all(session.closed for session in sandbox.sessions)


async def test_what_a_killed_process_had_computed_is_computed_again_and_once() -> None:
    sandbox = FakeSandbox()
    toolbox = a_toolbox(python_tool(sandbox))
    earlier = [
        a_call("python", code("x = 1")),
        a_call("calculator", '{"expression": "1"}'),
        a_call("python", "no JSON"),
        a_call("python", code("y = 2")),
    ]
    async with a_try(*earlier) as within:
        for text in ("x + y", "x"):
            result = await toolbox.call(a_call("python", code(text)), within)
        assert result.text == "x"
        assert within.earlier == [earlier[1]]
    assert sandbox.sessions[0].ran == ["x = 1", "y = 2", "x + y", "x"]


async def test_the_self_test_says_what_contains_it_and_which_libraries_it_has() -> None:
    missing = {"import sympy": RunResult("error", error="ModuleNotFoundError")}
    sandbox = FakeSandbox(missing)
    tool = python_tool(sandbox)
    await a_toolbox(tool).check()
    assert tool.spec.tier == "Code runs in a process of its own."
    assert tool.spec.description.endswith("Usable: the standard library, numpy.")
    assert sandbox.sessions[0].closed


async def test_an_interpreter_that_cannot_compute_stops_the_run() -> None:
    broken = FakeSandbox({"1+1": RunResult("killed", error="no memory")})
    with pytest.raises(ToolError) as refused:
        await a_toolbox(python_tool(broken)).check()
    assert "1+1 came to 'Failed (killed): no memory'" in str(refused.value)
