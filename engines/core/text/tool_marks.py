"""Tool calls and results inside the text of a try, as it streams.

A try is shown as one text. Calls and results stand in it between control characters that no
model's text holds: `clean_text` takes them out of what models and tools say.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import orjson

from engines.core.codec import fix_surrogates
from engines.core.tools import ToolResult, ToolStatus
from engines.core.types import ToolCall

_OPEN, _CLOSE = "\x1e", "\x1f"
MARK, MARK_END = _OPEN, _CLOSE
"""With which each mark begins and ends: a text without them holds none."""
_MARK = re.compile(f"{_OPEN}([^{_OPEN}{_CLOSE}]*){_CLOSE}")
_CONTROLS = str.maketrans("", "", _OPEN + _CLOSE)


@dataclass(frozen=True, slots=True)
class CallMark:
    """A tool was called."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
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


def said_length(text: str) -> int:
    """Characters of it that the model wrote: results of tools, and marks as such, are not."""
    if _OPEN not in text:
        return len(text)
    said = (p if isinstance(p, str) else getattr(p, "arguments", "") for p in split_marks(text))
    return sum(map(len, said))


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
