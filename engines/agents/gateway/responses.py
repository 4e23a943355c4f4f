"""Responses, as OpenAI's API reference describes them (November 2026); nothing is stored."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from engines.core import chat_protocol as fields
from engines.core.chat_protocol import Asked, BadRequest
from engines.core.chat_protocol import error_body as error_body
from engines.core.codec import JsonMapping
from engines.core.types import Completion, Message

_INCOMPLETE = {"cut": "max_output_tokens", "filtered": "content_filter"}
_UNSET = ("error", "incomplete_details", "instructions", "metadata", "temperature", "top_p")


def parse_request(body: JsonMapping) -> Asked:
    for name in ("previous_response_id", "conversation", "background", "prompt"):
        if body.get(name):
            raise BadRequest(f'"{name}" is not offered, since nothing is stored: send all of it')
    if isinstance(text := body.get("input"), str):
        body = {**body, "input": [{"role": "user", "content": text}]}
    instructions = fields.read_text(body.get("instructions"), '"instructions"')
    messages = [Message("system", instructions)] if instructions else []
    for item in fields.read_objects(body, "input"):
        for message in _parse_item(item):
            if message.tool_calls and messages and messages[-1].role == "assistant":
                before = messages.pop()  # one reply: a text, then its calls
                message = replace(before, tool_calls=(*before.tool_calls, *message.tool_calls))
            messages.append(message)
    return fields.read_request(body, messages)


def _parse_item(item: JsonMapping) -> Iterator[Message]:
    match item.get("type", "message"):
        case "message":
            role: Any = item.get("role")
            role = "system" if role == "developer" else role
            if role not in ("system", "user", "assistant"):
                raise BadRequest(f'"role" is {role!r}; known: system, developer, user, assistant')
            yield Message(role, fields.read_text(item.get("content")))
        case "function_call":
            given = item.get("arguments", "")
            call = fields.read_call(item.get("call_id"), item.get("name"), given)
            yield Message("assistant", "", tool_calls=(call,))
        case "function_call_output":
            output = fields.read_text(item.get("output"), '"output"')
            yield Message("tool", output, tool_call_id=str(item.get("call_id") or ""))
        case "reasoning":
            pass  # ours, as `GuidedTry` puts it back where the reply was kept whole
        case kind:
            raise BadRequest(f"an input item of the type {kind!r} is not offered")


class Reply:
    """Writes one reply: whole, or as a stream's `begin`, `text` and `end`."""

    def __init__(self, asked: Asked, model: str, mark: str, created: int) -> None:
        self._mark, self._number = mark, 0
        self._place = {"item_id": f"msg_{mark}", "output_index": 0, "content_index": 0}
        self._head = {
            **dict.fromkeys(_UNSET),
            **{"id": f"resp_{mark}", "object": "response", "created_at": created, "model": model},
            **{"parallel_tool_calls": True, "tool_choice": "auto"},
            "tools": [{"type": "function", "strict": False, **tool} for tool in asked.tools],
        }

    def whole(self, reply: Completion) -> dict[str, Any]:
        reason = _INCOMPLETE.get(fields.ending(reply))
        usage = {
            **fields.token_counts(reply.usage),
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": reply.usage.tokens,
        }
        status = "incomplete" if reason else "completed"
        now = {**self._head, "status": status, "output": [*self._items(reply)], "usage": usage}
        return {**now, "incomplete_details": {"reason": reason}} if reason else now

    def begin(self, has_text: bool) -> bytes:
        now = {**self._head, "status": "in_progress", "output": [], "usage": None}
        begun = self._event("created", response=now) + self._event("in_progress", response=now)
        if not has_text:
            return begun
        (item,) = self._items(Completion(""))
        part, item = item["content"][0], {**item, "content": [], "status": "in_progress"}
        begun += self._event("output_item.added", output_index=0, item=item)
        return begun + self._event("content_part.added", **self._place, part=part)

    def text(self, piece: str) -> bytes:
        return self._event("output_text.delta", **self._place, logprobs=[], delta=piece)

    def end(self, reply: Completion) -> bytes:
        said, event = b"", self._event
        for n, item in enumerate(self._items(reply)):
            if item["type"] == "message":
                said += event("output_text.done", **self._place, logprobs=[], text=reply.text)
                said += event("content_part.done", **self._place, part=item["content"][0])
            else:
                place = {"item_id": item["id"], "output_index": n}
                given = item["arguments"]
                empty = {**item, "arguments": "", "status": "in_progress"}
                said += event("output_item.added", output_index=n, item=empty)
                said += event("function_call_arguments.delta", **place, delta=given)
                named = {**place, "name": item["name"]}
                said += event("function_call_arguments.done", **named, arguments=given)
            said += event("output_item.done", output_index=n, item=item)
        whole = self.whole(reply)
        return said + event(whole["status"], response=whole)

    def broken(self, reason: str) -> bytes:
        error = {"code": "server_error", "message": reason}
        failed = {**self._head, "status": "failed", "error": error, "output": [], "usage": None}
        return self._event("failed", response=failed)

    def _items(self, reply: Completion) -> Iterator[dict[str, Any]]:
        done = {"status": "completed"}
        if reply.text or not reply.tool_calls:
            text = {"type": "output_text", "text": reply.text, "annotations": [], "logprobs": []}
            item = {"id": f"msg_{self._mark}", "type": "message", "role": "assistant"}
            yield {**item, **done, "content": [text]}
        for n, call in enumerate(reply.tool_calls):
            item = {"id": f"fc_{self._mark}_{n}", "type": "function_call", "call_id": call.id}
            yield {**item, **done, "name": call.name, "arguments": call.arguments}

    def _event(self, kind: str, **parts: Any) -> bytes:
        number, self._number = self._number, self._number + 1
        name = f"response.{kind}"
        return fields.write_event({"type": name, "sequence_number": number, **parts}, name)
