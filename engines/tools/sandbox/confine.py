"""Layers put on the current process, for good. Imports the standard library alone.

`confine_worker` is for a process that was forked already and may use threads; whole namespaces
are `template.py`'s and `launch.py`'s.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

Tier = Literal["namespaces", "no-namespaces", "resource-limits-only"]


def confine_worker(
    tier: Tier | None = None,
    *,
    readable: Iterable[str | Path] | None,
    writable: Iterable[str | Path] = (),
    network: bool = False,
) -> list[str]:
    """Landlock and seccomp for the current process, as far as the machine has them.

    It can then write in `writable` alone, and signal, trace or read no process outside. Readable
    are the interpreter and `readable`; None leaves all reading. Without `network` it has no
    sockets, no child processes and no other program either. `tier` "resource-limits-only" applies
    nothing. Threads that run already are not confined. Returns the layers in force.
    """
    layers: list[str] = []
    if tier == "resource-limits-only" or sys.platform != "linux":
        return layers
    from engines.tools.sandbox.layers import landlock, namespaces, seccomp

    own = () if readable is None else namespaces.system_paths(programs=False)
    with contextlib.suppress(OSError):
        paths = None if readable is None else [*own, *readable]
        landlock.restrict(readable=paths, writable=writable, network=network)
        layers.append("landlock")
    with contextlib.suppress(OSError):
        seccomp.install(code=not network)
        layers.append("seccomp")
    return layers
