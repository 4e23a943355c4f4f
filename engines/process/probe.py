"""Tries each layer of a sandbox in a child of its own, and prints {layer: "ok" or why not} as JSON.

A layer holds when what it must prevent is prevented, not when its calls succeed. Started as a
module by `tiers.py`, on the way to a first request: it imports no more than it needs.
"""

import json
import os
import resource
import socket
import sys
from collections.abc import Callable
from contextlib import suppress

from engines.process import kernel, landlock, namespaces, seccomp


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
