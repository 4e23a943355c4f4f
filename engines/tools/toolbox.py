"""The tools of one agent, and what a call of one comes to, whatever a model made of it.

Shipped are a calculator, a question to another model and the interpreter; those of the web are in
`web.tools`.
"""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace

from engines.core import codec, errors, user_code
from engines.core.frozen import frozen
from engines.core.protocols import Policy, Tool, ToolTry
from engines.core.text import maths, sanitize, tool_text
from engines.core.types import (
    NO_OUTPUT,
    NO_USAGE,
    SHOWN_CHARS,
    Message,
    Sampling,
    Tell,
    ToolCall,
    ToolResult,
    ToolSpec,
    Usage,
    as_status,
    is_cut,
)
from engines.tools.function import ArgumentsRefused, FunctionTool, read_arguments
from engines.tools.mcp import McpServer
from engines.tools.sandbox.sandbox import RunResult, Sandbox
from engines.tools.settings import PROVIDERS, ToolSettings
from engines.tools.web.tools import WebContext, missing_key, open_web_tool, with_provider


@frozen
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
            raise errors.ConfigError(
                entry.title,
                f'it and {other.title} both have a tool "{tool.spec.name}".',
                "Name the tools of a server that you want as only, or leave one of the two out.",
            )

    async def _call(self, call: ToolCall, within: ToolTry) -> ToolResult:
        if call.name not in self._tools:
            shown = sanitize.one_line(call.name[:80])
            move = errors.suggest_name(shown, self._tools) if self._tools else "There are no tools."
            return ToolResult(f'There is no tool "{shown}". {move}', "refused")
        tool, entry = self._tools[call.name]
        limit = asyncio.timeout(entry.timeout_s)
        try:
            arguments = read_arguments(call.arguments, tool.spec.parameters)
            async with limit:
                return await tool.call(arguments, within)
        except ArgumentsRefused as refused:
            return ToolResult(str(refused), "refused")
        except errors.ToolError as error:
            return ToolResult(str(error), "error")
        except errors.StudioError:  # answers that are waited for, and what stops a run
            raise
        except TimeoutError as error:
            if limit.expired():
                return ToolResult(
                    f"It gave no result within {entry.timeout_s:g} s and was ended.",
                    "timeout",
                    _usage_of(error.__cause__),
                )
            return ToolResult(user_code.error_text(error), "error")
        except (Exception, SystemExit) as error:  # a tool's own code may do anything
            return ToolResult(user_code.error_text(error), "error", _usage_of(error))


def _usage_of(error: BaseException | None) -> Usage:
    if isinstance(error, errors.CallFailed):
        return error.usage
    return errors.lost_usage(error) if isinstance(error, asyncio.CancelledError) else NO_USAGE


def shorten_result(text: str, limit: int = SHOWN_CHARS) -> str:
    """Head and tail of a text that is too long, with how much is left out between them.

    Of JSON, which says little in its first characters, eight times as much is kept.
    """
    text = codec.fix_surrogates(tool_text.clean_text(text))
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


def open_toolbox(
    settings: Sequence[ToolSettings],
    web: WebContext,
    *,
    sandbox: Sandbox | None = None,
    tell: Tell = lambda line: None,
) -> CheckedToolbox:
    """Make the tools; nothing is started or asked before `check`.

    The toolbox closes neither the sandbox, which `python` needs, nor the models of `web`. `tell`
    is told of a server that is lost, once. A tool whose key is not set is left out, and
    `CheckedToolbox.absent` says so.

    Raises ConfigError: a function that is not there or cannot be a tool, two tools of one name, or
    no tool is left. ToolError: pages that cannot be read.
    """
    entries, absent, keys = [], [], []
    for tool in settings:
        if tool.name in PROVIDERS:
            tool = with_provider(tool, settings)
        if key := missing_key(tool, web.environment):
            keys.append(key)
            absent.append(f"{tool.title} is absent: {key} is not set")
        else:
            opened = _open_tool(tool, web, sandbox, tell)
            entries.append(Entry(opened, tool.title, tool.timeout_s))
    if absent and not entries:
        named = ", ".join(dict.fromkeys(keys))
        raise errors.ConfigError(
            "agent.tools",
            f"no tool is left: {'; '.join(absent)}.",
            f"Set {named} in the environment, or choose a provider that needs no key.",
        )
    return CheckedToolbox(entries, absent)


def _open_tool(
    tool: ToolSettings, web: WebContext, sandbox: Sandbox | None, tell: Tell
) -> Tool | McpServer:
    if tool.command or tool.url:
        return McpServer(tool, web.environment, tell)
    network = tool.network
    match tool.name:
        case "calculator":
            opened = calculator_tool()
        case "python":
            assert sandbox is not None
            opened = python_tool(sandbox)
        case "ask_model":
            opened = ask_model_tool(web.open_model(tool.model))
        case None:
            function = user_code.load_function(tool.title, tool.function or "")
            opened = FunctionTool(function, place=tool.title)
        case _:
            opened = open_web_tool(tool, web)
            network = opened.spec.network
    repeatable = opened.spec.repeatable if tool.repeatable is None else tool.repeatable
    opened.spec = replace(opened.spec, repeatable=repeatable, network=network)
    return opened


