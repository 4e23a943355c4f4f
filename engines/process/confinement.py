"""Limits and layers that a process puts on itself, for good. Imports the standard library alone.

Namespaces are not among them: `template.py` and `launch.py` make those before they fork.
"""

import contextlib
import resource
import sys
from collections.abc import Collection, Iterable
from pathlib import Path

from engines.core.frozen import frozen
from engines.process import kernel, landlock, seccomp


@frozen
class Limits:
    """Resources of one child of a template, or of one program.

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


def confine(
    layers: Collection[str] | None,
    *,
    readable: Iterable[str | Path] | None,
    writable: Iterable[str | Path],
    code: bool,
    network: bool = False,
    ports: Iterable[int] = (),
) -> list[str]:
    """Put landlock and seccomp on this process, and return those that are now in force.

    Threads that run already are not confined. With landlock of version 6 no process outside can be
    signalled or traced.

    Args:
        layers: those that must hold, by name; None: those that the machine has.
        readable: what can be read; None leaves all reading.
        writable: what can be written, and nothing else.
        code: what runs here is this process alone: it has no sockets, children, other programs
            or capabilities, and nobody can look into it.
        network: leaves the network; without it a process has the TCP `ports` alone.
        ports: that may be connected to.

    Raises OSError: one of the `layers` cannot be had.
    """
    in_force: list[str] = []
    if sys.platform != "linux" or (layers is not None and not layers):
        return in_force
    if code:
        kernel.drop_capabilities()
    for name in ("landlock", "seccomp"):
        if layers is not None and name not in layers:
            continue
        try:
            if name == "landlock":
                landlock.restrict(
                    readable=readable, writable=writable, network=network, ports=ports
                )
            else:
                seccomp.install(code=code, streams_only=not network)
        except OSError:
            if layers is not None:
                raise
        else:
            in_force.append(name)
    if code:
        kernel.set_undumpable()
    return in_force
