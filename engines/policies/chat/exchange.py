"""One exchange of chat completions: the body of the request, and its reply, read as it arrives.

Owns the wire format of the reply: server-sent events, and the plain JSON body that some servers
send even when a stream was asked for. Also knows which fields some endpoints refuse, what to send
instead, and whether the model that was asked for is the one that answered.
"""

import base64
import mimetypes
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any, TypeGuard

import orjson

from engines.core.codec import JsonMapping, JsonObject
from engines.core.errors import CallFailed
from engines.core.text.tokens import text_tokens
from engines.core.types import Completion, Message, Sampling, ToolCall, Usage, meaning_of
from engines.policies.chat.endpoint import (
    BODY_BYTES,
    LINE_BYTES,
    TEXT_CHARS,
    TEXT_LINES,
    TOOL_CALLS,
    too_long_failure,
)

REMARKS = 8
"""At most, of one endpoint: a router may answer with a hundred models."""
DISPENSABLE = ("stream_options", "seed", "response_format")
"""Fields a reply is complete without: usage stays unknown, sampling is not repeatable, and the form
of a reply is asked for in its prompt alone."""
_NO_JSON = re.compile(r"json[ _](mode|object|validate)|generate json", re.IGNORECASE)
"""Refusals of JSON mode that do not name its field, one of them of a reply that broke it (Groq)."""


@dataclass(slots=True)
class Dialect:
    """What an endpoint turned out not to understand; grows while it is spoken to."""

    without: set[str] = field(default_factory=set)  # fields left out, of those in DISPENSABLE
    new_limit_name: bool = False  # wants max_completion_tokens for max_tokens
    remarks: set[str] = field(default_factory=set)  # on what replies said of themselves
    uncounted: int = 0  # replies whose tokens it did not count

    @property
    def notes(self) -> tuple[str, ...]:
        """The differences in words, for whoever tells the person about them."""
        renamed = ("max_tokens is sent as max_completion_tokens",) if self.new_limit_name else ()
        left_out = (f"{name} is not sent" for name in sorted(self.without))
        return (*left_out, *renamed, *sorted(self.remarks))

    def note_reply(self, asked: str, reply: Completion) -> None:
        """Remember what a person should know of a reply that is taken all the same."""
        if len(self.remarks) >= REMARKS:
            return
        if is_other_model(asked, reply.model):
            self.remarks.add(f"replies come from the model {reply.model!r}, not from {asked!r}")
        if meaning_of(reply.finish) == "unknown":
            known = f"replies end with {reply.finish!r}, which is unknown here: taken as whole"
            self.remarks.add(known)

    def learn(self, body: JsonMapping, refusal: str) -> bool:
        """Whether a body that was refused in these words can be sent in another form.

        Also where another call has learned it meanwhile.
        """
        if "max_tokens" in body and "max_completion_tokens" in refusal:
            self.new_limit_name = True
            return True
        refused = {n for n in DISPENSABLE if n in body and re.search(rf"\b{n}\b", refusal)}
        if "response_format" in body and _NO_JSON.search(refusal):
            refused.add("response_format")
        self.without |= refused
        return bool(refused)


def chat_request(
    model: str,
    messages: Sequence[Message],
    sampling: Sampling,
    max_tokens: int | None,
    dialect: Dialect,
) -> JsonObject:
    """The body; `max_tokens` is the limit where `sampling` sets none."""
    limit = sampling.max_tokens if sampling.max_tokens is not None else max_tokens
    body: JsonObject = {
        "model": model,
        "messages": [_message_body(message) for message in messages],
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_completion_tokens" if dialect.new_limit_name else "max_tokens": limit,
        "stop": list(sampling.stop) or None,
        "seed": sampling.seed,
        "response_format": {"type": "json_object"} if sampling.json_object else None,
        "tools": function_tools(sampling.tools),
    }
    left_out = dialect.without
    return {n: value for n, value in body.items() if value is not None and n not in left_out}


def function_tools(tools: Sequence[JsonMapping]) -> list[JsonObject] | None:
    """Tools as the protocol has them; None where there are none."""
    return [
        dict(tool) if "function" in tool else {"type": "function", "function": dict(tool)}
        for tool in tools
    ] or None


