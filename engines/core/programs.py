"""Programs as the loop knows them: who starts one in a box, and what came of it.

Owns no box: the tiers that contain programs implement `ProgramRunner`.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from engines.core.tools import Network


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """How a program ended. The outputs are the last part of what it wrote, bounded."""

    returncode: int
    stdout: bytes = b""
    stderr: bytes = b""
    status: str = "ok"  # or "timeout", "memory", "killed": why its box ended it


class Program(Protocol):
    """A program that was started.

    `listener` listens on the loopback of the program's own network, at the port that it was
    started with; None where the program shares ours.
    """

    @property
    def listener(self) -> socket.socket | None: ...

    async def wait(self) -> ProgramResult: ...

    async def kill(self) -> None:
        """End it and all that it started; returns once nothing of it runs."""


class ProgramRunner(Protocol):
    """Starts programs, each in a box of its own."""

    async def start_program(
        self,
        argv: Sequence[str],
        *,
        folder: Path,
        env: Mapping[str, str],
        readable: Sequence[Path] = (),
        stdin: bytes = b"",
        network: Network = "none",
        limits: Any = None,
        port: int = 8080,
    ) -> Program:
        """Start in `folder`, the one place where it may write, with `env` and nothing else.

        `limits` are those of the tier that the runner stands for; None: its usual ones.
        """
