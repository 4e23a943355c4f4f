"""Replies of a team's members: what each malformed one comes to, in a table."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from engines.core.team import (
    match_tool,
    read_analysis,
    read_check,
    read_command,
    read_plan,
)
from engines.core.text.reply import MAX_REPLY_CHARS, ReplyProblem, spoken_lines

TOOLS = {
    "wikipedia": {"properties": {"question": {"type": "string"}}},
    "calculator": {"properties": {"expression": {"type": "string"}}},
    "read_page": {"properties": {"url": {"type": "string"}, "question": {"type": "string"}}},
}


def plan(text: str) -> tuple[str, str]:
    step = read_plan(text, TOOLS)
    return step.tool_name, step.sub_goal


def line(text: str) -> tuple[str, str]:
    step = read_plan(text, TOOLS, "lines")
    return step.tool_name, step.sub_goal


def command(text: str) -> tuple[str, Any]:
    made = read_command(text, "wikipedia", TOOLS)
    return made.tool_name, dict(made.arguments)


def check(text: str) -> bool:
    return read_check(text)


def analysis(text: str) -> str:
    return read_analysis(text)


WHOLE = '{"sub_goal": "find X", "tool_name": "wikipedia"}'
FOUND = ("wikipedia", "find X")
ASKED = ("wikipedia", {"question": "X"})

TABLE: list[tuple[Callable[[str], Any], str, Any]] = [
    # 1-12: plans that are mended
    (plan, f"```json\n{WHOLE}\n```", FOUND),
    (plan, f"Let me think. Next I look it up.\n{WHOLE}\nThat is all.", FOUND),
    (plan, f'<think>{{"tool_name": "none"}}</think>{WHOLE}', FOUND),
    (plan, WHOLE[:-1], FOUND),  # breaks off before its last bracket
    (plan, WHOLE.replace('"', "'"), FOUND),
    (plan, WHOLE.replace("}", ",}"), FOUND),
    (plan, WHOLE.replace('"sub_goal"', "sub_goal").replace('"tool_name"', "tool_name"), FOUND),
    (plan, '{"sub_goal": "find X", "tool_name": "Wikipedia_Tool"}', FOUND),
    (plan, '{"sub_goal": "find X", "tool_name": " `Read Page`. "}', ("read_page", "find X")),
    (
        plan,
        '{"sub_goal": ["find X", "and Y"], "tool_name": "wikipedia"}',
        ("wikipedia", "find X, and Y"),
    ),
    (plan, f'{{"tool_name": "calculator", "sub_goal": "a draft"}} No: {WHOLE}', FOUND),
    (plan, '{"sub_goal": "", "tool_name": "No tool"}', ("", "")),
    # 13-18: plans that are not
    (plan, "", "it is empty"),
    (plan, "I would search the web.", "no JSON object was found"),
    (plan, '{"sub_goal": "find X", "tool_name": "bing"}', "there is no tool 'bing'"),
    (plan, '{"tool_name": "wikipedia"}', '"sub_goal" is missing'),
    (plan, '{"sub_goal": "find X"}', '"tool_name" is missing'),
    (plan, "{" * (MAX_REPLY_CHARS + 1), "characters"),
    # 19-22: lines
    (line, "First the page.\n- `wikipedia`: Ada Arnem", ("wikipedia", "Ada Arnem")),
    (line, "none", ("", "")),
    (line, "search: Ada Arnem", "there is no tool 'search'"),
    (line, "\n", "it is empty"),
    # 23-29: commands
    (command, '{"command": {"tool": "wikipedia", "arguments": {"question": "X"}}}', ASKED),
    (command, '{"command": {"question": "X"}}', ASKED),
    (command, '{"command": "X", "analysis": "one argument alone"}', ASKED),
    (command, '{"command": "{\\"question\\": \\"X\\"}"}', ASKED),
    (command, '{"command": {"tool": "shell", "arguments": {}}}', "there is no tool 'shell'"),
    (command, '{"command": ["X"]}', "must hold the arguments question"),
    (command, 'execution = tool.execute(query="X")', "no JSON object was found"),
    # 30-36: verdicts on the memory; the word STOP in a sentence is none
    (check, '{"analysis": "do not STOP here", "stop_signal": false}', False),
    (check, '{"stop_signal": "True"}', True),
    (check, '{"stop_signal": "STOP."}', True),
    (check, '{"stop_signal": "CONTINUE"}', False),
    (check, '{"stop_signal": "do not STOP yet"}', "must be true or false"),
    (check, '{"analysis": "STOP"}', '"stop_signal" is missing'),
    (check, "The memory is complete. STOP", "no JSON object was found"),
    # 37-38: analyses
    (analysis, '{"concise_summary": "who?", "required_skills": {"search": "to find"}}', "who?"),
    (analysis, '{"required_skills": "search"}', '"concise_summary" is missing'),
    # 39-42: thoughts are no reply; too long to be mended; deeper than can be read
    (plan, f"<think>{WHOLE}</think>", "it is empty"),
    (line, "<think>\nwikipedia: Ada Arnem</think>", "it is empty"),
    (plan, f"{WHOLE[:-2]} {'x' * 20_000}", "no JSON object was found"),
    (plan, '{"a":' * 4_000, "no JSON object was found"),
]


@pytest.mark.parametrize(("read", "text", "outcome"), TABLE, ids=range(1, len(TABLE) + 1))
def test_each_malformed_reply_has_its_outcome(
    read: Callable[[str], Any], text: str, outcome: Any
) -> None:
    if isinstance(outcome, str) and read is not analysis:
        with pytest.raises(ReplyProblem, match="^.*" + outcome.replace("(", r"\(")):
            read(text)
    elif read is analysis and "missing" in outcome:
        with pytest.raises(ReplyProblem, match=outcome):
            read(text)
    else:
        assert read(text) == outcome


def test_tools_with_a_hyphen_in_their_name_are_found() -> None:
    """Many MCP servers name theirs so."""
    tools = ("get_docs", "get-docs", "resolve-library-id")
    said = ("resolve-library-id", "Resolve library ID", "get-docs", "get_docs")
    assert [match_tool(one, tools) for one in said] == [tools[2], tools[2], *said[2:]]


ADA = {"name": "Ada", "input": "x"}


@pytest.mark.parametrize(
    ("said", "arguments"),
    [
        ({"tool": "greet", "arguments": ADA}, ADA),
        ({"tool": "greet", **ADA}, ADA),
        (ADA, ADA),
        ({"tool": "now", "arguments": None}, {}),
        ({"tool": "now", "arguments": ""}, {}),
    ],
)
def test_a_command_is_read_by_what_its_tool_takes(said: Any, arguments: Any) -> None:
    tools = {"greet": {"properties": {"name": {}, "input": {}}}, "now": {"properties": {}}}
    assert read_command(json.dumps({"command": said}), "greet", tools).arguments == arguments


def test_what_a_member_says_is_shown_a_line_a_key_without_empty_ones() -> None:
    said = json.dumps({"justification": "two\nlines", "context": "", "tool_name": "none"})
    assert spoken_lines(said) == ["justification: two lines", "tool_name: none"]
    assert spoken_lines(f"```json\n{said}\n```") == spoken_lines(said)
    assert spoken_lines("plain\ntext") == ["plain", "text"]
