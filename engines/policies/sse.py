"""One chat-completion reply, gathered from the bytes of its body as they arrive.

Owns the wire format: server-sent events, and the plain JSON body that some servers
send even when a stream was asked for. Does no I/O and does not decide what is tried
again. Raw lines go to orjson: the client library's parsed chunks cost twenty times as
much. The library's line splitter is not used either: it also splits at U+2028 and
U+0085, which may stand unescaped in a JSON string.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from engines.core.errors import CallFailed
from engines.core.types import Completion, ToolCall, Usage

EXCERPT = 200
"""Characters of a damaged reply that are worth showing."""


class ReplyError(Exception):
    """The endpoint reported an error inside a reply that had begun with status 200."""

    def __init__(self, status: int | None, text: str) -> None:
        self.status = status
        super().__init__(text)


@dataclass(slots=True)
class _Call:
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)


class StreamedReply:
    """Gathers one reply: `feed` every chunk, `end` once, then read `completion`."""

    def __init__(self) -> None:
        self.done = False  # the closing [DONE] has come
        self.finish = ""
        self.usage: Usage | None = None  # None: the endpoint did not count
        self._rest = b""
        self._plain: list[bytes] = []
        self._began = False
        self._chosen = False
        self._model = ""
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, _Call] = {}

    @property
    def whole(self) -> bool:
        """True once the endpoint has said that nothing more of the reply will come."""
        return self.done or bool(self.finish)

    def feed(self, chunk: bytes) -> str:
        """Take bytes as they came; returns the visible text that is new in them.

        Raises:
            CallFailed: kind "shape", what came is not a chat completion.
            ReplyError: the endpoint reported an error in the middle of the stream.
        """
        lines = (self._rest + chunk).split(b"\n")
        self._rest = lines.pop()
        return "".join([self._line(line) for line in lines])

    def end(self) -> str:
        """The body is over. Returns the text of a body that was not streamed, else "".

        Raises:
            CallFailed: kind "cut" when the reply stops before its end, "shape" when
                it is whole and holds no reply.
            ReplyError: the body is an error report.
        """
        text = ""
        if self._began:
            # A last line without its newline counts only when it is whole.
            if self._rest and not self.whole:
                try:
                    text = self._line(self._rest)
                except CallFailed:
                    text = ""
        else:
            body = b"\n".join([*self._plain, self._rest]).strip()
            if body:
                text = self._take(body)
                self.done = True
        self._rest = b""
        if not self.whole:
            raise CallFailed("cut", "the reply stopped in the middle")
        if not self._chosen:
            raise CallFailed("shape", "the reply holds no choice")
        return text

    def completion(self, asked: str) -> Completion:
        """What has been gathered; `asked` is the model's name where none was sent."""
        calls = tuple(
            ToolCall(call.id or f"call_{number}", call.name, "".join(call.arguments))
            for number, call in enumerate(self._calls.values())
        )
        return Completion(
            text="".join(self._text),
            reasoning="".join(self._reasoning),
            tool_calls=calls,
            finish=self.finish or ("tool_calls" if calls else "stop"),
            usage=self.usage or Usage(calls=1),
            model=self._model or asked,
        )

    def _line(self, line: bytes) -> str:
        line = line.rstrip(b"\r")
        if line.startswith(b"data:"):
            self._began = True
            data = line[5:].strip()
            if data == b"[DONE]":
                self.done = True
                return ""
            return self._take(data) if data else ""
        if line and not line.startswith((b":", b"event:", b"id:", b"retry:")):
            self._plain.append(line)
        return ""

    def _take(self, data: bytes) -> str:
        try:
            chunk = orjson.loads(data)
        except orjson.JSONDecodeError:
            raise _shape("what came is no JSON", data) from None
        if not isinstance(chunk, dict):
            raise _shape("what came is no JSON object", data)
        if chunk.get("error"):
            raise _reported(chunk["error"])
        if isinstance(usage := chunk.get("usage"), dict):
            self.usage = Usage(
                _count(usage, "prompt_tokens"), _count(usage, "completion_tokens"), 1
            )
        if isinstance(model := chunk.get("model"), str) and model:
            self._model = model
        choices = chunk.get("choices") or ()
        if not isinstance(choices, list | tuple) or not all(isinstance(c, dict) for c in choices):
            raise _shape('"choices" is no list of objects', data)
        # Only one reply is ever asked for; some endpoints send empty lists in between.
        return self._choice(choices[0], data) if choices else ""

    def _choice(self, choice: Mapping[str, Any], data: bytes) -> str:
        self._chosen = True
        if isinstance(finish := choice.get("finish_reason"), str) and finish:
            self.finish = finish
        part = choice.get("delta") or choice.get("message") or {}
        if not isinstance(part, dict):
            raise _shape('"delta" is no object', data)
        for name in ("reasoning_content", "reasoning"):
            if isinstance(thought := part.get(name), str) and thought:
                self._reasoning.append(thought)
                break  # endpoints in transition send both with equal text
        for position, call in enumerate(part.get("tool_calls") or ()):
            self._tool_call(call, position, data)
        text = _plain_text(part.get("content"), data)
        if text:
            self._text.append(text)
        return text

    def _tool_call(self, call: object, position: int, data: bytes) -> None:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(call, dict) or not isinstance(function, dict):
            raise _shape("a tool call is no function call", data)
        number = call.get("index")
        slot = number if isinstance(number, int) else position
        name, made = str(call.get("id") or ""), self._calls.get(slot)
        if made and name and made.id and made.id != name:
            # Some endpoints give every call the index 0; a new id is a new call.
            slot = max(self._calls) + 1
        made = self._calls.setdefault(slot, _Call())
        made.id = made.id or name
        made.name = made.name or str(function.get("name") or "")
        arguments = function.get("arguments") or ""
        made.arguments.append(
            arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()
        )


def _plain_text(content: object, data: bytes) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):  # parts, as some multimodal endpoints send them
        return "".join(
            part["text"]
            for part in content
            if isinstance(part, dict) and isinstance(part.get("text"), str)
        )
    raise _shape('"content" is no text', data)


def _count(usage: Mapping[str, Any], name: str) -> int:
    value = usage.get(name)
    return value if isinstance(value, int) else 0


def _reported(error: object) -> ReplyError:
    if not isinstance(error, dict):
        return ReplyError(None, str(error))
    code = str(error.get("code"))
    text = str(error.get("message") or orjson.dumps(error).decode())
    return ReplyError(int(code) if code.isdigit() else None, text)


def _shape(cause: str, data: bytes) -> CallFailed:
    return CallFailed("shape", f"{cause}: {data[:EXCERPT].decode(errors='replace')!r}")
