"""What a program asks, whatever protocol it speaks, and how its parts are read.

Raises BadRequest with a sentence for the program's author; nothing is passed over in silence but
what `Asked.replaced` names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from engines.core.codec import dumps
from engines.core.finish import meaning_of
from engines.core.types import Completion, Message, ToolCall, Usage

FIXED = (
    *("temperature", "top_p", "top_k", "seed", "frequency_penalty", "presence_penalty"),
    *("logit_bias", "logprobs", "response_format", "text", "tool_choice", "reasoning"),
    *("reasoning_effort", "thinking"),
)
"""Fields whose place the run's own sampling takes. The model, too, which every client must name."""


class BadRequest(Exception):
    """A request that cannot be answered as it is."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request for a reply."""

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    stop: tuple[str, ...] = ()
    max_tokens: int | None = None
    stream: bool = False
    with_usage: bool = False  # a last event of a stream tells the tokens
    replaced: tuple[str, ...] = ()  # names of fields that the run's settings replace


def read_object(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise BadRequest(f"{what} must be an object")
    return value


def read_list(value: Any, what: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise BadRequest(f"{what} must be an array")
    return value


def read_text(content: Any, what: str) -> str:
    """Text, or the texts of content parts; what is no text stands as a note in their place."""
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for part in read_list(content, what):
        part = part if isinstance(part, Mapping) else {"type": "text", "text": part}
        text = part.get("text", part.get("refusal"))
        texts.append(text if isinstance(text, str) else f"[{part.get('type', 'part')}: not shown]")
    return "".join(texts)


def read_call(id: Any, name: Any, arguments: Any) -> ToolCall:
    if not isinstance(name, str) or not name:
        raise BadRequest("a tool call has no name")
    text = arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()
    return ToolCall(str(id or ""), name, text)


def read_tool(tool: Any, schema: str = "parameters") -> Mapping[str, Any]:
    """A function as `ToolSpec.function` writes it, so that equal tools are equal requests."""
    tool = read_object(tool, "a tool")
    if not isinstance(tool.get("name"), str):
        raise BadRequest(f"a tool of the type {tool.get('type')!r} is not offered; give functions")
    return {
        "name": tool["name"],
        "description": str(tool.get("description") or ""),
        "parameters": tool.get(schema) or {"type": "object", "properties": {}},
    }


def read_limit(body: Mapping[str, Any], *names: str) -> int | None:
    for name in names:
        if (value := body.get(name)) is not None:
            if type(value) is not int or value < 1:
                raise BadRequest(f'"{name}" must be a whole number of 1 or more')
            return value
    return None


def read_stop(value: Any) -> tuple[str, ...]:
    stops = (value,) if isinstance(value, str) else tuple(read_list(value, '"stop"'))
    if not all(isinstance(stop, str) and stop for stop in stops):
        raise BadRequest('"stop" must be text or an array of texts')
    return stops


def replaced_fields(body: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(name for name in FIXED if body.get(name) not in (None, "auto"))


def finish_word(reply: Completion, *, cut: str, filtered: str, calls: str, ended: str) -> str:
    """How a reply ended, in a protocol's own words."""
    meaning = meaning_of(reply.finish)
    if meaning == "cut":
        return cut
    return filtered if meaning == "filtered" else calls if reply.tool_calls else ended


def usage_fields(usage: Usage, prompt: str, completion: str) -> dict[str, Any]:
    return {prompt: usage.prompt_tokens, completion: usage.completion_tokens}


def sse(data: Mapping[str, Any], name: str = "") -> bytes:
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + dumps(data) + b"\n\n"
