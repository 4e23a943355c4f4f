"""The tools of one agent, and what a call of one comes to, whatever a model made of it."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

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


def shorten_result(text: str, limit: int = SHOWN_CHARS) -> str:
    """Head and tail of a text that is too long, with how much is left out between them.

    Of JSON, which says little in its first characters, eight times as much is kept.
    """
    text = fix_surrogates(clean_text(text))
    if text[:1] in ("{", "["):
        limit *= 8
    if len(text) <= limit:
        return text
    note = _LEFT_OUT.format(len(text))  # of no less than its final length
    kept = max(limit - len(note), 0)
    tail = kept // 3
    note = _LEFT_OUT.format(len(text) - kept)
    return text[: kept - tail] + note + text[len(text) - tail :]


_LEFT_OUT = "… [{:,} characters left out] …"
