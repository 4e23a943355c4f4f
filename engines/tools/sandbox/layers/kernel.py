"""Calls of the Linux kernel that Python 3.11 has no function for. Raises OSError with their name.

Loads the C library that is there already; nothing is looked up by name.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from collections.abc import Mapping

IS_X86 = platform.machine() in ("x86_64", "AMD64")

_LIBC = ctypes.CDLL(None, use_errno=True)

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_NOSUID_NODEV = 2 | 4
MS_NOEXEC = 8
MS_BIND_REC = 0x1000 | 0x4000
MS_PRIVATE_REC = 0x40000 | 0x4000
MNT_DETACH = 2
READ_ONLY, NO_SETUID = 1, 2  # MOUNT_ATTR_…
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000

# Beyond number 423 all machines count alike.
_MOUNT_SETATTR = 442
_PIVOT_ROOT, _CAPSET = (155, 126) if IS_X86 else (41, 91)


def check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def syscall(number: int, what: str, *arguments: int | bytes | ctypes.Array[ctypes.c_char]) -> int:
    """A system call by number; bytes and arrays go as pointers, numbers as machine words."""
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return check(_LIBC.syscall(ctypes.c_long(number), *words), what)


def prctl(option: int, *values: int) -> int:
    words = [ctypes.c_ulong(value) for value in (*values, 0, 0, 0, 0)[:4]]
    return check(_LIBC.prctl(option, *words), f"prctl {option}")


def unshare(flags: int) -> None:
    check(_LIBC.unshare(flags), "unshare")


def setns(descriptor: int, kind: int) -> None:
    check(_LIBC.setns(descriptor, kind), "setns")


def mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    done = _LIBC.mount(
        os.fsencode(source),
        os.fsencode(target),
        kind.encode() if kind else None,
        ctypes.c_ulong(flags),
        options.encode() or None,
    )
    check(done, f"mount {target}")


def unmount(target: str) -> None:
    check(_LIBC.umount2(os.fsencode(target), MNT_DETACH), f"unmount {target}")


def restrict_mount(target: str, attributes: int = READ_ONLY | NO_SETUID, *, deep: bool) -> None:
    # Unlike a remount it only adds flags, so that those we may not touch stay as they are.
    words = b"".join(n.to_bytes(8, "little") for n in (attributes, 0, 0, 0))
    flags = _AT_RECURSIVE if deep else 0
    path = os.fsencode(target)
    syscall(_MOUNT_SETATTR, f"mount_setattr {target}", _AT_FDCWD, path, flags, words, len(words))


def pivot_root(new: str, old: str) -> None:
    syscall(_PIVOT_ROOT, "pivot_root", os.fsencode(new), os.fsencode(old))


def drop_capabilities() -> None:
    """For good: with no new privileges, no program that is run gets them back."""
    prctl(38, 1)  # PR_SET_NO_NEW_PRIVS
    header = (0x20080522).to_bytes(4, "little") + bytes(4)  # _LINUX_CAPABILITY_VERSION_3
    syscall(_CAPSET, "capset", header, bytes(24))


def set_undumpable() -> None:
    prctl(4, 0)


def die_with_parent() -> None:
    """To be called after a change of user, which forgets it. Other systems have no such thing."""
    if sys.platform == "linux":
        prctl(1, 9)  # PR_SET_PDEATHSIG


def write_id_maps(pid: int | str, uids: Mapping[int, int], gids: Mapping[int, int]) -> None:
    """Name users and groups inside a new user namespace: {inside: outside}."""
    for name, ids in (("uid_map", uids), ("gid_map", gids)):
        with open(f"/proc/{pid}/{name}", "wb", buffering=0) as file:
            # One write: the kernel takes the whole map or none.
            file.write("\n".join(f"{a} {b} 1" for a, b in ids.items()).encode())
