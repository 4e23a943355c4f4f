"""A `ProgramRunner` without a box, for tests: a child process in its folder, sharing our network.

With `own_listener` it stands for a box with a network of its own: it hands out the listener on
which the program will find the gateway.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

TAIL = 200_000


@dataclass(frozen=True)
class PlainResult:
    status: str
    returncode: int | None
    stdout: str
    stderr: str
    error: str = ""


@dataclass
class PlainProgram:
    process: asyncio.subprocess.Process
    stdin: bytes
    timeout_s: float
    listener: socket.socket | None = None

    async def wait(self) -> PlainResult:
        try:
            async with asyncio.timeout(self.timeout_s):
                out, err = await self.process.communicate(self.stdin)
        except TimeoutError:
            await self.kill()
            return PlainResult(
                "timeout", None, "", "", f"it was stopped after {self.timeout_s:g} s"
            )
        status = "error" if self.process.returncode else "ok"
        texts = (data[-TAIL:].decode(errors="replace") for data in (out, err))
        return PlainResult(status, self.process.returncode, *texts)

    async def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        await self.process.wait()
        if self.listener is not None:
            self.listener.close()


@dataclass
class PlainRunner:
    timeout_s: float = 60.0
    own_listener: bool = False
    started: list[Mapping[str, Any]] = field(default_factory=list)
    programs: list[PlainProgram] = field(default_factory=list)

    async def start_program(
        self,
        argv: Sequence[str],
        *,
        folder: Path,
        env: Mapping[str, str],
        readable: Sequence[Path] = (),
        stdin: bytes = b"",
        network: Literal["none", "public"] = "none",
        port: int = 8080,
        limits: Any = None,
    ) -> PlainProgram:
        listener, env = None, dict(env)
        if self.own_listener:
            listener = socket.create_server(("127.0.0.1", 0))
            inner = str(listener.getsockname()[1])
            env = {name: value.replace(f":{port}", f":{inner}") for name, value in env.items()}
        self.started.append({"argv": list(argv), "folder": folder, "env": env, "stdin": stdin})
        self.started[-1] |= {"readable": tuple(readable), "network": network, "port": port}
        process = await asyncio.create_subprocess_exec(
            *argv,
            cwd=folder,
            env=env,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        program = PlainProgram(process, stdin, self.timeout_s, listener)
        self.programs.append(program)
        return program