def message_fields(message: Message, parse_arguments: Callable[[str], Any] = str) -> JsonObject:
    """A message of text as the protocol has it; templates want the arguments of calls parsed."""
    fields: JsonObject = {"role": message.role, "content": message.content}
    if message.tool_calls:
        fields["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": parse_arguments(call.arguments)},
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id:
        fields["tool_call_id"] = message.tool_call_id
    return fields


def _message_body(message: Message) -> JsonObject:
    # Reasoning is not sent back: several hosted services refuse it in a request.
    body = message_fields(message)
    if message.images:
        shown = ({"url": _image_address(image)} for image in message.images)
        parts = [{"type": "image_url", "image_url": address} for address in shown]
        body["content"] = [{"type": "text", "text": message.content}, *parts]
    if message.tool_calls:
        body["content"] = message.content or None
    return body


def _image_address(image: str) -> str:
    """An address as it is; the content of a file as a `data:` one."""
    if not image.startswith("/"):
        return image
    try:
        content = Path(image).read_bytes()
    except OSError as error:
        text = f"the image {image} cannot be read ({error.strerror or error})"
        raise CallFailed("image", text) from None
    kind = mimetypes.guess_type(image)[0] or "application/octet-stream"
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


# Of a release (2024-07-18, 09-2025, 05-20, 0613), of a form of the weights, or of a route.
_VARIANT = re.compile(
    r"\.gguf$|[-_.:@](\d{4}-?\d{2}-?\d{2}|\d{2}-\d{4}|\d{2}-\d{2}|\d{3,4}"
    r"|q\d\w*|f16|bf16|fp16|fp8|int8|int4|awq|gptq|latest|preview|exp|beta|free)(?=$|[-_.:@])"
)


def is_other_model(asked: str, answered: str) -> bool:
    """True where the names cannot mean one model.

    A dated release of the name, `org/Name` for `Name`, a route (`:free`), a form of the weights
    (`-FP8`, `.gguf`) and another case are the same model. A name without letters says nothing, and
    `latest` may be any release.
    """
    names = []
    for name in (asked, answered):
        bare = name.strip().lower().rpartition("/")[2]
        if not re.search("[a-z]", bare):
            return False
        names.append(_VARIANT.sub("", bare))
    return names[0] != names[1] and "latest" not in asked


EXCERPT_BYTES = 200
"""Characters of a damaged reply that are worth showing."""
MOST_TOKENS = 10**9
"""Of one call. More is no count: a thousand times what any model takes."""
NAME_CHARS = 200
"""Of a model's name or a finish reason; the rest of a longer one is dropped."""

_STATUS = re.compile(r"[1-5][0-9]{2}")


class ReplyError(Exception):
    """The endpoint reported an error inside a reply that had begun with status 200."""

    def __init__(self, text: str, status: int | None = None) -> None:
        self.status = status
        super().__init__(text)


@dataclass(slots=True)
class _PartialToolCall:
    id: str = ""
    name: str = ""
    arguments: StringIO = field(default_factory=StringIO)


