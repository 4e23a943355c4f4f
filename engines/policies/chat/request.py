"""The body of a chat-completions request, and whether the model it names is the one that answered.

Also knows which of its own fields some endpoints refuse, and what to send instead.
"""

import base64
import mimetypes
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engines.core.errors import CallFailed
from engines.core.types import Completion, Message, Sampling, meaning_of

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

    def learn(self, body: Mapping[str, Any], refusal: str) -> bool:
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
) -> dict[str, Any]:
    """The body; `max_tokens` is the limit where `sampling` sets none."""
    limit = sampling.max_tokens if sampling.max_tokens is not None else max_tokens
    body: dict[str, Any] = {
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


def function_tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]] | None:
    """Tools as the protocol has them; None where there are none."""
    return [
        dict(tool) if "function" in tool else {"type": "function", "function": dict(tool)}
        for tool in tools
    ] or None


def message_fields(message: Message, parse_arguments: Callable[[str], Any] = str) -> dict[str, Any]:
    """A message of text as the protocol has it; templates want the arguments of calls parsed."""
    fields: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        functions = (
            (call.id, {"name": call.name, "arguments": parse_arguments(call.arguments)})
            for call in message.tool_calls
        )
        fields["tool_calls"] = [
            {"id": id, "type": "function", "function": function} for id, function in functions
        ]
    if message.tool_call_id:
        fields["tool_call_id"] = message.tool_call_id
    return fields


def _message_body(message: Message) -> dict[str, Any]:
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


# 2024-07-18, 20241022, 09-2025, 05-20, 0613, 001: of a release, which an alias leaves open.
_RELEASE = re.compile(r"(?<![\w.])(\d{4}-?\d{2}-?\d{2}|\d{2}-\d{4}|\d{2}-\d{2}|\d{3,4})(?![\w.])")
_FORM = re.compile(r"\.gguf$|[-_.](q\d\w*|f16|bf16|fp16|fp8|int8|int4|awq|gptq|gguf)(?=$|[-_.])")
_ANY_RELEASE = {"latest", "preview", "exp", "beta"}
_ROUTES = {"free", "online", "nitro", "floor", "extended"}  # tags of OpenRouter


def is_other_model(asked: str, answered: str) -> bool:
    """True where the names cannot mean one model.

    A dated release of the name, `org/Name` for `Name`, a route (`:free`), a form of the weights
    (`-FP8`, `.gguf`) and another case are the same model. A name without letters says nothing.
    """
    wanted, found = _words(asked), _words(answered)
    if not wanted or not found:
        return False
    if wanted & _ANY_RELEASE:  # gemini-flash-latest may be gemini-2.5-flash
        found = {word for word in found if word in wanted or not word[0].isdigit()}
    return wanted - _ANY_RELEASE != found - _ANY_RELEASE


def _words(name: str) -> set[str]:
    """What a model's name is made of, without owner, tag, date and form of the weights."""
    bare = name.strip().lower().rstrip("/").rpartition("/")[2]
    bare = re.sub("[:@ ]", "-", _FORM.sub("", _FORM.sub("", bare)))
    words = set(re.split("[-_]+", _RELEASE.sub("", bare))) - _ROUTES - {""}
    return words if re.search("[a-z]", bare) else set()
