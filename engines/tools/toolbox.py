"""The tools of one agent, and what a call of one comes to, whatever a model made of it."""

import asyncio
import json
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from math import isfinite
from typing import Any

from engines.core.codec import fix_surrogates
from engines.core.errors import (
    CallFailed,
    ConfigError,
    StudioError,
    ToolError,
    lost_usage,
    suggest_name,
)
from engines.core.protocols import Tool, ToolTry
from engines.core.text.sanitize import one_line
from engines.core.text.tool_text import clean_text
from engines.core.types import (
    NO_OUTPUT,
    NO_USAGE,
    SHOWN_CHARS,
    ToolCall,
    ToolResult,
    ToolSpec,
    Usage,
)
from engines.core.user_code import error_text
from engines.tools.arguments import ArgumentsRefused, read_arguments
from engines.tools.mcp import McpServer


@dataclass(frozen=True, slots=True)
class Entry:
    """A tool or a server of several, with its limit of time and what messages call it."""

    tool: Tool | McpServer
    title: str
    timeout_s: float


class CheckedToolbox:
    """Calls tools by their names. Those of a server are known once `check` has returned."""

    def __init__(self, entries: Sequence[Entry], absent: Sequence[str] = ()) -> None:
        """ConfigError where two tools have one name; `absent` says what is left out, and why."""
        self._entries, self.absent = entries, tuple(absent)
        self._tools: dict[str, tuple[Tool, Entry]] = {}
        for entry in entries:
            if not isinstance(entry.tool, McpServer):
                self._add(entry.tool, entry)

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        return tuple(tool.spec for tool, _ in self._tools.values())

    async def check(self) -> None:
        for entry in self._entries:
            if isinstance(entry.tool, McpServer):
                for tool in await entry.tool.open():
                    self._add(tool, entry)
            else:
                await entry.tool.check()

    async def call(self, call: ToolCall, within: ToolTry) -> ToolResult:
        result = await self._call(call, within)
        known = self._tools.get(call.name)
        limit = known[0].spec.shown_chars if known else SHOWN_CHARS
        return replace(result, text=shorten_result(result.text, limit) or NO_OUTPUT)

    async def aclose(self) -> None:
        async with AsyncExitStack() as stack:  # all of them, also where one fails
            for entry in self._entries:
                stack.push_async_callback(entry.tool.aclose)

    def _add(self, tool: Tool, entry: Entry) -> None:
        first, other = self._tools.setdefault(tool.spec.name, (tool, entry))
        if first != tool:
            cause = f'it and {other.title} both have a tool "{tool.spec.name}".'
            move = "Name the tools of a server that you want as only, or leave one of the two out."
            raise ConfigError(entry.title, cause, move)

    async def _call(self, call: ToolCall, within: ToolTry) -> ToolResult:
        if call.name not in self._tools:
            shown = one_line(call.name[:80])
            move = suggest_name(shown, self._tools) if self._tools else "There are no tools."
            return ToolResult(f'There is no tool "{shown}". {move}', "refused")
        tool, entry = self._tools[call.name]
        limit = asyncio.timeout(entry.timeout_s)
        try:
            arguments = read_arguments(call.arguments, tool.spec.parameters)
            async with limit:
                return await tool.call(arguments, within)
        except ArgumentsRefused as refused:
            return ToolResult(str(refused), "refused")
        except ToolError as error:
            return ToolResult(str(error), "error")
        except StudioError:  # answers that are waited for, and what stops a run
            raise
        except TimeoutError as error:
            if limit.expired():
                said = f"It gave no result within {entry.timeout_s:g} s and was ended."
                return ToolResult(said, "timeout", _usage_of(error.__cause__))
            return ToolResult(error_text(error), "error")
        except (Exception, SystemExit) as error:  # a tool's own code may do anything
            return ToolResult(error_text(error), "error", _usage_of(error))


def _usage_of(error: BaseException | None) -> Usage:
    if isinstance(error, CallFailed):
        return error.usage
    return lost_usage(error) if isinstance(error, asyncio.CancelledError) else NO_USAGE


MAX_RESULT_CHARS = 8 * SHOWN_CHARS
"""Of a whole JSON result, in which each text has at most `SHOWN_CHARS`."""
_MAX_READ_CHARS = 2_000_000
_LEFT_OUT = "… [{:,} {} left out] …"


def shorten_result(text: str, limit: int = SHOWN_CHARS) -> str:
    """Cut what is too long, and say how much is left out; JSON stays JSON."""
    text = fix_surrogates(clean_text(text))
    if len(text) <= limit:
        return text
    if len(text) > _MAX_READ_CHARS:
        return _cut(text, limit)
    try:
        value = json.loads(
            text, parse_int=partial(_read_number, int), parse_float=partial(_read_number, float)
        )
        # Ever less of each part, until the whole fits.
        for chars, entries in ((limit, 100), (limit // 4, 25), (limit // 20, 5)):
            short = json.dumps(_shorten(value, chars, entries), ensure_ascii=False)
            if len(short) <= 8 * limit:
                return short
    except ValueError:  # it is no JSON
        return _cut(text, limit)
    except RecursionError:
        pass
    return json.dumps(_cut(text, limit // 2), ensure_ascii=False)


def _shorten(value: Any, chars: int, entries: int) -> Any:
    if isinstance(value, str):
        return _cut(value, chars)
    more = len(value) - entries if isinstance(value, list | dict) else 0
    if isinstance(value, list):
        short = [_shorten(item, chars, entries) for item in value[:entries]]
        return short + [_LEFT_OUT.format(more, "entries")] * (more > 0)
    if isinstance(value, dict):
        kept = list(value.items())[:entries]
        rest = {"…": _LEFT_OUT.format(more, "entries")} if more > 0 else {}
        return {_cut(k, chars): _shorten(v, chars, entries) for k, v in kept} | rest
    return value


def _cut(text: str, limit: int) -> str:
    """Head and tail of a text, with what is missing between them."""
    if len(text) <= limit:
        return text
    note = _LEFT_OUT.format(len(text), "characters")  # of no less than its final length
    kept = max(limit - len(note), 0)
    head = kept - kept // 3
    note = _LEFT_OUT.format(len(text) - kept, "characters")
    return text[:head] + note + text[len(text) - kept // 3 :]


def _read_number(kind: type[int] | type[float], written: str) -> float | str:
    """A number; what has too many digits for Python stays a text."""
    return kind(written) if isfinite(float(written)) else written