class StreamedReply:
    """Gathers one reply: `feed` every chunk, `end` once, then read `completion`."""

    def __init__(self) -> None:
        self.done = False  # the closing [DONE] has come
        self.finish = ""
        self.usage: Usage | None = None  # None: the endpoint did not count
        self._size = 0  # of the body, in bytes
        self._chars = 0  # of all that is kept of it
        self._lines = 0
        self._line = bytearray()  # the beginning of a line that has no end yet
        self._plain = bytearray()
        self._began = False
        self._chosen = False
        self._number: object = 0  # of the choice that is read
        self._model = ""
        # Buffers, not lists: a million pieces of one character would take 60 bytes each.
        self._text = StringIO()
        self._reasoning = StringIO()
        self._calls: dict[int, _PartialToolCall] = {}

    @property
    def is_complete(self) -> bool:
        """True once the endpoint has said that nothing more of the reply will come."""
        return self.done or bool(self.finish)

    def feed(self, chunk: bytes) -> str:
        """Take bytes as they came; returns the visible text that is new in them.

        Raises CallFailed of kind "shape", what came is not a chat completion, or "too long", it
        passes a limit; ReplyError: the endpoint reported an error in the middle of the stream.
        """
        self._size += len(chunk)
        if self._size > BODY_BYTES:
            raise too_long_failure(f"{BODY_BYTES:,} bytes")
        self._line += chunk
        lines: list[bytearray] = []
        if b"\n" in chunk:
            *lines, self._line = self._line.split(b"\n")
        text = "".join([self._read_line(bytes(line)) for line in lines])
        if len(self._line) + len(self._plain) > LINE_BYTES:
            raise too_long_failure(f"{LINE_BYTES:,} bytes in one piece")
        return text

    def end(self) -> str:
        """The body is over. Returns the text of a body that was not streamed, else "".

        Raises as `feed`, and CallFailed of kind "cut" when the reply stops before its end.
        """
        text = ""
        rest = bytes(self._line)
        if self._began or rest.startswith(b"data:"):
            # A last line without its newline counts only when it is whole.
            if rest and not self.is_complete:
                try:
                    text = self._read_line(rest)
                except CallFailed as failed:
                    if failed.kind == "too long":
                        raise
        elif body := bytes(self._plain + rest).strip():
            text = self._read_event(body)
            self.done = True
        if not self.is_complete:
            raise CallFailed("cut", "the reply stopped in the middle")
        if not self._chosen:
            raise CallFailed("shape", "the reply holds no choice")
        return text

    def completion(self, asked: str) -> Completion:
        """What has been gathered; `asked` is the model's name where none was sent."""
        calls = tuple(
            ToolCall(call.id or f"call_{number}", call.name, call.arguments.getvalue())
            for number, call in enumerate(self._calls.values())
        )
        return Completion(
            text=self._text.getvalue(),
            reasoning=self._reasoning.getvalue(),
            tool_calls=calls,
            finish=self.finish or ("tool_calls" if calls else "stop"),
            usage=self.usage or Usage(calls=1),
            model=self._model or asked,
        )

    @property
    def spent_tokens(self) -> int:
        """What has come so far, counted by the endpoint or else estimated."""
        if self.usage is not None and self.usage.completion_tokens:
            return self.usage.completion_tokens
        buffers = (self._text, self._reasoning, *(call.arguments for call in self._calls.values()))
        return sum(text_tokens(buffer.getvalue()) for buffer in buffers)

    @property
    def has_begun(self) -> bool:
        """True once the endpoint has sent something of a reply, or counted tokens for it."""
        return self._chosen or self.usage is not None

    def _read_line(self, line: bytes) -> str:
        line = line.rstrip(b"\r")
        if line.startswith(b"data:"):
            self._began = True
            data = line[5:].strip()
            if data == b"[DONE]":
                self.done = True
                return ""
            return self._read_event(data) if data else ""
        ours = line.startswith((b":", b"event:", b"id:", b"retry:"))
        if line and not ours and not self._began:
            self._plain += line + b"\n"
        return ""

    def _read_event(self, data: bytes) -> str:
        try:
            chunk = orjson.loads(data)
        except orjson.JSONDecodeError:
            raise _shape_failure("what came is no JSON", data) from None
        if not isinstance(chunk, dict):
            raise _shape_failure("what came is no JSON object", data)
        if chunk.get("error"):
            raise _parse_error(chunk["error"])
        if chunk.get("object") == "error":  # of older vLLM and SGLang
            raise _parse_error(chunk)
        if isinstance(usage := chunk.get("usage"), dict):
            self.usage = _parse_usage(usage) or self.usage
        if isinstance(model := chunk.get("model"), str) and model:
            self._model = model[:NAME_CHARS]
        choices = chunk.get("choices") or ()
        if not isinstance(choices, list | tuple) or not all(isinstance(c, dict) for c in choices):
            raise _shape_failure('"choices" is no list of objects', data)
        if not choices:  # some endpoints send empty lists in between
            return ""
        number = choices[0].get("index") or 0
        if len(choices) > 1 or (self._chosen and number != self._number):
            # Their texts come by turns, and would be read as one; `extra_body` may ask for them.
            raise _shape_failure("it holds several replies (n > 1), and one is asked for", data)
        self._number = number
        return self._read_choice(choices[0], data)

    def _read_choice(self, choice: JsonMapping, data: bytes) -> str:
        self._chosen = True
        if choice.get("error"):  # of OpenRouter, whose stream goes on with status 200
            raise _parse_error(choice["error"])
        finish = choice.get("finish_reason")
        if isinstance(finish, str) and finish.lower() not in ("", "null"):
            # A `stop` that follows a `length` does not take it back.
            is_open = meaning_of(self.finish) in ("ended", "unknown")
            self.finish = finish[:NAME_CHARS] if is_open else self.finish
        part = choice.get("delta") or choice.get("message") or {}
        if not isinstance(part, dict):
            raise _shape_failure('"delta" is no object', data)
        # Endpoints in transition send both with equal text.
        thought = part.get("reasoning_content") or part.get("reasoning")
        if isinstance(thought, str):
            self._append_text(self._reasoning, thought)
        asked = part.get("tool_calls") or ()
        if not isinstance(asked, list | tuple):
            raise _shape_failure('"tool_calls" is no list', data)
        for position, call in enumerate(asked):
            self._read_tool_call(call, position, data)
        text = _plain_text(part.get("content"), data)
        if text:
            self._append_text(self._text, text)
        return text

    def _append_text(self, where: StringIO, text: str) -> None:
        where.write(text)
        self._chars += len(text)
        self._lines += text.count("\n") + text.count("\r")
        if self._chars > TEXT_CHARS:
            raise too_long_failure(f"{TEXT_CHARS:,} characters")
        if self._lines > TEXT_LINES:
            raise too_long_failure(f"{TEXT_LINES:,} lines")

    def _read_tool_call(self, call: object, position: int, data: bytes) -> None:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(call, dict) or not isinstance(function, dict):
            raise _shape_failure("a tool call is no function call", data)
        number = call.get("index")
        slot = number if isinstance(number, int) else position
        name, made = str(call.get("id") or "")[:NAME_CHARS], self._calls.get(slot)
        if made and name and made.id and made.id != name:
            # Some endpoints give every call the index 0; a new id is a new call.
            slot = max(self._calls) + 1
        if slot not in self._calls and len(self._calls) >= TOOL_CALLS:
            raise too_long_failure(f"{TOOL_CALLS} tool calls")
        made = self._calls.setdefault(slot, _PartialToolCall())
        made.id = made.id or name
        made.name = made.name or str(function.get("name") or "")[:NAME_CHARS]
        self._append_text(made.arguments, _arguments_text(function.get("arguments") or "", data))


