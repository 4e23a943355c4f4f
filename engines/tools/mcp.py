"""The tools of an MCP server, by the official SDK; the only module that knows it.

What a server says is not trusted: descriptions are bounded and shown as they are, what is no
tool is refused before the run. A server that dies costs the calls of its tools, not the run.
"""

import asyncio
import json
import logging
import os
import re
import shutil
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, TextIO

from engines.core import codec, protocols, user_code
from engines.core.errors import ConfigError, ToolError, install_command, suggest_name
from engines.core.frozen import frozen
from engines.core.text.sanitize import escape_unsafe, one_line
from engines.core.types import Tell, ToolResult, ToolSpec
from engines.tools.settings import ToolSettings

if TYPE_CHECKING:
    from mcp import Client

MAX_STARTS = 4
"""Connections in one run: a server that dies of each call is given up."""
MAX_TOOLS = 200
MAX_DESCRIPTION_CHARS, MAX_WORDING_CHARS, MAX_SCHEMA_CHARS = 2_000, 500, 20_000
_STDERR_BYTES = 1_000


@frozen
class McpTool:
    """One tool of a server, which is opened and closed for all of them."""

    spec: ToolSpec
    remote_name: str
    server: "McpServer"

    async def check(self) -> None:
        """It was listed when the server was opened."""

    async def call(self, arguments: codec.JsonMapping, within: protocols.ToolTry) -> ToolResult:
        return await self.server.call(self.remote_name, arguments)

    async def aclose(self) -> None:
        """The server is closed by the toolbox."""


class _Connection:
    """A client, entered and left in a task of its own: cancel scopes do not cross tasks."""

    def __init__(self, enter: "Callable[[AsyncExitStack], Awaitable[Client]]") -> None:
        self.client: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._closing, self._usable = asyncio.Event(), True
        self.task = asyncio.create_task(self._hold(enter))

    @property
    def usable(self) -> bool:
        return self._usable and not self.task.done()

    def close(self) -> None:
        self._usable = False
        self._closing.set()
        if not self.client.done():
            self.task.cancel()

    async def _hold(self, enter: "Callable[[AsyncExitStack], Awaitable[Client]]") -> None:
        try:
            async with AsyncExitStack() as stack:
                self.client.set_result(await enter(stack))
                await self._closing.wait()
        except BaseException as error:  # whoever waits is told, also that it was called off
            if not self.client.done():
                self.client.set_exception(ConnectionError(user_code.error_text(error)))
                self.client.exception()  # nobody may wait any more


