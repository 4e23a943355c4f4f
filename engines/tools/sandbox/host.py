"""Our end of the template process of `template.py`: its start, its orders, its end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import IO, Any, TypeVar

from engines.tools.sandbox.control import STUDIO, start_module
from engines.tools.sandbox.limits import Limits
from engines.tools.sandbox.tiers import SandboxError, TierReport

T = TypeVar("T")


class Host:
    def __init__(self, limits: Limits, report: TierReport, preload: Sequence[str]) -> None:
        self._order = {
            "layers": report.in_force,
            "limits": asdict(limits),
            "preload": list(preload),
            "studio": STUDIO,
            # Those of the user, or given by an environment variable, are not found otherwise.
            "packages": [path for path in sys.path if path.endswith("-packages")],
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._closed = False
        # One thread, so one order at a time: replies carry no name.
        self._thread = ThreadPoolExecutor(1, "sandbox")

    async def start(self) -> None:
        await self._in_thread(self._start)

    async def fork(
        self, number: int, folder: str, channel: socket.socket, output: Sequence[IO[bytes]]
    ) -> None:
        """Fork an interpreter that goes by `number`, with these. Closes `channel`.

        Raises OSError, as `order` does.
        """

        def ask() -> None:
            with channel:
                descriptors = [channel.fileno(), *(file.fileno() for file in output)]
                self._ask({"word": "fork", "number": number, "folder": folder}, descriptors)

        await self._in_thread(ask)

    async def order(self, word: str, number: int) -> Mapping[str, Any]:
        """Send "end", "drop", "stop" or "continue". Raises OSError: it is gone or refuses."""
        return await self._in_thread(lambda: self._ask({"word": word, "number": number}))

    async def aclose(self) -> None:
        self._closed = True
        await self._in_thread(self._end)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Work that is begun is done, also where nobody waits for it any more."""
        running = asyncio.get_running_loop().run_in_executor(self._thread, work)
        return await asyncio.shield(running)

    def _start(self) -> None:
        if self._closed:
            raise SandboxError("sandbox", "it was closed.", "Start it again.")
        if self._control is not None:
            return
        try:
            self._process, self._control = start_module("template", self._order)
            self._check_reply(self._control.recv(4096))
        except OSError as error:
            self._end()
            raise SandboxError.of_start("its first process", error) from error

    def _ask(
        self, message: Mapping[str, Any], descriptors: Sequence[int] = ()
    ) -> Mapping[str, Any]:
        if self._control is None:
            raise ConnectionError("it is closed")
        try:
            socket.send_fds(self._control, [json.dumps(message).encode()], descriptors)
            line = self._control.recv(4096)
        except OSError:
            self._end()  # a late reply would answer another order
            raise
        return self._check_reply(line)

    def _check_reply(self, line: bytes) -> Mapping[str, Any]:
        if not line:
            self._end()
            raise ConnectionError("it ended unexpectedly")
        reply: Mapping[str, Any] = json.loads(line)
        if "error" in reply:
            raise OSError(reply["error"])
        return reply

    def _end(self) -> None:
        """End the template, which kills its interpreters when our end of the socket closes."""
        if self._control is None or self._process is None:
            return
        self._control.close()
        self._control = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        self._process.kill()
        self._process.wait()
