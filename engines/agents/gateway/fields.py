"""What a program asks, whatever protocol it speaks, and how its parts are read.

Raises BadRequest with a sentence for the program's author; nothing is passed over in silence but
what `Asked.given` names.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from engines.core.codec import dumps
from engines.core.types import Completion, Message, ToolCall, Usage, meaning_of

FIXED = (
    *("temperature", "top_p", "top_k", "seed", "frequency_penalty", "presence_penalty"),
    *("logit_bias", "logprobs", "response_format", "text", "tool_choice", "reasoning"),
    *("reasoning_effort", "thinking"),
)
"""How a reply is drawn, whose place a run's own sampling takes. Every client names a model, too."""
_USUAL = (None, "auto", {"type": "auto"})
_LIMITS = ("max_completion_tokens", "max_output_tokens", "max_tokens")
_ERRORS = {401: "authentication_error", 404: "not_found_error", 413: "request_too_large"}
_ERRORS |= {403: "permission_error", 429: "rate_limit_error"}


class BadRequest(Exception):
    """A request that cannot be answered as it is."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request for a reply."""

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...]
    stop: tuple[str, ...]
    max_tokens: int | None
    stream: bool
    with_usage: bool  # a last event of a stream tells the tokens
    given: Mapping[str, Any]  # those of `FIXED` that it sets


def read_request(body: Mapping[str, Any], messages: Sequence[Message]) -> Asked:
    """A request with its messages, which each protocol writes in a way of its own."""
    stop = body.get("stop") or body.get("stop_sequences")
    stops = (stop,) if isinstance(stop, str) else tuple(read_list(stop, '"stop"'))
    if not all(isinstance(one, str) and one for one in stops):
        raise BadRequest('"stop" must be text or an array of texts')
    limits = {name: body[name] for name in _LIMITS if body.get(name) is not None}
    for name, limit in limits.items():
        if type(limit) is not int or limit < 1:
            raise BadRequest(f'"{name}" must be a whole number of 1 or more')
    options = read_object(body.get("stream_options") or {}, '"stream_options"')
    return Asked(
        messages=tuple(messages),
        tools=tuple(map(_read_tool, read_list(body.get("tools"), '"tools"'))),
        stop=stops,
        max_tokens=next(iter(limits.values()), None),
        stream=bool(body.get("stream")),
        with_usage=bool(options.get("include_usage")),
        given={name: body[name] for name in FIXED if body.get(name) not in _USUAL},
    )


def read_object(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise BadRequest(f"{what} must be an object")
    return value


def read_list(value: Any, what: str) -> list[Any]:
    if not isinstance(value, list | None):
        raise BadRequest(f"{what} must be an array")
    return value or []


def read_objects(body: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    """What is asked with: an array of objects that is not empty."""
    if not (given := read_list(body.get(name), f'"{name}"')):
        raise BadRequest(f'"{name}" must be a non-empty array')
    return [read_object(item, f'each of "{name}"') for item in given]


def read_text(content: Any, what: str = '"content"') -> str:
    """Text, or the texts of content parts; what is no text stands as a note in their place."""
    if isinstance(content, str):
        return content
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


def arguments_object(text: str) -> dict[str, Any]:
    """Return arguments as an object; text that is none stands in one, to be refused."""
    try:
        value = orjson.loads(text or "{}")
    except orjson.JSONDecodeError:
        value = None
    return value if isinstance(value, dict) else {"arguments": text}


def _read_tool(given: Any) -> Mapping[str, Any]:
    """A function as `ToolSpec.function` writes it, so that equal tools are equal requests."""
    tool = read_object(given, "a tool")
    kind, tool = tool.get("type", "function"), read_object(tool.get("function", tool), "a function")
    if kind not in ("function", "custom") or not isinstance(tool.get("name"), str):
        raise BadRequest(f"a tool of the type {kind!r} is not offered; give functions")
    schema = tool.get("parameters") or tool.get("input_schema")
    return {
        "name": tool["name"],
        "description": str(tool.get("description") or ""),
        "parameters": schema or {"type": "object", "properties": {}},
    }


def ending(reply: Completion) -> str:
    """How a reply ended: "cut", "filtered", "calls" or "ended"; each protocol has own words."""
    meaning = meaning_of(reply.finish)
    if meaning in ("cut", "filtered"):
        return meaning
    return "calls" if reply.tool_calls else "ended"


def token_counts(usage: Usage) -> dict[str, Any]:
    return {"input_tokens": usage.prompt_tokens, "output_tokens": usage.completion_tokens}


def error_kind(status: int) -> str:
    return _ERRORS.get(status, "server_error" if status >= 500 else "invalid_request_error")


def write_event(data: Mapping[str, Any], name: str = "") -> bytes:
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + dumps(data) + b"\n\n"
