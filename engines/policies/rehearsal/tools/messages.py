"""The messages and tools of a request: what they hold, and what is wrong with them.

Tools are offered natively, or in words by an agent whose model has no calls of its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from engines.policies.rehearsal.prompt import unquote_lines

CHARS_PER_TOKEN = 4  # the usual rule of thumb; there is no tokenizer to ask
_ROLES = ("system", "developer", "user", "assistant", "tool")
_IN_WORDS = "To use a tool, reply with one fenced block"
_NAMED = re.compile(r"^- ([\w-]+):", re.M)
_RESULTS = "Tool results"
_FUNCTION_NAME = re.compile(r"[\w-]{1,64}", re.ASCII)


def token_count(text: str) -> int:
    return -(-len(text) // CHARS_PER_TOKEN)


def content_text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "".join(part["text"] for part in content)
    return content or ""


def instructions_text(messages: Sequence[Mapping[str, Any]]) -> str:
    return "\n".join(content_text(m) for m in messages if m["role"] in ("system", "developer"))


def native_tools(request: Mapping[str, Any]) -> frozenset[str]:
    """Names of the functions that may be called."""
    if request.get("tool_choice") == "none":
        return frozenset()
    return frozenset(tool["function"]["name"] for tool in request.get("tools") or ())


def tools_in_words(request: Mapping[str, Any]) -> frozenset[str]:
    """Names of the tools that may be asked for in a fenced block."""
    if request.get("tools"):
        return frozenset()
    _, told, after = instructions_text(request["messages"]).partition(_IN_WORDS)
    return frozenset(_NAMED.findall(after)) if told else frozenset()


def result_text(message: Mapping[str, Any]) -> str | None:
    """What a message says that tools gave; None for any other message."""
    text = content_text(message)
    if message["role"] == "user" and text.startswith(_RESULTS):
        return "\n".join(unquote_lines(text.splitlines()))
    return text if message["role"] == "tool" else None


def are_tools(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(_is_tool(tool) for tool in value)


def _is_tool(tool: Any) -> bool:
    function = _function(tool)
    return (
        function is not None
        and _FUNCTION_NAME.fullmatch(function["name"]) is not None
        and isinstance(function.get("description") or "", str)
        and isinstance(function.get("parameters") or {}, Mapping)
    )


def _function(value: Any) -> Mapping[str, Any] | None:
    """The function of a tool or a call; None where there is none with a name."""
    if not isinstance(value, Mapping) or value.get("type") != "function":
        return None
    function = value.get("function")
    named = isinstance(function, Mapping) and isinstance(function.get("name"), str)
    return function if named else None


def messages_error(messages: object) -> str | None:
    """What is wrong with the messages of a request, as a sentence."""
    if not isinstance(messages, list) or not messages:
        return '"messages" must be a non-empty array.'
    waiting: list[str] = []  # ids of calls that are still to be answered
    for n, message in enumerate(messages):
        if not isinstance(message, Mapping) or message.get("role") not in _ROLES:
            return f'"messages[{n}].role" must be one of {", ".join(_ROLES)}.'
        if not _is_readable(message.get("content")):
            return f'"messages[{n}].content" must be text, an array of text parts or null.'
        if message["role"] == "tool":
            if message.get("tool_call_id") not in waiting:
                return f'"messages[{n}].tool_call_id" must be the id of a call not answered yet.'
            waiting.remove(message["tool_call_id"])
            continue
        if waiting:
            return f'"messages[{n}].role" must be tool: the call {waiting[0]} is not answered.'
        calls = message.get("tool_calls")
        if calls is not None and not (message["role"] == "assistant" and _are_calls(calls)):
            form = "an array of function calls with ids of their own, in an assistant message"
            return f'"messages[{n}].tool_calls" must be {form}.'
        waiting = [call["id"] for call in calls or ()]
    return f'"messages" must hold an answer to the call {waiting[0]}.' if waiting else None


def _are_calls(calls: Any) -> bool:
    if not isinstance(calls, list) or not calls:
        return False
    functions = [_function(call) for call in calls]
    if not all(f is not None and isinstance(f.get("arguments"), str) for f in functions):
        return False
    ids = [call.get("id") for call in calls]
    return all(isinstance(id, str) and id for id in ids) and len(set(ids)) == len(ids)


def _is_readable(content: object) -> bool:
    if isinstance(content, list):
        return all(
            isinstance(part, Mapping)
            and part.get("type") == "text"
            and isinstance(part.get("text"), str)
            for part in content
        )
    return content is None or isinstance(content, str)


def tools_error(request: Mapping[str, Any]) -> str | None:
    """What is wrong with fields that only go with tools, as a sentence."""
    for name in ("tool_choice", "parallel_tool_calls"):
        if request.get(name) not in (None, "none") and not request.get("tools"):
            return f'"{name}" is allowed only where "tools" are offered.'
    return None