LIBRARIES = ("numpy", "sympy")
MAX_NAMES = 12
"""Variables that a result names."""


def calculator_tool() -> FunctionTool:
    async def calculator(expression: str) -> ToolResult:
        """Compute +, - and * of whole numbers with round brackets, exactly.

        Limits: 200 characters, numbers of 30 digits; no division, powers, decimals or names.
        Best practice: one whole expression instead of several steps.

        Args:
            expression: such as 17*(3+4)

        Repeatable: yes
        """
        try:
            return ToolResult(str(maths.value_of(expression)))
        except maths.ExpressionError as error:
            return ToolResult(f"{error}", "error")

    return FunctionTool(calculator)


def ask_model_tool(policy: Policy) -> FunctionTool:
    """`policy` is whoever opened it to close."""

    async def ask_model(question: str, within: ToolTry, instruction: str = "") -> ToolResult:  # noqa: D417
        """Ask a language model a plain question and read its reply.

        Limits: it sees nothing but the question, has no tools, and may be wrong.
        Best practice: put every fact that it needs into one question, and check what it says.

        Args:
            question: the whole question
            instruction: how it should answer, such as: in one sentence

        Repeatable: yes
        """
        system = (Message("system", instruction),) if instruction.strip() else ()
        messages = (*system, Message("user", question))
        reply = await within.ask(policy, messages, Sampling(temperature=0.0))
        if not reply.text.strip():
            return ToolResult(
                f"The model gave no text (it ended with {reply.finish!r}).", "error", reply.usage
            )
        quoted = "\n".join(f"> {line}" for line in reply.text.strip().splitlines())
        cut = "\n(cut at its length limit)" if is_cut(reply.finish) else ""
        return ToolResult(f"The model replies:\n{quoted}{cut}", usage=reply.usage)

    return FunctionTool(ask_model)


def python_tool(sandbox: Sandbox) -> FunctionTool:
    """The interpreter: one session of the sandbox for each rollout."""

    async def python(code: str, within: ToolTry) -> ToolResult:  # noqa: D417
        """Run Python code and see what it prints and the value of its last line.

        Limits: 10 s for each call, no network, no files that stay. Variables, functions and
        imports are kept from one call to the next.
        Best practice: print the result or leave it as the last line; compute in few calls,
        and test a result before you rely on it.

        Args:
            code: lines of Python, without a code fence

        Repeatable: yes
        """
        name = tool.spec.name
        if name not in within.kept:
            session = sandbox.session()
            within.stack.push_async_callback(session.aclose)
            within.kept[name] = session, asyncio.Lock()
        session, turn = within.kept[name]
        async with turn:  # the calls of one reply run at a time, and share the variables
            # A process that was killed took the variables with it; the results are recorded.
            for call in [call for call in within.earlier if call.name == name]:
                within.earlier.remove(call)
                with suppress(ArgumentsRefused):  # nothing ran then either
                    earlier = read_arguments(call.arguments, tool.spec.parameters)
                    await session.run(earlier["code"])
            result = await session.run(code)
        status = result.status if result.status in ("ok", "timeout") else "error"
        return ToolResult(_result_text(result), as_status(status))

    async def test() -> None:
        """Start the sandbox and compute in it, so that the description says what can be used."""
        report = await sandbox.start()
        session = sandbox.session()
        try:
            result = await session.run("1+1")
            if result.status != "ok" or result.value != "2":
                raise errors.ToolError(
                    'tool "python"',
                    f"1+1 came to {_result_text(result)!r} ({result.status}).",
                    f"The sandbox: {report.sentence}",
                )
            usable = [n for n in LIBRARIES if (await session.run(f"import {n}")).status == "ok"]
        finally:
            await session.aclose()
        libraries = ", ".join(("the standard library", *usable))
        tool.spec = replace(
            tool.spec,
            description=f"{tool.spec.description}\nUsable: {libraries}.",
            tier=report.sentence,
        )

    tool = FunctionTool(python)
    tool.test = test
    return tool


def _result_text(result: RunResult) -> str:
    """What was printed, then the last value, what went wrong, and which variables there are."""
    parts = [result.stdout.rstrip("\n")]
    if result.value:
        parts.append(f"Value: {result.value}" if result.stdout.strip() else result.value)
    if result.stderr.strip():
        parts.append(f"stderr: {result.stderr.rstrip()}")
    if result.status != "ok":
        parts.append(f"Failed ({result.status}): {result.error}")
    elif not any(parts):
        parts.append(f"{NO_OUTPUT[:-1]}: print the result, or leave it as the last line)")
    if result.variables:
        names = result.variables
        more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
        parts.append(f"Variables: {', '.join(names[:MAX_NAMES])}{more}")
    return "\n".join(part for part in parts if part)
