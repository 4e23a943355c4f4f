"""Replies, tool calls and results as people read them, from what a trajectory holds of them."""

import re
from collections.abc import Iterator, Sequence
from typing import get_args

import orjson

from engines.core.codec import fix_surrogates
from engines.core.frozen import frozen
from engines.core.text.reply import spoken_lines
from engines.core.types import Message, ToolCall, ToolResult, ToolStatus

STATUSES: tuple[ToolStatus, ...] = get_args(ToolStatus)
_FAILED = re.compile(rf"({'|'.join(name for name in STATUSES if name != 'ok')}): ?")


def split_status(text: str) -> tuple[ToolStatus, str]:
    """How a call ended, and the rest: what a model is told of a failed one begins with it."""
    if (found := _FAILED.match(text)) is None:
        return "ok", text
    return next(name for name in STATUSES if name == found[1]), text[found.end() :]


def model_text(status: ToolStatus, text: str) -> str:
    """A result as a model is told it: of a failed call with its status before it."""
    return text if status in ("ok", split_status(text)[0]) else f"{status}: {text}"


def argument_text(arguments: str) -> str:
    """The arguments of a call: the text of a single one, such as code, else compact JSON.

    Where one of several has many lines, each stands on lines of its own.
    """
    try:
        values = orjson.loads(arguments)
    except ValueError:
        return arguments  # a model may write anything
    if not isinstance(values, dict):
        return orjson.dumps(values).decode()
    texts = [one for one in values.values() if isinstance(one, str)]
    if len(values) == len(texts) == 1:
        return texts[0]
    if not any("\n" in text for text in texts):
        return orjson.dumps(values).decode()
    shown = {k: v if isinstance(v, str) else orjson.dumps(v).decode() for k, v in values.items()}
    return "\n".join(f"{k}:\n{v}" if "\n" in v else f"{k}: {v}" for k, v in shown.items())


def call_text(name: str, arguments: str) -> str:
    """`python print(6 * 7)`; several lines begin below the name."""
    said = argument_text(arguments).strip("\n")
    return f"{name}\n{said}" if "\n" in said else f"{name} {said}".rstrip()


def said_text(message: Message) -> str:
    """What a message says; of a team's member its fields a line each, and no command twice."""
    if not message.speaker:
        return message.content
    return "" if message.tool_calls else "\n".join(spoken_lines(message.content))


def count_acts(messages: Sequence[Message]) -> tuple[int, int, int]:
    """Replies, tool calls, and calls that failed."""
    said = [message for message in messages if message.role == "assistant"]
    results = (message for message in messages if message.role == "tool")
    failed = sum(split_status(message.content)[0] != "ok" for message in results)
    return len(said), sum(len(message.tool_calls) for message in said), failed


def transcript_text(messages: Sequence[Message]) -> str:
    """The replies of a try with the tools they called, as its text streamed."""
    calls = {call.id: call for message in messages for call in message.tool_calls}
    parts: list[str] = []
    for message in messages:
        if message.role == "assistant":
            if said := said_text(message):
                lead = "\n" if parts and not parts[-1].endswith(MARK_END) else ""
                name = f"[{message.speaker}] " if message.speaker else ""
                parts.append(lead + name + clean_text(said))
            parts += [call_mark(call) for call in message.tool_calls]
        elif message.role == "tool":
            call_id = message.tool_call_id or ""
            call = calls.get(call_id) or ToolCall(call_id, "tool", "")
            status = split_status(message.content)[0]
            parts.append(result_mark(call, ToolResult(message.content, status)))
    return "".join(parts)


_OPEN, _CLOSE = "\x1e", "\x1f"
MARK, MARK_END = _OPEN, _CLOSE
"""With which each mark begins and ends: a text without them holds none."""
_MARK = re.compile(f"{_OPEN}([^{_OPEN}{_CLOSE}]*){_CLOSE}")
_CONTROLS = str.maketrans("", "", _OPEN + _CLOSE)


@frozen
class CallMark:
    """A tool was called."""

    id: str
    name: str
    arguments: str


@frozen
class ResultMark:
    """The tool's answer to the call of this id."""

    id: str
    name: str
    status: ToolStatus
    text: str


def clean_text(text: str) -> str:
    """Text of a model or a tool without the characters that only marks may hold."""
    return text.translate(_CONTROLS)


def call_mark(call: ToolCall) -> str:
    return _mark(["call", call.id, call.name, call.arguments])


def result_mark(call: ToolCall, result: ToolResult) -> str:
    return _mark(["result", call.id, call.name, result.status, result.text])


def split_marks(text: str) -> Iterator[str | CallMark | ResultMark]:
    """Text and marks in their order; a mark whose end has not come yet is left out."""
    end = 0
    for found in _MARK.finditer(text):
        if found.start() > end:
            yield text[end : found.start()]
        end = found.end()
        kind, *fields = orjson.loads(found[1])
        yield CallMark(*fields) if kind == "call" else ResultMark(*fields)
    if rest := text[end:].partition(_OPEN)[0]:
        yield rest


def last_chars(text: str, most: int) -> str:
    """The end of a text; where a mark was cut in two, what comes after it."""
    end = text[-most:]
    before, close, after = end.partition(_CLOSE)
    return after if close and _OPEN not in before else end


def unfinished_mark(text: str) -> str:
    """The beginning of a mark whose end has not come yet, "" where there is none."""
    at = text.rfind(_OPEN)
    return text[at:] if at >= 0 and text.find(_CLOSE, at) < 0 else ""


def _mark(fields: list[str]) -> str:
    # JSON writes control characters as escapes, so none of a model's can end the mark.
    return f"{_OPEN}{orjson.dumps([fix_surrogates(field) for field in fields]).decode()}{_CLOSE}"
