"""Any program in the sandbox, with its children: our end of `launch.py`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from engines.tools.sandbox.errors import SandboxError
from engines.tools.sandbox.host import start_module
from engines.tools.sandbox.limits import Limits
from engines.tools.sandbox.tiers import TierReport

START_S = 30.0
END_S = 10.0
TAIL = 1 << 16


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """How a program ended; of its output only the last 64 KiB each are kept."""

    status: Literal["ok", "error", "timeout", "killed"]
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
        with contextlib.suppress(OSError):
            await self.wait()

    def watch(self, streams: Sequence[int], stdin: int, content: bytes) -> None:
        """Follow it to its end. The descriptors are ours from here on."""
        self._watching = asyncio.create_task(self._follow(streams, stdin, content))

    def _end(self, why: Literal["timeout", "killed"]) -> None:
        if self._launcher.poll() is None and not self._ended:
            self._ended = why
            # With namespaces the kernel ends all others with it; without, it does so itself.
            self._control.close()
