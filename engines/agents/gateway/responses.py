"""Responses, as OpenAI's API reference describes them (November 2026); nothing is stored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from engines.agents.gateway import fields
from engines.agents.gateway.fields import Asked, BadRequest
from engines.core.types import Completion, Message, ToolCall


def parse_request(body: Mapping[str, Any]) -> Asked:
    for name in ("previous_response_id", "conversation", "background", "prompt"):
        if body.get(name):
            raise BadRequest(f'"{name}" is not offered, since nothing is stored: send all of it')
    given = body.get("input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    messages: list[Message] = []
    for item in fields.read_list(items, '"input"'):
        message = _parse_item(item)
        if message and message.tool_calls and messages and messages[-1].role == "assistant":
            before = messages.pop()  # one reply: a text, then its calls
            calls = (*before.tool_calls, *message.tool_calls)
            message = replace(before, tool_calls=calls)
        if message is not None:
            messages.append(message)
    if not messages:
        raise BadRequest('"input" must be text or a non-empty array')
    if instructions := fields.read_text(body.get("instructions"), '"instructions"'):
        messages.insert(0, Message("system", instructions))
    return Asked(
        messages=tuple(messages),
        tools=tuple(
            fields.read_tool(tool) for tool in fields.read_list(body.get("tools"), '"tools"')
        ),
        max_tokens=fields.read_limit(body, "max_output_tokens"),
        stream=bool(body.get("stream")),
        replaced=fields.replaced_fields(body),
    )


def _parse_item(item: Any) -> Message | None:
    item = fields.read_object(item, "an input item")
    match item.get("type", "message"):
        case "message":
            role = {"developer": "system"}.get(str(item.get("role")), item.get("role"))
            if role not in ("system", "user", "assistant"):
                raise BadRequest(f'"role" is {role!r}; known: system, developer, user, assistant')
            return Message(role, fields.read_text(item.get("content"), '"content"'))
        case "function_call":
            call = fields.read_call(
                item.get("call_id"), item.get("name"), item.get("arguments", "")
            )
            return Message("assistant", "", tool_calls=(call,))
        case "function_call_output":
            output = fields.read_text(item.get("output"), '"output"')
            return Message("tool", output, tool_call_id=str(item.get("call_id") or ""))
        case "reasoning":
            return None  # ours, as `GuidedTry` puts it back where the reply was kept whole
    raise BadRequest(f"an input item of the type {item.get('type')!r} is not offered")


class ResponsesReply:
    """Writes one reply. The parts of a stream are asked for in order: begin, text, end."""

    def __init__(self, asked: Asked, model: str, mark: str, created: int) -> None:
        self._mark, self._number, self._text_begun = mark, 0, False
        self._head = {
            "id": f"resp_{mark}",
            "object": "response",
            "created_at": created,
            "model": model,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [{"type": "function", "strict": False, **tool} for tool in asked.tools],
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
            "temperature": None,
            "top_p": None,
        }

    def whole(self, reply: Completion) -> dict[str, Any]:
        reason = fields.finish_word(
            reply, cut="max_output_tokens", filtered="content_filter", calls="", ended=""
        )
        details = {"incomplete_details": {"reason": reason}} if reason else {}
        output = [item for item, _ in self._items(reply)]
        usage = {
            **fields.usage_fields(reply.usage, "input_tokens", "output_tokens"),
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": reply.usage.tokens,
        }
        status = "incomplete" if reason else "completed"
        return {**self._head, "status": status, **details, "output": output, "usage": usage}

    def begin(self) -> bytes:
        now = {**self._head, "status": "in_progress", "output": [], "usage": None}
        return self._event("created", response=now) + self._event("in_progress", response=now)

    def text(self, piece: str) -> bytes:
        return self._open_text() + self._event("output_text.delta", **self._place, delta=piece)

    def end(self, reply: Completion) -> bytes:
        parts = []
        for n, (item, call) in enumerate(self._items(reply)):
            if call is None:
                part = item["content"][0]
                parts += [
                    self._open_text(),
                    self._event("output_text.done", **self._place, text=reply.text),
                    self._event("content_part.done", **self._place, part=part),
                ]
            else:
                place = {"item_id": item["id"], "output_index": n}
                empty = {**item, "arguments": "", "status": "in_progress"}
                said = {"arguments": call.arguments, "name": call.name}
                parts += [
                    self._event("output_item.added", output_index=n, item=empty),
                    self._event("function_call_arguments.delta", **place, delta=call.arguments),
                    self._event("function_call_arguments.done", **place, **said),
                ]
            parts.append(self._event("output_item.done", output_index=n, item=item))
        whole = self.whole(reply)
        return b"".join((*parts, self._event(whole["status"], response=whole)))

    def broken(self, reason: str) -> bytes:
        error = {"code": "server_error", "message": reason}
        failed = {**self._head, "status": "failed", "error": error, "output": [], "usage": None}
        return self._event("failed", response=failed)

    @property
    def _place(self) -> dict[str, Any]:
        at = {"item_id": f"msg_{self._mark}", "output_index": 0, "content_index": 0}
        return {**at, "logprobs": []}

    def _open_text(self) -> bytes:
        if self._text_begun:
            return b""
        self._text_begun = True
        item = {**self._message(""), "content": [], "status": "in_progress"}
        added = self._event("output_item.added", output_index=0, item=item)
        part = self._message("")["content"][0]
        return added + self._event("content_part.added", **self._place, part=part)

    def _items(self, reply: Completion) -> Iterator[tuple[dict[str, Any], ToolCall | None]]:
        """The items of the output, each with the call that it is."""
        if reply.text or self._text_begun or not reply.tool_calls:
            yield self._message(reply.text), None
        for n, call in enumerate(reply.tool_calls):
            item = {"id": f"fc_{self._mark}_{n}", "type": "function_call", "status": "completed"}
            yield {**item, "call_id": call.id, "name": call.name, "arguments": call.arguments}, call

    def _message(self, text: str) -> dict[str, Any]:
        content = [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}]
        item = {"id": f"msg_{self._mark}", "type": "message", "role": "assistant"}
        return {**item, "status": "completed", "content": content}

    def _event(self, kind: str, **parts: Any) -> bytes:
        number, self._number = self._number, self._number + 1
        name = f"response.{kind}"
        return fields.sse({"type": name, "sequence_number": number, **parts}, name)
