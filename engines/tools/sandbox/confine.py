"""Layers put on the current process, for good. Imports the standard library alone.

Namespaces are `template.py`'s and `launch.py`'s, which make them before they fork.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Literal

from engines.tools.sandbox.layers import landlock, namespaces, seccomp

Tier = Literal["namespaces", "no-namespaces", "resource-limits-only"]


def confine(
    layers: Collection[str],
    *,
    readable: Iterable[str | Path] | None,
    writable: Iterable[str | Path],
    code: bool,
    network: bool = False,
    ports: Iterable[int] = (),
) -> None:
    """Landlock and seccomp where they are among `layers`. Raises OSError.

    `readable` None leaves all reading. `code` runs in this process and has no sockets, children
    or other programs. Others have no network but the TCP `ports`, or all with `network`.
    """
    if "landlock" in layers:
        landlock.restrict(readable=readable, writable=writable, network=network, ports=ports)
    if "seccomp" in layers:
        seccomp.install(code=code, streams_only=not network)


def confine_worker(
    tier: Tier | None = None,
    *,
    readable: Iterable[str | Path] | None,
    writable: Iterable[str | Path] = (),
    network: bool = False,
) -> list[str]:
    """Landlock and seccomp for the current process, as far as the machine has them.

    For one that was forked already and may use threads; those that run already are not confined.
    It can then write in `writable` alone, and signal, trace or read no process outside. Readable
    are the interpreter and `readable`; None leaves all reading. Without `network` it has no
    sockets, no child processes and no other program either. `tier` "resource-limits-only" applies
    nothing. Returns the layers in force.
    """
    layers: list[str] = []
    if tier == "resource-limits-only" or sys.platform != "linux":
        return layers
    own = namespaces.system_paths(programs=False)
    paths = None if readable is None else [*own, *readable]
    for layer in ("landlock", "seccomp"):
        with contextlib.suppress(OSError):
            confine([layer], readable=paths, writable=writable, code=not network, network=network)
            layers.append(layer)
    return layers
