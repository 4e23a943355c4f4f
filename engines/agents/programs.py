"""Programs as agents and graders start them; the boxes themselves are the sandbox's.

Nothing here is imported by what implements it: the tiers that contain programs fit by their shape.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol


class ProgramResult(Protocol):
    """How a program ended. Of its outputs the last part is kept."""

    status: str  # "ok", "error" (it failed by itself), "timeout" or "killed"
    returncode: int | None
    stdout: str
    stderr: str
    error: str  # what its box says of it; "" where that is nothing


class Program(Protocol):
    """A program that was started."""

    listener: socket.socket | None
    """Listens on 127.0.0.1 of the program's own network; None where it shares ours."""

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
        network: Literal["none", "public"] = "none",
        port: int = 8080,
        limits: Any = None,
    ) -> Any:
        """A `Program` in `folder`, the one place where it may write, with `env` alone.

        With network "none" it reaches 127.0.0.1:`port` and nothing else.
        """
