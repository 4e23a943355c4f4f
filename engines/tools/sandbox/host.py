"""Our end of the template process of `template.py`: its start, its orders, its end."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from typing import IO, Any, Literal, TypeVar

from engines.core.process.scratch_folder import ScratchFolder
from engines.tools.sandbox.control import STUDIO, start_module
from engines.tools.sandbox.limits import Limits
from engines.tools.sandbox.tiers import SandboxError, TierReport

T = TypeVar("T")


class Interpreter:
    """Our end of its channel, and the files that it has for stdout and stderr.

    Files, not pipes: the system bounds them as all files, and nobody has to read meanwhile.
    """

    def __init__(self, number: int, *, has_folder: bool) -> None:
        self.number, self.calls = number, 0
        self.folder = ScratchFolder("studio-sandbox-") if has_folder else None
        self.output: list[IO[bytes]] = [tempfile.TemporaryFile(buffering=0) for _ in range(2)]  # noqa: SIM115
        self.channel, self.theirs = socket.socketpair()
        self.channel.setblocking(False)

    def close(self) -> None:
        self.channel.close()
        self.theirs.close()
        for file in self.output:
            file.close()
        if self.folder:
            self.folder.remove()


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
        self._has_folder = report.tier != "namespaces"
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._closed = False
        self._numbers = itertools.count(1)
        self._spares: list[Future[Interpreter]] = []
        # One thread, so one order at a time: replies carry no name.
        self._thread = ThreadPoolExecutor(1, "sandbox")

    async def start(self) -> None:
        await self._in_thread(self._start)

    async def fork(self) -> Interpreter:
        """One that is ready, while the next gets ready. Raises SandboxError."""
        taken = self._spares.pop() if self._spares else None
        if taken is None or (taken.done() and taken.exception()):
            taken = self._thread.submit(self._fork)
        try:
            interpreter = await asyncio.shield(asyncio.wrap_future(taken))
        except asyncio.CancelledError:
            self._spares.append(taken)
            raise
        if not self._spares:
            self._spares.append(self._thread.submit(self._fork))
        return interpreter

    async def end(self, number: int) -> Mapping[str, Any]:
        """Kill an interpreter; its "status" and "cpu_s", or nothing where the template is gone."""
        try:
            return await self._in_thread(lambda: self._ask({"word": "end", "number": number}))
        except OSError:
            return {}

    def send(self, word: Literal["drop", "stop", "continue"], number: int) -> None:
        """Send an order that nobody waits for; where the template is gone, the channel tells."""
        self._thread.submit(self._ask, {"word": word, "number": number})

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

    def _fork(self) -> Interpreter:
        self._start()
        new = None
        try:
            new = Interpreter(next(self._numbers), has_folder=self._has_folder)
            folder = new.folder.path if new.folder else ""
            descriptors = [new.theirs.fileno(), *(file.fileno() for file in new.output)]
            self._ask({"word": "fork", "number": new.number, "folder": folder}, descriptors)
        except OSError as error:
            if new:
                new.close()
            raise SandboxError.of_start("an interpreter", error) from error
        new.theirs.close()
        return new

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
        for spare in [spare for spare in self._spares if spare.done()]:
            self._spares.remove(spare)
            if not spare.exception():
                spare.result().close()