def _plain_text(content: object, data: bytes) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):  # parts, as some multimodal endpoints send them
        texts = [part.get("text") for part in content if isinstance(part, dict)]
        return "".join(text for text in texts if isinstance(text, str))
    raise _shape_failure('"content" is no text', data)


def _arguments_text(arguments: object, data: bytes) -> str:
    try:
        return arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()
    except orjson.JSONEncodeError:  # nested deeper than it writes, though it reads that
        raise _shape_failure(
            "the arguments of a tool call cannot be written as JSON", data
        ) from None


def _parse_usage(usage: JsonMapping) -> Usage | None:
    """What the endpoint counted; None where one of its numbers cannot be a count."""
    asked, said = usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0
    if not is_token_count(asked) or not is_token_count(said):
        return None
    # OpenAI and vLLM; DeepSeek; what passes Anthropic's own fields on.
    details = usage.get("prompt_tokens_details")
    counts = (
        details.get("cached_tokens") if isinstance(details, dict) else None,
        usage.get("prompt_cache_hit_tokens"),
        usage.get("cache_read_input_tokens"),
    )
    cached = next((count for count in counts if is_token_count(count)), 0)
    return Usage(asked, said, 1, cached_tokens=min(cached, asked))


def is_token_count(count: object) -> TypeGuard[int]:
    """Whether a number that an endpoint gives can be one of tokens."""
    return isinstance(count, int) and not isinstance(count, bool) and 0 <= count <= MOST_TOKENS


def _parse_error(error: object) -> ReplyError:
    if not isinstance(error, dict):
        return ReplyError(str(error))
    code = str(error.get("code"))
    text = str(error.get("message") or error)
    return ReplyError(text, int(code) if _STATUS.fullmatch(code) else None)


def _shape_failure(cause: str, data: bytes) -> CallFailed:
    return CallFailed("shape", f"{cause}: {data[:EXCERPT_BYTES].decode(errors='replace')!r}")
