"""Tools for models that have no calls of their own: fenced blocks in replies, results as text.

Turns a conversation with typed calls into one of plain text, and a plain reply into a typed one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson

from engines.core.finish import is_cut
from engines.core.text.prompts import load_prompt, quote
from engines.core.types import Completion, Message, ToolCall

INTERPRETER = "python"
"""The tool whose calls are programs in a block of that language."""
RESULTS = "Tool results"
_BLOCK = re.compile(
    r"^[ \t]*```[ \t]*(tool|python|py)[ \t]*\n(.*?)^[ \t]*```[ \t]*$", re.S | re.M | re.I
)
_PROMPT = load_prompt("engines.policies.tool_use", "protocol")


def as_text(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> tuple[Message, ...]:
    """The conversation without typed calls; what tools said stands quoted in messages of a user."""
    made = list(_as_text(messages, {call.id: call for m in messages for call in m.tool_calls}))
    protocol = _PROMPT.render(tools="\n".join(describe_tool(tool) for tool in tools))
    if made and made[0].role == "system":
        made[0] = replace(made[0], content=f"{made[0].content}\n\n{protocol}")
    else:
        made.insert(0, Message("system", protocol))
    return tuple(made)


def with_calls(reply: Completion, tools: Sequence[Mapping[str, Any]]) -> Completion:
    """A reply with the calls that its blocks make; what is said beside them stays.

    A program is a call only where the interpreter is offered: else it is part of an answer.
    """
    if is_cut(reply.finish):
        return reply
    offered = {tool["name"] for tool in tools}
    calls = tuple(_read_calls(reply.text, INTERPRETER in offered))
    return replace(reply, tool_calls=calls, finish="tool_calls") if calls else reply


def spell_calls(text: str, calls: Sequence[ToolCall]) -> str:
    """The text of a reply with its calls as blocks, where they do not stand in it as such."""
    if _BLOCK.search(text):
        return text
    return "\n\n".join(part for part in (text, *map(_spell_call, calls)) if part)


def _spell_call(call: ToolCall) -> str:
    try:
        arguments = orjson.loads(call.arguments)
    except orjson.JSONDecodeError:
        arguments = call.arguments
    if call.name == INTERPRETER and isinstance(arguments, dict) and set(arguments) == {"code"}:
        return f"```python\n{arguments['code']}\n```"
    asked = orjson.dumps({"name": call.name, "arguments": arguments}).decode()
    return f"```tool\n{asked}\n```"


def _read_calls(text: str, has_interpreter: bool) -> Iterator[ToolCall]:
    for found in _BLOCK.finditer(text):
        language, body = found[1].lower(), found[2].strip("\n")
        if language == "tool":
            yield _read_call(body)
        elif has_interpreter:
            yield ToolCall("", INTERPRETER, orjson.dumps({"code": body}).decode())


def _read_call(body: str) -> ToolCall:
    try:
        asked = orjson.loads(body)
    except orjson.JSONDecodeError:
        asked = None
    if not isinstance(asked, dict) or not isinstance(asked.get("name"), str):
        return ToolCall("", "", body)  # refused by whoever looks for a tool of that name
    arguments = asked.get("arguments", {})
    written = arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()
    return ToolCall("", asked["name"], written)


def _as_text(messages: Sequence[Message], calls: Mapping[str, ToolCall]) -> Iterator[Message]:
    results: list[str] = []
    for message in messages:
        if message.role == "tool":
            call = calls.get(message.tool_call_id)
            results.append(f"{call.name if call else 'tool'}:\n{quote(message.content)}")
            continue
        if results:
            yield Message("user", "\n\n".join([RESULTS, *results]))
            results = []
        if message.tool_calls:
            content = spell_calls(message.content, message.tool_calls)
            message = replace(message, content=content, tool_calls=())
        yield message
    if results:
        yield Message("user", "\n\n".join([RESULTS, *results]))


def describe_tool(tool: Mapping[str, Any]) -> str:
    schema = orjson.dumps(tool["parameters"].get("properties", {})).decode()
    text = " ".join(str(tool["description"]).split())
    return f"- {tool['name']}: {text} Arguments: {schema}"
