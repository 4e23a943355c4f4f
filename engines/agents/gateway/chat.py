"""Chat completions, as OpenAI's API reference describes them (November 2026)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engines.agents.gateway import fields
from engines.agents.gateway.fields import Asked, BadRequest
from engines.core.types import Completion, Message, ToolCall, Usage

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


def parse_request(body: Mapping[str, Any]) -> Asked:
    if body.get("n") not in (None, 1):
        raise BadRequest('"n" must be 1: a call gives one reply, and each is recorded')
    messages = fields.read_list(body.get("messages"), '"messages"')
    if not messages:
        raise BadRequest('"messages" must be a non-empty array')
    options = body.get("stream_options") or {}
    return Asked(
        messages=tuple(_parse_message(message) for message in messages),
        tools=tuple(
            fields.read_tool(fields.read_object(tool, "a tool").get("function") or tool)
            for tool in fields.read_list(body.get("tools"), '"tools"')
        ),
        stop=fields.read_stop(body.get("stop")),
        max_tokens=fields.read_limit(body, "max_completion_tokens", "max_tokens"),
        stream=bool(body.get("stream")),
        with_usage=bool(fields.read_object(options, '"stream_options"').get("include_usage")),
        replaced=fields.replaced_fields(body),
    )


def _parse_message(given: Any) -> Message:
    given = fields.read_object(given, "a message")
    content = fields.read_text(given.get("content"), '"content"')
    match given.get("role"):
        case "tool":
            return Message("tool", content, tool_call_id=str(given.get("tool_call_id") or ""))
        case "assistant":
            calls = []
            for call in fields.read_list(given.get("tool_calls"), '"tool_calls"'):
                call = fields.read_object(call, "a tool call")
                function = fields.read_object(call.get("function"), '"function" of a tool call')
                calls.append(
                    fields.read_call(
                        call.get("id"), function.get("name"), function.get("arguments", "")
                    )
                )
            return Message("assistant", content, tool_calls=tuple(calls))
        case "system" | "developer":
            return Message("system", content)
        case "user":
            return Message("user", content)
    raise BadRequest(f'"role" is {given.get("role")!r}; known: {", ".join(_ROLES)}, tool')


class ChatReply:
    """Writes one reply. The parts of a stream are asked for in order: begin, text, end."""

    def __init__(self, asked: Asked, model: str, mark: str, created: int) -> None:
        self._asked = asked
        self._head = {"id": f"chatcmpl-{mark}", "created": created, "model": model}

    def whole(self, reply: Completion) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": reply.text, "refusal": None}
        if reply.tool_calls:
            message["content"] = reply.text or None
            message["tool_calls"] = [_call(call) for call in reply.tool_calls]
        choice = {"index": 0, "message": message, "finish_reason": _finish(reply), "logprobs": None}
        usage = _usage(reply.usage)
        return {**self._head, "object": "chat.completion", "choices": [choice], "usage": usage}

    def begin(self) -> bytes:
        return self._chunk({"role": "assistant", "content": ""})

    def text(self, piece: str) -> bytes:
        return self._chunk({"content": piece})

    def end(self, reply: Completion) -> bytes:
        calls = [{"index": n, **_call(call)} for n, call in enumerate(reply.tool_calls)]
        parts = [self._chunk({"tool_calls": calls})] if calls else []
        parts.append(self._chunk({}, _finish(reply)))
        if self._asked.with_usage:
            chunk = {**self._head, "object": "chat.completion.chunk", "choices": []}
            parts.append(fields.sse({**chunk, "usage": _usage(reply.usage)}))
        return b"".join((*parts, b"data: [DONE]\n\n"))

    def broken(self, reason: str) -> bytes:
        return fields.sse(error_body(400, reason))

    def _chunk(self, delta: Mapping[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
        return fields.sse({**self._head, "object": "chat.completion.chunk", "choices": [choice]})


def error_body(status: int, message: str) -> dict[str, Any]:
    kind = {401: "authentication_error", 404: "not_found_error"}.get(
        status, "invalid_request_error"
    )
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}


def _call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _finish(reply: Completion) -> str:
    return fields.finish_word(
        reply, cut="length", filtered="content_filter", calls="tool_calls", ended="stop"
    )


def _usage(usage: Usage) -> dict[str, Any]:
    counts = fields.usage_fields(usage, "prompt_tokens", "completion_tokens")
    return {**counts, "total_tokens": usage.tokens}
