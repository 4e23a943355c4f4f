"""Our end of the process of `worker.py`.

Owns starting it, the lines that travel, and ending it with the processes of its session.
A child that opens a session of its own (a daemon) outlives it, and so do containers and
jobs elsewhere. Limits no memory. Does not decide when to end: `pool` does.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

Message = Mapping[str, Any]


MAX_LINE = 64 << 20


def parse_message(line: bytes) -> Message | None:
    """A message of the worker; None where it is none."""
    try:
        message: Any = json.loads(line)
    except (ValueError, RecursionError):
        return None
    match message:
        case (
            {"loaded": {"signature": str(), "async": bool()}}
            | {"refused": {"cause": str(), "move": str()}}
            | {"done": int(), "error": str()}
            | {"done": int(), "results": list()}
            | {"ask": int(), "call": int(), "messages": list()}
        ):
            whole: Message = message
            return whole
    return None


class ForeignProcess(asyncio.Protocol):
    """A running worker; `heard` gets each of its messages, `ended` its unexpected end."""

    def __init__(self, heard: Callable[[Message], None], ended: Callable[[], None]) -> None:
        self._heard, self._ended = heard, ended
        self._rest = b""
        self._transport: asyncio.Transport | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._closing = self._dropped = False

    @classmethod
    async def start(
        cls, heard: Callable[[Message], None], ended: Callable[[], None]
    ) -> ForeignProcess:
        """Raises OSError when there can be no further process."""
        self = cls(heard, ended)
        ours, theirs = socket.socketpair()
        # Ours is passed on whole: the file is the user's own code and may need its keys.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
        command = [sys.executable, "-P", "-m", "engines.verifiers.foreign.worker"]
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [*command, str(theirs.fileno())],
                    pass_fds=(theirs.fileno(),),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env=environment,
                    start_new_session=True,  # a group of its own, to be killed as one
                )
            ours.setblocking(False)
            await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=ours)
        except BaseException:
            ours.close()
            await self.close()
            raise
        return self

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
            message = parse_message(line)
            if message is None:
                self._drop()  # a fork of the user's code wrote here: what follows is its, too
            else:
                self._heard(message)

    def _drop(self) -> None:
        """Treat it as ended: nothing that it says can be believed."""
        self._dropped, self._rest = True, b""
        if self._transport:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._closing:
            self._ended()

    def send(self, message: Message) -> None:
        # ASCII JSON: NUL and lone surrogates travel as escapes.
        if self._transport and not self._closing:
            self._transport.write(json.dumps(message).encode() + b"\n")

    async def close(self) -> None:
        """Kill the process and its session, and reap it. May be called more than once."""
        self._closing = True
        if self._transport:
            self._transport.abort()
        process, self._process = self._process, None
        if process is None:
            return
        # Before the wait: until then the id is surely still its own.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        await asyncio.to_thread(process.wait)
