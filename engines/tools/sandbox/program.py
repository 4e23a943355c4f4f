"""Any program in the sandbox, with its children: our end of `launch.py`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from engines.tools.sandbox.errors import SandboxError
from engines.tools.sandbox.host import start_module
from engines.tools.sandbox.layers.namespaces import NOBODY
from engines.tools.sandbox.limits import Limits

START_S = 30.0
END_S = 10.0
TAIL = 1 << 16
STARTED = b'{"started": true}\n'

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


class Program:
    """A running program. To be waited for or killed."""

    def __init__(
        self, launcher: subprocess.Popen[bytes], control: socket.socket, limits: Limits
    ) -> None:
        self.listener: socket.socket | None = None
        """Listens inside the program's own network, where it has one; not blocking."""
        self._launcher, self._control, self._limits = launcher, control, limits
        self._began = time.perf_counter()
        self._ended: Literal["", "timeout", "killed"] = ""
        self._watching: asyncio.Task[ProgramResult] | None = None

    async def wait(self) -> ProgramResult:
        """Until it has ended, or was ended after `wall_s` of its limits."""
        assert self._watching is not None
        return await asyncio.shield(self._watching)

    async def kill(self) -> None:
        """End it and everything that it started. May be called more than once."""
        self._end("killed")
        await self.wait()

    def on_end(self, call: Callable[[Program], object]) -> None:
        assert self._watching is not None
        self._watching.add_done_callback(lambda _: call(self))

    async def start(self, order: Mapping[str, Any], stdin: bytes) -> None:
        """Raises OSError: it cannot be confined."""
        tails = Tail(), Tail()
        with tempfile.TemporaryFile() as given, contextlib.ExitStack() as stack:
            given.write(stdin)
            given.seek(0)
            passed = [given.fileno()]
            for tail in tails:
                ours, theirs = os.pipe()
                passed.append(theirs)
                stack.callback(os.close, theirs)
                pipe = os.fdopen(ours, "rb", 0)
                await asyncio.get_running_loop().connect_read_pipe(lambda tail=tail: tail, pipe)  # type: ignore[misc]
            content = json.dumps(order).encode() + b"\n"
            sent = socket.send_fds(self._control, [content[:4096]], passed)
            await asyncio.get_running_loop().sock_sendall(self._control, content[sent:])
        async with asyncio.timeout(START_S):
            message = await self._receive_listener()
        if not message.startswith(b'{"started"'):
            raise OSError(_failure_text(message) or "its launcher ended")
        self._watching = asyncio.create_task(self._follow(tails))

    async def _receive_listener(self) -> bytes:
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        loop.add_reader(self._control, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(self._control)
        # Up to the end of this line: what follows is for `_follow`.
        message, descriptors, _, _ = socket.recv_fds(self._control, len(STARTED), 1)
        for descriptor in descriptors:
            self.listener = socket.socket(fileno=descriptor)
            self.listener.setblocking(False)
        if message.startswith(b'{"failed"'):
            message += await loop.sock_recv(self._control, TAIL)
        return message

    async def _follow(self, tails: tuple[Tail, Tail]) -> ProgramResult:
        said = b""
        try:
            async with asyncio.timeout(self._limits.wall_s):
                said = await self._read_to_end()
        except TimeoutError:
            self._end("timeout")
            said = await self._read_rest()
        except asyncio.CancelledError:
            self._launcher.kill()
            raise
        finally:
            self.close()
        await asyncio.to_thread(self._launcher.wait)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_S):  # nothing that could write is left
                await asyncio.gather(*(tail.ended for tail in tails))
        codes = re.findall(rb'\{"code": (-?\d+)\}', said)
        failure, code = _failure_text(said), int(codes[-1]) if codes else None
        stdout, stderr = (bytes(tail.text).decode("utf-8", "replace") for tail in tails)
        status: ProgramStatus = self._ended or ("ok" if code == 0 and not failure else "error")
        if self._ended == "timeout":
            failure = f"it was stopped after {self._limits.wall_s:g} s"
        return ProgramResult(
            status=status,
            returncode=None if self._ended else code,
            stdout=stdout,
            stderr=stderr,
            elapsed_s=time.perf_counter() - self._began,
            error=failure,
        )

    async def _read_to_end(self) -> bytes:
        said = b""
        with contextlib.suppress(ConnectionError):  # the launcher was killed from outside
            while part := await asyncio.get_running_loop().sock_recv(self._control, TAIL):
                said = (said + part)[-TAIL:]
        return said

    async def _read_rest(self) -> bytes:
        try:
            async with asyncio.timeout(END_S):
                return await self._read_to_end()
        except TimeoutError:
            self._launcher.kill()
            return b""

    def _end(self, why: Literal["timeout", "killed"]) -> None:
        if self._watching is not None and not self._watching.done() and not self._ended:
            self._ended = why
            # The launcher then ends everything, and tells when nothing is left.
            with contextlib.suppress(OSError):
                self._control.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._control.close()
        if self.listener is not None:
            self.listener.close()


def _failure_text(said: bytes) -> str:
    found = re.search(rb'\{"failed": "(.{0,500})', said)
    return found[1].decode("utf-8", "replace").rstrip('"}\n') if found else ""


class Tail(asyncio.Protocol):
    """The last of what comes out of a pipe."""

    def __init__(self) -> None:
        self.text = bytearray()
        self.ended = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self.text += data
        del self.text[:-TAIL]

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


async def launch_program(order: Mapping[str, Any], stdin: bytes, limits: Limits) -> Program:
    """Start what `launch.py` is ordered to. Raises SandboxError."""
    folder = order["folder"]
    if order["tier"] == "namespaces" and os.geteuid() == 0:
        give_to_nobody(folder)  # as which the program runs
    program = None
    try:
        launcher, control = start_module("engines.tools.sandbox.launch", {})
        program = Program(launcher, control, limits)
        await program.start({**order, "limits": asdict(limits)}, stdin)
    except BaseException as error:
        if program is not None:
            program.close()
            await asyncio.to_thread(launcher.wait)
        if not isinstance(error, OSError):  # TimeoutError is one
            raise
        move = "Free processes and memory, and start again."
        raise SandboxError("sandbox", f"the program cannot be started ({error}).", move) from error
    return program


def give_to_nobody(folder: str) -> None:
    for root, folders, files in os.walk(folder):
        for name in (".", *folders, *files):
            os.chown(os.path.join(root, name), NOBODY, NOBODY, follow_symlinks=False)
