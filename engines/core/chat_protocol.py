"""Chat completions as a server speaks them, and how the parts of a request are read.

Written after OpenAI's API reference (November 2026). Raises BadRequest with a sentence for the
client's author; nothing is passed over in silence but what `Asked.given` names.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from engines.core.codec import JsonMapping, JsonObject, dumps
from engines.core.frozen import frozen
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


@frozen
class Asked:
    """One request for a reply."""

    messages: tuple[Message, ...]
    tools: tuple[JsonMapping, ...]
    stop: tuple[str, ...]
    max_tokens: int | None
    stream: bool
    with_usage: bool  # a last event of a stream tells the tokens
    given: JsonMapping  # those of `FIXED` that it sets


def read_request(body: JsonMapping, messages: Sequence[Message]) -> Asked:
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


def read_object(value: Any, what: str) -> JsonMapping:
    if not isinstance(value, Mapping):
        raise BadRequest(f"{what} must be an object")
    return value


def read_list(value: Any, what: str) -> list[Any]:
    if not isinstance(value, list | None):
        raise BadRequest(f"{what} must be an array")
    return value or []


def read_objects(body: JsonMapping, name: str) -> list[JsonMapping]:
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


def arguments_object(text: str) -> JsonObject:
    """Return arguments as an object; text that is none stands in one, to be refused."""
    try:
        value = orjson.loads(text or "{}")
    except orjson.JSONDecodeError:
        value = None
    return value if isinstance(value, dict) else {"arguments": text}


def _read_tool(given: Any) -> JsonMapping:
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


def token_counts(usage: Usage) -> JsonObject:
    return {"input_tokens": usage.prompt_tokens, "output_tokens": usage.completion_tokens}


def error_kind(status: int) -> str:
    return _ERRORS.get(status, "server_error" if status >= 500 else "invalid_request_error")


def write_event(data: JsonMapping, name: str = "") -> bytes:
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + dumps(data) + b"\n\n"


_FINISH = {"cut": "length", "filtered": "content_filter", "calls": "tool_calls", "ended": "stop"}


def parse_request(body: JsonMapping) -> Asked:
    if body.get("n") not in (None, 1):
        raise BadRequest('"n" must be 1: a call gives one reply, and each is recorded')
    return read_request(body, [*map(parse_message, read_objects(body, "messages"))])


def parse_message(given: JsonMapping) -> Message:
    content = read_text(given.get("content"))
    match given.get("role"):
        case "tool":
            return Message("tool", content, tool_call_id=str(given.get("tool_call_id") or ""))
        case "assistant":
            calls = read_list(given.get("tool_calls"), '"tool_calls"')
            return Message("assistant", content, tool_calls=tuple(map(_parse_call, calls)))
        case "system" | "developer":
            return Message("system", content)
        case "user":
            return Message("user", content)
        case role:
            known = "system, developer, user, assistant, tool"
            raise BadRequest(f'"role" is {role!r}; known: {known}')


def _parse_call(given: Any) -> ToolCall:
    call = read_object(given, "a tool call")
    function = read_object(call.get("function"), '"function" of a tool call')
    return read_call(call.get("id"), function.get("name"), function.get("arguments", ""))


class Reply:
    """Writes one reply: whole, or as a stream's `begin`, `text` and `end`."""

    def __init__(self, asked: Asked, model: str, mark: str, created: int) -> None:
        self._asked = asked
        self._head = {"id": f"chatcmpl-{mark}", "created": created, "model": model}

    def whole(self, reply: Completion) -> JsonObject:
        message: JsonObject = {"role": "assistant", "content": reply.text, "refusal": None}
        if reply.tool_calls:
            message["content"] = reply.text or None
            message["tool_calls"] = [_call(call) for call in reply.tool_calls]
        choice = {"index": 0, "message": message, "logprobs": None}
        choice["finish_reason"] = _FINISH[ending(reply)]
        usage = _usage(reply.usage)
        return {**self._head, "object": "chat.completion", "choices": [choice], "usage": usage}

    def begin(self, has_text: bool) -> bytes:
        return self._delta({"role": "assistant", "content": ""})

    def text(self, piece: str) -> bytes:
        return self._delta({"content": piece})

    def end(self, reply: Completion) -> bytes:
        calls = [{"index": n, **_call(call)} for n, call in enumerate(reply.tool_calls)]
        said = self._delta({"tool_calls": calls}) if calls else b""
        said += self._delta({}, _FINISH[ending(reply)])
        if self._asked.with_usage:
            said += self._chunk(choices=[], usage=_usage(reply.usage))
        return said + b"data: [DONE]\n\n"

    def broken(self, reason: str) -> bytes:
        return write_event(error_body(400, reason))

    def _delta(self, delta: JsonMapping, finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
        return self._chunk(choices=[choice])

    def _chunk(self, **parts: Any) -> bytes:
        return write_event({**self._head, "object": "chat.completion.chunk", **parts})


def error_body(status: int, message: str) -> JsonObject:
    error = {"message": message, "type": error_kind(status), "param": None, "code": None}
    return {"error": error}


def _call(call: ToolCall) -> JsonObject:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _usage(usage: Usage) -> JsonObject:
    parts = {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens}
    return {**parts, "total_tokens": usage.tokens}