class McpServer:
    """A server and its tools. `environment` is where the variables of the settings are read."""

    def __init__(
        self,
        settings: ToolSettings,
        environment: Mapping[str, str],
        on_trouble: Tell,
    ) -> None:
        self._settings, self._environment, self._on_trouble = settings, environment, on_trouble
        self._connections: list[_Connection] = []
        self._connecting = asyncio.Lock()  # one task connects, the others use its client
        self._told, self._stderr = False, b""

    async def open(self) -> Sequence[McpTool]:
        self._check_settings()
        settings, found, cursor = self._settings, list[Any](), None
        try:
            async with asyncio.timeout(settings.timeout_s):
                client = (await self._connect()).client.result()
                while len(found) <= MAX_TOOLS:
                    page = await client.list_tools(cursor=cursor)
                    cursor, found = page.next_cursor, [*found, *page.tools]
                    if not (cursor and page.tools):
                        break
        except TimeoutError as error:
            raise self._error(f"it lists no tools within {settings.timeout_s:g} s") from error
        except Exception as error:  # sloppy servers raise errors of validation, too
            raise self._error(
                f"its tools cannot be listed ({user_code.error_text(error)})"
            ) from error
        if len(found) > MAX_TOOLS:
            raise self._error(f"it lists more than {MAX_TOOLS} tools")
        names = [tool.name for tool in found]
        if unknown := [name for name in settings.only if name not in names]:
            raise ConfigError(
                settings.title, f'it has no tool "{unknown[0]}".', suggest_name(unknown[0], names)
            )
        return [self._read_tool(tool) for tool in found if tool.name in (settings.only or names)]

    async def call(self, name: str, arguments: codec.JsonMapping) -> ToolResult:
        from mcp import MCPError
        from mcp.types import CONNECTION_CLOSED

        connection = None
        try:
            connection = await self._connect()
            result = await connection.client.result().call_tool(name, dict(arguments))
        except MCPError as error:
            if error.code != CONNECTION_CLOSED and error.message != "Session terminated":
                return ToolResult(f"The server refused it: {one_line(error.message)}", "error")
            return self._lose(connection, "it ended")
        except ConnectionError as error:
            return self._lose(connection, str(error))
        text = "\n".join(map(_part_text, result.content))
        if not text and result.structured_content is not None:
            text = json.dumps(result.structured_content, ensure_ascii=False)
        return ToolResult(text, "error" if result.is_error else "ok")

    async def aclose(self) -> None:
        for connection in self._connections:
            connection.close()
        if tasks := [connection.task for connection in self._connections]:
            _, hanging = await asyncio.wait(tasks, timeout=15)
            for task in hanging:
                task.cancel()

    async def _connect(self) -> _Connection:
        """A connection that lives; ConnectionError where there is none any more."""
        async with self._connecting:
            if not self._connections or not self._connections[-1].usable:
                if len(self._connections) == MAX_STARTS:
                    raise ConnectionError(f"it was lost {MAX_STARTS} times")
                self._connections.append(_Connection(self._enter_client))
            connection = self._connections[-1]
            try:
                await asyncio.shield(connection.client)
            except BaseException:
                connection.close()
                raise
            return connection

    async def _enter_client(self, stack: AsyncExitStack) -> "Client":
        from mcp import Client, StdioServerParameters
        from mcp.client.stdio import DEFAULT_INHERITED_ENV_VARS, stdio_client
        from mcp.client.streamable_http import streamable_http_client

        settings, values = self._settings, self._environment
        if settings.url:
            import httpx2

            limits = httpx2.Timeout(30, read=settings.timeout_s + 60)
            http = await stack.enter_async_context(httpx2.AsyncClient(timeout=limits))
            transport = streamable_http_client(settings.url, http_client=http)
            return await stack.enter_async_context(Client(transport))
        # The SDK adds HOME, USER and others of ours; env takes them away again.
        kept = ("PATH", *settings.pass_env)
        unset = [part for n in DEFAULT_INHERITED_ENV_VARS if n not in kept for part in ("-u", n)]
        parameters = StdioServerParameters(
            command="env",
            args=[*unset, *settings.started_by, *settings.command],
            env={name: values[name] for name in kept if name in values},
        )
        errors = stack.enter_context(self._open_stderr())
        return await stack.enter_async_context(Client(stdio_client(parameters, errlog=errors)))

    @contextmanager
    def _open_stderr(self) -> Iterator[TextIO]:
        """Where the server complains; of what it says the end is kept."""
        ours, theirs = os.pipe()
        os.set_blocking(ours, False)
        loop = asyncio.get_running_loop()

        def read() -> None:
            with suppress(BlockingIOError):
                self._stderr = (self._stderr + os.read(ours, 65_536))[-_STDERR_BYTES:]

        loop.add_reader(ours, read)
        try:
            with os.fdopen(theirs, "w") as stream:
                yield stream
        finally:
            loop.remove_reader(ours)
            read()
            os.close(ours)

    def _check_settings(self) -> None:
        """Refuse what no server can be reached with, in words of the run file."""
        settings, place = self._settings, self._settings.title
        try:
            import mcp  # noqa: F401
        except ImportError as error:
            raise ToolError(
                place, "the package mcp is not installed.", f"Run: {install_command('mcp')}"
            ) from error
        # Its log would stand between what the studio prints.
        logging.getLogger("mcp").addHandler(logging.NullHandler())
        if unset := [name for name in settings.pass_env if name not in self._environment]:
            raise ToolError(
                place,
                f"the environment variable {unset[0]} is not set.",
                "Set it, or take it out of pass_env.",
            )
        command = (settings.command or ("env",))[0]
        if not shutil.which(command, path=self._environment.get("PATH")):
            raise ToolError(place, f'there is no command "{command}".', "Install it.")

    def _read_tool(self, tool: Any) -> McpTool:
        settings, hints = self._settings, tool.annotations
        place = f'{settings.title}, tool "{one_line(tool.name[:80])}"'
        repeatable = bool(hints and (hints.read_only_hint or hints.idempotent_hint))
        tier = f"{settings.tier}; it has {', '.join(('PATH', *settings.pass_env))}"
        spec = ToolSpec(
            name=re.sub(r"[^A-Za-z0-9_-]", "_", tool.name)[:64],
            description=escape_unsafe(tool.description or "")[:MAX_DESCRIPTION_CHARS],
            parameters=_read_schema(tool.input_schema, place),
            repeatable=repeatable if settings.repeatable is None else settings.repeatable,
            network=settings.network,
            tier=f"a server at {settings.url}" if settings.url else tier,
        )
        return McpTool(spec, tool.name, self)

    def _lose(self, connection: _Connection | None, reason: str) -> ToolResult:
        """What a call comes to whose connection is gone; a person is told the first time."""
        if connection is not None:
            connection.close()
        if not self._told:
            self._told = True
            self._on_trouble(f"{self._error(reason)} Calls of its tools fail until it is back.")
        return ToolResult(f"its server is gone: {reason}", "unavailable")

    def _error(self, reason: str) -> ToolError:
        said = one_line(self._stderr.decode(errors="replace"))
        return ToolError(self._settings.title, f"{reason}.", f"It said: {said}" if said else "")


def _read_schema(given: Any, place: str) -> codec.JsonMapping:
    """A server's schema, if it is one of an object; bounded, with nothing hidden in its words."""
    try:
        text = codec.fix_surrogates(json.dumps(_clean_words(given), ensure_ascii=False))
        schema: dict[str, Any] = {"properties": {}, **json.loads(text)}
    except RecursionError:
        text, schema = "", {}
    names: Any = schema.get("properties")
    required = schema.get("required", [])
    is_object = schema.get("type") == "object" and isinstance(names, dict)
    if not is_object or not isinstance(required, list) or not {*map(str, required)} <= {*names}:
        cause = "its schema is not that of an object with its properties."
    elif len(text) > MAX_SCHEMA_CHARS:
        cause = f"its schema has {len(text):,} characters."
    else:
        return schema
    raise ToolError(place, cause, "Leave it out with only, or mend the server.")


def _clean_words(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: _clean_words(inner, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [_clean_words(inner) for inner in value]
    is_wording = key in ("description", "title") and isinstance(value, str)
    return escape_unsafe(value)[:MAX_WORDING_CHARS] if is_wording else value


def _part_text(part: Any) -> str:
    """A part of a result; of pictures and sounds only what they are."""
    inner = getattr(part, "resource", part)
    if text := getattr(inner, "text", None):
        return str(text)
    return f"[{part.type}: {getattr(inner, 'uri', '') or inner.mime_type or 'unknown kind'}]"
