"""Which layers of a sandbox this machine has.

Run as a module it tries each in a child of its own and prints {layer: "ok" or why not} as JSON. A
layer holds when what it must prevent is prevented, not when its calls succeed.

bubblewrap is not among them: it needs user namespaces as we do, and starts 20 times as slowly.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from engines.core.errors import StudioError
from engines.process import kernel, landlock, namespaces, seccomp
from engines.process.start import STUDIO

Tier = Literal["namespaces", "no-namespaces", "resource-limits-only"]

LAYERS = ("namespaces", "landlock", "seccomp", "resource limits")
PROBE_S = 30.0


class SandboxError(StudioError):
    """There is no sandbox here, or it cannot be started. What code does is a result instead."""

    @classmethod
    def of_start(cls, what: str, error: object) -> SandboxError:
        cause = f"{what} cannot be started ({error})."
        return cls("sandbox", cause, "Free processes and memory, and start again.")


@dataclass(frozen=True, slots=True)
class TierReport:
    tier: Tier
    layers: Mapping[str, str]
    """Each layer with "ok", or why it does not hold."""

    @property
    def in_force(self) -> list[str]:
        if self.tier == "resource-limits-only":
            return []
        return [name for name in LAYERS if self.holds(name)]

    @property
    def sentence(self) -> str:
        """The layers in force: "namespaces, landlock, seccomp, resource limits"."""
        return ", ".join(self.in_force) or "resource limits only: no sandbox"

    def holds(self, layer: str) -> bool:
        return self.layers.get(layer) == "ok"


_found: TierReport | None = None


async def find_tier() -> TierReport:
    """What holds here; tried once in a process of the studio."""
    global _found
    if _found is None:
        _found = choose_tier(await asyncio.to_thread(probe_layers))
    return _found


def choose_tier(layers: Mapping[str, str]) -> TierReport:
    held = {name for name, found in layers.items() if found == "ok"}
    tier: Tier = "resource-limits-only"
    if {"namespaces", "seccomp"} <= held:
        tier = "namespaces"
    elif {"landlock", "seccomp"} <= held:
        tier = "no-namespaces"
    return TierReport(tier, layers)


def probe_layers() -> dict[str, str]:
    """Try each layer in a process of its own: "ok", or why it does not hold."""
    if sys.platform != "linux":
        missing = dict.fromkeys(LAYERS[:-1], "only Linux has it")
        return {**missing, "resource limits": "ok"}
    # A file that every layer must hide; its folder is one that the interpreter does not need.
    with tempfile.NamedTemporaryFile() as secret:
        os.fchmod(secret.fileno(), 0o644)
        try:
            said = subprocess.check_output(
                [sys.executable, "-P", "-m", "engines.process.tiers", secret.name],
                stdin=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={"PYTHONPATH": STUDIO},
                start_new_session=True,
                timeout=PROBE_S,
            )
            found: dict[str, Any] = json.loads(said)
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            found = dict.fromkeys(LAYERS, f"the probe failed ({type(error).__name__})")
    return {name: str(found.get(name, "not tried")) for name in LAYERS}


def try_in_child(attempt: Callable[[], None]) -> str:
    """What `attempt` raised in a child of ours; "ok" for nothing."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        said = "ok"
        try:
            attempt()
        except BaseException as error:
            said = str(error) or type(error).__name__
        os.write(theirs, said.encode()[:1000])
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, "rb") as file:
        said = file.read().decode(errors="replace")
    os.waitpid(pid, 0)
    return said or "the child ended"


def expect(error: type[BaseException], what: str, attempt: Callable[[], object]) -> None:
    with suppress(error):
        attempt()
        raise RuntimeError(f"it does not prevent {what}")


def try_namespaces(secret: str, port: int) -> None:
    outside = os.getpid()
    namespaces.unshare_all(network=False)
    namespaces.build_root(namespaces.system_paths(programs=False), temporary_mb=0)

    def attempt() -> None:
        namespaces.mount_private(1)
        namespaces.become_nobody()
        expect(FileNotFoundError, "reading outside", lambda: os.open(secret, os.O_RDONLY))
        expect(OSError, "writing outside", lambda: os.open("/usr/.new", os.O_CREAT))
        expect(ProcessLookupError, "signals", lambda: os.kill(outside, 0))
        expect(OSError, "connections", lambda: socket.create_connection(("127.0.0.1", port)))
        with open(f"{namespaces.PRIVATE}/file", "wb", buffering=0) as file:
            written = file.write(bytes(2 << 20))
            if written > 1 << 20:
                raise RuntimeError("it does not prevent large files")

    said = try_in_child(attempt)
    if said != "ok":
        raise RuntimeError(said)


def try_landlock(secret: str, port: int) -> None:
    version = landlock.restrict(
        readable=namespaces.system_paths(programs=False), writable=(), network=False
    )
    expect(PermissionError, "reading outside", lambda: os.open(secret, os.O_RDONLY))
    expect(PermissionError, "writing outside", lambda: os.open(f"{secret}.new", os.O_CREAT))
    if version >= 4:
        address = ("127.0.0.1", port)
        expect(PermissionError, "connections", lambda: socket.create_connection(address))


def try_seccomp() -> None:
    seccomp.install(code=True)
    expect(PermissionError, "sockets", socket.socket)
    expect(PermissionError, "processes", lambda: os.fork() or os._exit(0))
    expect(PermissionError, "signals", lambda: os.kill(os.getppid(), 0))
    expect(PermissionError, "namespaces", lambda: kernel.unshare(kernel.CLONE_NEWUSER))


def try_limits() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (1 << 28, 1 << 28))
    expect(MemoryError, "large memory", lambda: bytearray(1 << 29))


def main(secret: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        found = {
            "namespaces": try_in_child(lambda: try_namespaces(secret, port)),
            "landlock": try_in_child(lambda: try_landlock(secret, port)),
            "seccomp": try_in_child(try_seccomp),
            "resource limits": try_in_child(try_limits),
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
