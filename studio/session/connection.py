"""One connection to a run's process: requests, answers, and the messages between them.

Owns one socket until it is lost; `studio.session.reconnect` decides what then.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from studio.session.protocol import parse_answer, request_line
from studio.session.socket_file import RunAddress, check_owner, connect_path

_READ_BYTES = 1_000_000


class ConnectionLost(Exception):
    """The connection ended before the answer came."""


class NoProcess(Exception):
    """No process listens on the run's socket."""


class Connection:
    """An open connection. Answers arrive while somebody iterates `pushed_messages`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._number = 0
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._lost = False

    async def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Send a request and return its answer.

        Raises:
            ConflictError: the run refused, or it is too long to be sent.
            ConnectionLost: whether the run did it is not known.
        """
        self._number += 1
        number = self._number
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            self.send(do, number, **arguments)
            return parse_answer(await answer)
        finally:
            self._waiting.pop(number, None)

    def send(self, do: str, number: int = 0, **arguments: Any) -> None:
        """Send a request; the answer to number 0 is dropped."""
        if self._lost:
            raise ConnectionLost
        self._writer.write(request_line(number, do, **arguments))

    async def ask_first(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Ask before anybody iterates `pushed_messages`, and return the answer."""
        self.send(do, **arguments)
        if not (line := await self._read_line()):
            raise ConnectionLost
        return parse_answer(json.loads(line))

    async def pushed_messages(self) -> AsyncIterator[dict[str, Any]]:
        """Yield what is pushed until the connection ends; answers go to those who asked."""
        try:
            while line := await self._read_line():
                message = json.loads(line)
                if "id" not in message:
                    yield message
                elif (answer := self._waiting.get(message["id"])) is not None and not answer.done():
                    answer.set_result(message)
        finally:
            self.close()

    def close(self) -> None:
        """Close the connection; whoever waits for an answer gets ConnectionLost."""
        self._lost = True
        self._writer.close()
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(ConnectionLost())

    async def aclose(self) -> None:
        """Close the connection, and wait until it is closed."""
        self.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def _read_line(self) -> bytes:
        """One line of any length; b"" at the end of the input, also within a line."""
        parts: list[bytes] = []
        while True:
            try:
                parts.append(await self._reader.readuntil(b"\n"))
                return b"".join(parts)
            except asyncio.LimitOverrunError as more:
                parts.append(await self._reader.readexactly(more.consumed))
            except (asyncio.IncompleteReadError, OSError):
                return b""


async def connect(run: RunAddress) -> Connection:
    """Connect to a run's process.

    Raises:
        NoProcess: there is none; a socket file may be left of it.
        ConflictError: its socket is somebody else's, or its path is too long.
        OSError: it could not be reached now.
    """
    try:
        with connect_path(run) as path:
            check_owner(path, run)
            reader, writer = await asyncio.open_unix_connection(path, limit=_READ_BYTES)
    except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError) as error:
        raise NoProcess from error
    return Connection(reader, writer)
