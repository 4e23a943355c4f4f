"""Landlock: which files, TCP ports and processes outside a process may reach.

Rights that the kernel does not know are left out, and `applied` tells by the version which hold.
Landlock hides nothing: names, sizes and times of files can still be asked for.
"""

import os
import stat
import struct
from collections.abc import Iterable
from pathlib import Path

from engines.process import kernel

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_READ = 1 | 4 | 8  # EXECUTE, READ_FILE, READ_DIR
_OF_A_FILE = 1 | 2 | 4 | 1 << 14 | 1 << 15  # all but what needs a folder
_O_PATH_CLOEXEC = 0o10000000 | os.O_CLOEXEC


def version() -> int:
    """Of the kernel's landlock. Raises OSError: it has none."""
    return kernel.call("syscall", "landlock", _CREATE, 0, 0, 1)


def restrict(
    *,
    readable: Iterable[str | Path] | None,
    writable: Iterable[str | Path],
    network: bool,
    ports: Iterable[int] = (),
) -> int:
    """Restrict this thread and what it starts, for good; the version that did it.

    `readable` None leaves all reading. Paths that do not exist are left out. Without `network`
    no TCP port but `ports` is reached (version 4). Abstract sockets and signals of processes
    outside are always out of reach (version 6).
    """
    known = version()
    files = (1 << (13 + (known >= 2) + (known >= 3) + (known >= 5))) - 1
    handled_ports = 3 if known >= 4 and not network else 0
    scoped = 3 if known >= 6 else 0
    handled = files & ~_READ if readable is None else files
    words = (handled, handled_ports, scoped)[: 1 + (known >= 4) + (known >= 6)]
    content = b"".join(word.to_bytes(8, "little") for word in words)
    ruleset = kernel.call("syscall", "landlock_create_ruleset", _CREATE, content, len(content), 0)
    try:
        for path in readable or ():
            _allow(ruleset, path, _READ & handled)
        for path in writable:
            _allow(ruleset, path, handled)
        for path in kernel.DEVICES:
            _allow(ruleset, path, _OF_A_FILE & handled)
        for port in ports if handled_ports else ():
            rule = struct.pack("<QQ", 2, port)  # CONNECT_TCP
            kernel.call("syscall", "landlock_add_rule", _ADD, ruleset, 2, rule, 0)
        kernel.prctl(38, 1)  # PR_SET_NO_NEW_PRIVS
        kernel.call("syscall", "landlock_restrict_self", _RESTRICT, ruleset, 0)
    finally:
        os.close(ruleset)
    return known


def _allow(ruleset: int, path: str | Path, rights: int) -> None:
    try:
        descriptor = os.open(path, _O_PATH_CLOEXEC)
    except OSError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rights &= _OF_A_FILE
        if rights:
            rule = rights.to_bytes(8, "little") + descriptor.to_bytes(4, "little")
            kernel.call("syscall", "landlock_add_rule", _ADD, ruleset, 1, rule, 0)
    finally:
        os.close(descriptor)
