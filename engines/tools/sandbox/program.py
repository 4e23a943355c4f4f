"""Any program in the sandbox, with its children: our end of `launch.py`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import IO, Any, Literal

from engines.tools.sandbox.control import start_module
from engines.tools.sandbox.layers.namespaces import NOBODY
from engines.tools.sandbox.limits import Limits
from engines.tools.sandbox.tiers import SandboxError

END_S = 10.0
TAIL = 1 << 16

ProgramStatus = Literal["ok", "error", "timeout", "killed"]


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """How a program ended; of its output only the last 64 KiB each are kept."""

    status: ProgramStatus
    returncode: int | None
    """None where it was killed; a negative number is the signal that ended it."""
    stdout: str
    stderr: str
    elapsed_s: float
    error: str = ""


class Launcher:
    """The process that starts a program, and what it says of it."""

    def __init__(self, order: Mapping[str, Any], stdin: bytes) -> None:
        """Blocks. Raises OSError: the program cannot be confined."""
        with tempfile.TemporaryFile() as given:
            given.write(stdin)
            given.seek(0)
            self.process, self.control = start_module(
                "launch", order, stdin=given, output=subprocess.PIPE
            )
        try:
            self._said, descriptors, _, _ = socket.recv_fds(self.control, 4096, 1)
            if "started" not in self.facts:
                raise OSError(self.facts.get("error", "its launcher ended"))
        except OSError:
            self.control.close()
            self.process.communicate()
            raise
        self.control.setblocking(False)
        self.listener = socket.socket(fileno=descriptors[0]) if descriptors else None
        if self.listener:
            self.listener.setblocking(False)

    @property
    def facts(self) -> dict[str, Any]:
        """The first that was said of anything counts."""
        lines = reversed(self._said.splitlines())
        return {name: fact for line in lines for name, fact in json.loads(line).items()}

    async def listen(self) -> None:
        """Until it has ended, after all that it started."""
        with contextlib.suppress(ConnectionError):  # it was killed from outside
            while part := await asyncio.get_running_loop().sock_recv(self.control, 4096):
                self._said += part

    def close(self) -> None:
        """The launcher then ends what still runs."""
        self.control.close()
        if self.listener:
            self.listener.close()


class Program:
    """A running program. To be waited for or killed."""

    def __init__(self, launcher: Launcher, limits: Limits) -> None:
        self.listener = launcher.listener
        """Listens inside the program's own network, where it has one; not blocking."""
        self._launcher, self._limits = launcher, limits
        self.following = asyncio.create_task(self._follow())

    async def wait(self) -> ProgramResult:
        """Until it has ended, or was ended after `wall_s` of its limits."""
        return await asyncio.shield(self.following)

    async def kill(self) -> None:
        """End it and everything that it started. May be called more than once."""
        with contextlib.suppress(OSError):
            self._launcher.control.shutdown(socket.SHUT_WR)
        await self.wait()

    async def _follow(self) -> ProgramResult:
        began = time.perf_counter()
        launcher, process = self._launcher, self._launcher.process
        assert process.stdout and process.stderr
        tails = bytearray(), bytearray()
        reading = asyncio.gather(
            read_tail(process.stdout, tails[0]), read_tail(process.stderr, tails[1])
        )
        try:
            async with asyncio.timeout(self._limits.wall_s + END_S):
                await launcher.listen()
        except TimeoutError:
            process.kill()
        finally:
            launcher.close()
        await asyncio.to_thread(process.wait)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_S):  # nothing that could write is left
                await reading
        stdout, stderr = (bytes(tail).decode("utf-8", "replace") for tail in tails)
        facts = launcher.facts
        error, code = facts.get("error", ""), facts.get("code")
        status: ProgramStatus = facts.get("ended") or ("error" if code or error else "ok")
        if status == "timeout":
            error = f"it was stopped after {self._limits.wall_s:g} s"
        if "ended" not in facts:
            status, code, error = "error", None, error or "its launcher was killed"
        return ProgramResult(
            status=status,
            returncode=None if facts.get("ended") else code,
            stdout=stdout,
            stderr=stderr,
            elapsed_s=time.perf_counter() - began,
            error=error,
        )


async def read_tail(pipe: IO[bytes], tail: bytearray) -> None:
    """Keep the last of what comes out of a pipe."""
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), pipe
    )
    try:
        while part := await reader.read(TAIL):
            tail += part
            del tail[:-TAIL]
    finally:
        transport.close()


async def launch_program(order: Mapping[str, Any], stdin: bytes, limits: Limits) -> Program:
    """Start what `launch.py` is ordered to. Raises SandboxError."""
    if "namespaces" in order["layers"] and os.geteuid() == 0:
        give_to_nobody(order["folder"])  # as which the program runs
    whole = {**order, "limits": asdict(limits)}
    starting = asyncio.create_task(asyncio.to_thread(Launcher, whole, stdin))
    try:
        launcher = await asyncio.shield(starting)
    except OSError as error:
        raise SandboxError.of_start("the program", error) from error
    except asyncio.CancelledError:
        with contextlib.suppress(OSError):
            await Program(await starting, limits).kill()
        raise
    return Program(launcher, limits)


def give_to_nobody(folder: str) -> None:
    for root, folders, files in os.walk(folder):
        for name in (".", *folders, *files):
            os.chown(os.path.join(root, name), NOBODY, NOBODY, follow_symlinks=False)
