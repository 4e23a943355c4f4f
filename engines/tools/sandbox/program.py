"""Any program in the sandbox, with its children: our end of `launch.py`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from engines.tools.sandbox.control import START_S, STARTED, start_module
from engines.tools.sandbox.layers.namespaces import NOBODY
from engines.tools.sandbox.limits import Limits
from engines.tools.sandbox.tiers import SandboxError


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """How a program ended; of its output only the last 64 KiB each are kept."""

    status: Literal["ok", "error", "timeout", "killed"] = "error"
    returncode: int | None = None
    """None where it was killed; a negative number is the signal that ended it."""
    stdout: str = ""
    stderr: str = ""
    elapsed_s: float = 0.0
    error: str = ""


class Program:
    """A running program. To be waited for or killed."""

    def __init__(self, order: Mapping[str, Any], stdin: bytes, limits: Limits) -> None:
        """Raises OSError: no process can be started."""
        self.listener: socket.socket | None = None
        """Listens inside the program's own network, where it has one; not blocking."""
        with tempfile.TemporaryFile() as given:
            given.write(stdin)
            given.seek(0)
            whole = {**order, "limits": asdict(limits)}
            self._launcher, self._control = start_module("launch", whole, stdin=given)
        self._limits = limits
        self.runs = False
        self.started = asyncio.Event()
        self.following = asyncio.create_task(self._follow())

    async def wait(self) -> ProgramResult:
        """Until it has ended, or was ended after `wall_s` of its limits."""
        return await asyncio.shield(self.following)

    async def kill(self) -> None:
        """End it and everything that it started. May be called more than once."""
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)  # the launcher then ends it all
        await self.wait()

    async def _follow(self) -> ProgramResult:
        loop, said = asyncio.get_running_loop(), b""
        try:
            async with asyncio.timeout(self._limits.wall_s + START_S):
                said = await asyncio.to_thread(self._receive_start)
                self.started.set()
                while part := await loop.sock_recv(self._control, 1 << 16):
                    said += part
        except OSError:  # it is silent or was killed from outside; TimeoutError is one
            self._launcher.kill()
        finally:
            self.started.set()
            self._control.close()
            if self.listener:
                self.listener.close()
        await asyncio.to_thread(self._launcher.wait)
        found: dict[str, Any] = {"error": "its launcher was killed"}
        for line in said.split(b"\n")[:-1]:
            found |= json.loads(line)
        return ProgramResult(**found)

    def _receive_start(self) -> bytes:
        said, descriptors, _, _ = socket.recv_fds(self._control, 4096, 1)
        for descriptor in descriptors:
            self.listener = socket.socket(fileno=descriptor)
            self.listener.setblocking(False)
        self._control.setblocking(False)
        self.runs = said.startswith(STARTED)
        return said


async def launch_program(order: Mapping[str, Any], stdin: bytes, limits: Limits) -> Program:
    """Start what `launch.py` is ordered to. Raises SandboxError."""
    if "namespaces" in order["layers"] and os.geteuid() == 0:
        give_to_nobody(order["folder"])  # as which the program runs
    try:
        program = Program(order, stdin, limits)
    except OSError as error:
        raise SandboxError.of_start("the program", error) from error
    try:
        await program.started.wait()
    except asyncio.CancelledError:
        await program.kill()
        raise
    if not program.runs:
        raise SandboxError.of_start("the program", (await program.wait()).error)
    return program


def give_to_nobody(folder: str) -> None:
    for root, folders, files in os.walk(folder):
        for name in (".", *folders, *files):
            os.chown(os.path.join(root, name), NOBODY, NOBODY, follow_symlinks=False)
