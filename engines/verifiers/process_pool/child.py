"""Our end of a child process: its end, and a socket with one JSON object a line."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

Message = Mapping[str, Any]
Parse = Callable[[bytes], Message | None]

MAX_LINE = 64 << 20


class Child(asyncio.Protocol):
    """A running child process.

    `parse` makes a line a message; None, where it is none, ends the child. `on_exit` is called
    when it ends without `close`; `kill` kills and reaps it. `prefetch` calls wait in its socket,
    in order, so that it is never idle.
    """

    capacity = 1
    """Calls that it works on at a time."""

    def __init__(
        self,
        on_message: Callable[[Message], None],
        on_exit: Callable[[], None],
        parse: Parse,
        kill: Callable[[], Awaitable[None]],
        *,
        prefetch: int = 0,
    ) -> None:
        self._on_message, self._on_exit = on_message, on_exit
        self._parse, self._kill = parse, kill
        self.prefetch = prefetch
        self._rest = b""
        self._transport: asyncio.Transport | None = None
        self._closing = self._dropped = False

    async def connect(self, ours: socket.socket) -> None:
        """Take over our end of the socket of the process, which has been started."""
        ours.setblocking(False)
        try:
            await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=ours)
        except BaseException:
            ours.close()
            await self.close()
            raise

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE:
            self._drop()
        for line in lines:
            if self._closing or self._dropped:
                return
            message = self._parse(line)
            if message is None:
                self._drop()  # user code wrote to the socket: later lines may be its own, too
            else:
                self._on_message(message)

    def _drop(self) -> None:
        """Treat the process as ended: its messages cannot be trusted."""
        self._dropped, self._rest = True, b""
        if self._transport:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._closing:
            self._on_exit()

    def send(self, message: Message) -> None:
        # ASCII JSON: NUL and lone surrogates travel as escapes.
        if self._transport and not self._closing:
            self._transport.write(json.dumps(message).encode() + b"\n")

    async def close(self) -> None:
        """Kill and reap the process. May be called more than once."""
        if self._closing:
            return
        self._closing = True
        if self._transport:
            self._transport.abort()
        await self._kill()


async def kill_session(process: subprocess.Popen[bytes]) -> None:
    """Kill a program of `start_python` with its children, and reap it."""
    if process.returncode is None:  # later the id may be another process's
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()
    await asyncio.to_thread(process.wait)
