"""Messages, as Anthropic's API reference describes them (November 2026)."""

from collections.abc import Iterator
from typing import Any

import orjson

from engines.core import chat_protocol as fields
from engines.core.chat_protocol import Asked, BadRequest
from engines.core.codec import JsonMapping, JsonObject
from engines.core.types import Completion, Message

_STOP = {"cut": "max_tokens", "filtered": "refusal", "calls": "tool_use", "ended": "end_turn"}


def parse_request(body: JsonMapping) -> Asked:
    system = fields.read_text(body.get("system"), '"system"')
    messages = [Message("system", system)] if system else []
    for message in fields.read_objects(body, "messages"):
        messages += _parse_message(message)
    return fields.read_request(body, messages)


def _parse_message(message: JsonMapping) -> Iterator[Message]:
    """The messages that one of theirs is: each result of a tool is one, then what was said."""
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant"):
        raise BadRequest(f'"role" is {role!r}; known: user, assistant')
    if isinstance(content, str):
        yield Message(role, content)
        return
    said, calls = [], []
    for block in fields.read_list(content, '"content"'):
        match fields.read_object(block, "a content block").get("type"):
            case "tool_result":
                text = fields.read_text(block.get("content"))
                yield Message("tool", text, tool_call_id=str(block.get("tool_use_id") or ""))
            case "tool_use":
                given = block.get("input", {})
                calls.append(fields.read_call(block.get("id"), block.get("name"), given))
            case "thinking" | "redacted_thinking":
                pass  # ours, as `GuidedTry` puts it back where the reply was kept whole
            case _:
                said.append(block)
    if said or calls:
        yield Message(role, fields.read_text(said), tool_calls=tuple(calls))


class Reply:
    """Writes one reply: whole, or as a stream's `begin`, `text` and `end`."""

    def __init__(self, asked: Asked, model: str, mark: str, created: int) -> None:
        self._head = {"id": f"msg_{mark}", "type": "message", "role": "assistant", "model": model}

    def whole(self, reply: Completion) -> JsonObject:
        usage = fields.token_counts(reply.usage)
        return {**self._head, "content": [*_blocks(reply)], **_stop(reply), "usage": usage}

    def begin(self, has_text: bool) -> bytes:
        empty = {**self.whole(Completion("")), "content": [], "stop_reason": None}
        text = {"type": "text", "text": ""}
        block = _event("content_block_start", index=0, content_block=text) if has_text else b""
        return _event("message_start", message=empty) + block

    def text(self, piece: str) -> bytes:
        delta = {"type": "text_delta", "text": piece}
        return _event("content_block_delta", index=0, delta=delta)

    def end(self, reply: Completion) -> bytes:
        said = b""
        for n, block in enumerate(_blocks(reply)):
            if block["type"] == "tool_use":
                given = orjson.dumps(block["input"]).decode()
                delta = {"type": "input_json_delta", "partial_json": given}
                said += _event("content_block_start", index=n, content_block={**block, "input": {}})
                said += _event("content_block_delta", index=n, delta=delta)
            said += _event("content_block_stop", index=n)
        usage = fields.token_counts(reply.usage)
        return (
            said + _event("message_delta", delta=_stop(reply), usage=usage) + _event("message_stop")
        )

    def broken(self, reason: str) -> bytes:
        return fields.write_event(error_body(400, reason), "error")


def error_body(status: int, message: str) -> JsonObject:
    return {"type": "error", "error": {"type": fields.error_kind(status), "message": message}}


def _blocks(reply: Completion) -> Iterator[JsonObject]:
    if reply.text or not reply.tool_calls:
        yield {"type": "text", "text": reply.text}
    for call in reply.tool_calls:
        given = fields.arguments_object(call.arguments)
        yield {"type": "tool_use", "id": call.id, "name": call.name, "input": given}


def _stop(reply: Completion) -> JsonObject:
    return {"stop_reason": _STOP[fields.ending(reply)], "stop_sequence": None}


def _event(kind: str, **parts: Any) -> bytes:
    return fields.write_event({"type": kind, **parts}, kind)
