"""What a program in the sandbox may use."""

from __future__ import annotations

import contextlib
import resource
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one interpreter of a session, or of one program.

    Memory is address space, counted for each process by itself and on top of what the interpreter
    has when it starts. Output is stdout and stderr together, in bytes; a program's is not limited,
    only its tail is kept. Disk is all private temporary files together; without namespaces, and
    in the folder of a program, it is each file by itself.
    """

    wall_s: float = 10.0
    """One call; for a program, its life."""
    cpu_s: float = 60.0
    """All calls of one interpreter together; each process of a program by itself."""
    memory_mb: int = 512
    output_chars: int = 200_000
    disk_mb: int = 16
    processes: int = 64
    """Threads and processes. Without namespaces an interpreter has no processes anyhow, its threads
    are held by its memory, and a program run by the administrator has no limit."""


def limit_resources(
    limits: Limits, *, used_bytes: int = 0, processes: int | None = None, files: int = 64
) -> None:
    """Set the hard limits of this process and its children; no privilege raises them again."""
    disk = limits.disk_mb << 20
    memory = used_bytes + (limits.memory_mb << 20)
    cpu = max(1, round(limits.cpu_s))
    bounds = {"CORE": 0, "CPU": cpu, "FSIZE": disk, "NOFILE": files, "AS": memory, "MSGQUEUE": 0}
    if processes is not None:
        bounds["NPROC"] = processes
    for name, bound in bounds.items():
        # macOS knows RLIMIT_AS but may refuse it, and has no RLIMIT_MSGQUEUE.
        with contextlib.suppress(AttributeError, OSError, ValueError):
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (bound, bound))
