"""Chat completions, as OpenAI's API reference describes them (November 2026)."""

from collections.abc import Mapping
from typing import Any

from engines.agents.gateway import fields
from engines.agents.gateway.fields import Asked, BadRequest
from engines.core.types import Completion, Message, ToolCall, Usage

_FINISH = {"cut": "length", "filtered": "content_filter", "calls": "tool_calls", "ended": "stop"}


def parse_request(body: Mapping[str, Any]) -> Asked:
    if body.get("n") not in (None, 1):
        raise BadRequest('"n" must be 1: a call gives one reply, and each is recorded')
    return fields.read_request(body, [*map(parse_message, fields.read_objects(body, "messages"))])


def parse_message(given: Mapping[str, Any]) -> Message:
    content = fields.read_text(given.get("content"))
    match given.get("role"):
        case "tool":
            return Message("tool", content, tool_call_id=str(given.get("tool_call_id") or ""))
        case "assistant":
            calls = fields.read_list(given.get("tool_calls"), '"tool_calls"')
            return Message("assistant", content, tool_calls=tuple(map(_parse_call, calls)))
        case "system" | "developer":
            return Message("system", content)
        case "user":
            return Message("user", content)
        case role:
            known = "system, developer, user, assistant, tool"
            raise BadRequest(f'"role" is {role!r}; known: {known}')


def _parse_call(given: Any) -> ToolCall:
    call = fields.read_object(given, "a tool call")
    function = fields.read_object(call.get("function"), '"function" of a tool call')
    return fields.read_call(call.get("id"), function.get("name"), function.get("arguments", ""))


class Reply:
    """Writes one reply: whole, or as a stream's `begin`, `text` and `end`."""

    def __init__(self, asked: Asked, model: str, mark: str, created: int) -> None:
        self._asked = asked
        self._head = {"id": f"chatcmpl-{mark}", "created": created, "model": model}

    def whole(self, reply: Completion) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": reply.text, "refusal": None}
        if reply.tool_calls:
            message["content"] = reply.text or None
            message["tool_calls"] = [_call(call) for call in reply.tool_calls]
        choice = {"index": 0, "message": message, "logprobs": None}
        choice["finish_reason"] = _FINISH[fields.ending(reply)]
        usage = _usage(reply.usage)
        return {**self._head, "object": "chat.completion", "choices": [choice], "usage": usage}

    def begin(self, has_text: bool) -> bytes:
        return self._delta({"role": "assistant", "content": ""})

    def text(self, piece: str) -> bytes:
        return self._delta({"content": piece})

    def end(self, reply: Completion) -> bytes:
        calls = [{"index": n, **_call(call)} for n, call in enumerate(reply.tool_calls)]
        said = self._delta({"tool_calls": calls}) if calls else b""
        said += self._delta({}, _FINISH[fields.ending(reply)])
        if self._asked.with_usage:
            said += self._chunk(choices=[], usage=_usage(reply.usage))
        return said + b"data: [DONE]\n\n"

    def broken(self, reason: str) -> bytes:
        return fields.write_event(error_body(400, reason))

    def _delta(self, delta: Mapping[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
        return self._chunk(choices=[choice])

    def _chunk(self, **parts: Any) -> bytes:
        return fields.write_event({**self._head, "object": "chat.completion.chunk", **parts})


def error_body(status: int, message: str) -> dict[str, Any]:
    error = {"message": message, "type": fields.error_kind(status), "param": None, "code": None}
    return {"error": error}


def _call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _usage(usage: Usage) -> dict[str, Any]:
    parts = {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens}
    return {**parts, "total_tokens": usage.tokens}
