"""Messages, as Anthropic's API reference describes them (November 2026)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from engines.agents.gateway import fields
from engines.agents.gateway.fields import Asked, BadRequest
from engines.core.types import Completion, Message


def parse_request(body: Mapping[str, Any]) -> Asked:
    messages: list[Message] = []
    if system := fields.read_text(body.get("system"), '"system"'):
        messages.append(Message("system", system))
    given = fields.read_list(body.get("messages"), '"messages"')
    if not given:
        raise BadRequest('"messages" must be a non-empty array')
    for message in given:
        messages += _parse_message(fields.read_object(message, "a message"))
    tools = fields.read_list(body.get("tools"), '"tools"')
    return Asked(
        messages=tuple(messages),
        tools=tuple(fields.read_tool(_own_tool(tool), "input_schema") for tool in tools),
        stop=fields.read_stop(body.get("stop_sequences")),
        max_tokens=fields.read_limit(body, "max_tokens"),
        stream=bool(body.get("stream")),
        replaced=fields.replaced_fields(body),
    )


def _own_tool(tool: Any) -> Mapping[str, Any]:
    if "input_schema" not in fields.read_object(tool, "a tool"):
        raise BadRequest(f"a tool of the type {tool.get('type')!r} runs at a server; give your own")
    return fields.read_object(tool, "a tool")


def _parse_message(message: Mapping[str, Any]) -> Iterator[Message]:
    """The messages that one of theirs is: each result of a tool is one, then what was said."""
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant"):
        raise BadRequest(f'"role" is {role!r}; known: user, assistant')
    if isinstance(content, str):
        yield Message(role, content)
        return
    said: list[Any] = []
    calls = []
    for block in fields.read_list(content, '"content"'):
        match fields.read_object(block, "a content block").get("type"):
            case "tool_result":
                text = fields.read_text(block.get("content"), '"content" of a tool result')
                yield Message("tool", text, tool_call_id=str(block.get("tool_use_id") or ""))
            case "tool_use":
                calls.append(
                    fields.read_call(block.get("id"), block.get("name"), block.get("input", {}))
                )
            case "thinking" | "redacted_thinking":
                pass  # ours, as `GuidedTry` puts it back where the reply was kept whole
            case _:
                said.append(block)
    if said or calls:
        yield Message(role, fields.read_text(said, '"content"'), tool_calls=tuple(calls))


class MessagesReply:
    """Writes one reply. The parts of a stream are asked for in order: begin, text, end."""

    def __init__(self, asked: Asked, model: str, mark: str, created: int) -> None:
        self._mark, self._model, self._text_begun = mark, model, False

    def whole(self, reply: Completion) -> dict[str, Any]:
        return {
            **self._message(reply),
            "content": list(self._blocks(reply)),
            "stop_reason": _stop_reason(reply),
        }

    def begin(self) -> bytes:
        return _event("message_start", message=self._message(Completion("")))

    def text(self, piece: str) -> bytes:
        delta = {"type": "text_delta", "text": piece}
        return self._open_text() + _event("content_block_delta", index=0, delta=delta)

    def end(self, reply: Completion) -> bytes:
        parts = []
        for n, block in enumerate(self._blocks(reply)):
            if block["type"] == "text":
                parts.append(self._open_text())
            else:
                given = orjson.dumps(block["input"]).decode()
                delta = {"type": "input_json_delta", "partial_json": given}
                empty = {**block, "input": {}}
                parts.append(_event("content_block_start", index=n, content_block=empty))
                parts.append(_event("content_block_delta", index=n, delta=delta))
            parts.append(_event("content_block_stop", index=n))
        ended = {"stop_reason": _stop_reason(reply), "stop_sequence": None}
        usage = fields.usage_fields(reply.usage, "input_tokens", "output_tokens")
        return b"".join(
            (*parts, _event("message_delta", delta=ended, usage=usage), _event("message_stop"))
        )

    def broken(self, reason: str) -> bytes:
        return fields.sse(error_body(400, reason), "error")

    def _message(self, reply: Completion) -> dict[str, Any]:
        head = {"id": f"msg_{self._mark}", "type": "message", "role": "assistant", "content": []}
        usage = fields.usage_fields(reply.usage, "input_tokens", "output_tokens")
        ended = {"stop_reason": None, "stop_sequence": None}
        return {**head, "model": self._model, **ended, "usage": usage}

    def _open_text(self) -> bytes:
        if self._text_begun:
            return b""
        self._text_begun = True
        empty = {"type": "text", "text": ""}
        return _event("content_block_start", index=0, content_block=empty)

    def _blocks(self, reply: Completion) -> Iterator[dict[str, Any]]:
        if reply.text or self._text_begun or not reply.tool_calls:
            yield {"type": "text", "text": reply.text}
        for call in reply.tool_calls:
            given = _arguments(call.arguments)
            yield {"type": "tool_use", "id": call.id, "name": call.name, "input": given}


def error_body(status: int, message: str) -> dict[str, Any]:
    kind = {401: "authentication_error", 404: "not_found_error", 413: "request_too_large"}.get(
        status, "invalid_request_error"
    )
    return {"type": "error", "error": {"type": kind, "message": message}}


def _arguments(text: str) -> dict[str, Any]:
    """The protocol has objects only: text that is none stands in one, for the program to refuse."""
    try:
        value = orjson.loads(text or "{}")
    except orjson.JSONDecodeError:
        value = None
    return value if isinstance(value, dict) else {"arguments": text}


def _stop_reason(reply: Completion) -> str:
    return fields.finish_word(
        reply, cut="max_tokens", filtered="refusal", calls="tool_use", ended="end_turn"
    )


def _event(kind: str, **parts: Any) -> bytes:
    return fields.sse({"type": kind, **parts}, kind)
