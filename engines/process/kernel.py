"""Calls of the Linux kernel that Python 3.11 has no function for. Raises OSError with their name.

Loads the C library that is there already; nothing is looked up by name.
"""

import ctypes
import os
import platform
import struct
import sys
from collections.abc import Iterable
from typing import Any

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

DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
"""Those that every program may use."""

# Beyond number 423 all machines count alike.
_MOUNT_SETATTR = 442
_PIVOT_ROOT, _CAPSET = (155, 126) if IS_X86 else (41, 91)


def call(function: str, what: str, *arguments: int | str | bytes | ctypes.Array[Any] | None) -> int:
    """A function of the C library: texts and arrays go as pointers, numbers as machine words."""
    words = [
        ctypes.c_long(a) if isinstance(a, int) else os.fsencode(a) if isinstance(a, str) else a
        for a in arguments
    ]
    result: int = getattr(_LIBC, function)(*words)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def prctl(option: int, *values: int) -> None:
    call("prctl", f"prctl {option}", option, *(*values, 0, 0, 0, 0)[:4])


def unshare(flags: int) -> None:
    call("unshare", "unshare", flags)


def mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    call("mount", f"mount {target}", source, target, kind, flags, options or None)


def restrict_mount(target: str, attributes: int = READ_ONLY | NO_SETUID, *, deep: bool) -> None:
    # Unlike a remount it only adds flags, so that those we may not touch stay as they are.
    words = struct.pack("<4Q", attributes, 0, 0, 0)
    flags, what = (_AT_RECURSIVE if deep else 0), f"mount_setattr {target}"
    call("syscall", what, _MOUNT_SETATTR, _AT_FDCWD, target, flags, words, len(words))


def pivot_root(new: str, old: str) -> None:
    call("syscall", "pivot_root", _PIVOT_ROOT, new, old)


def drop_capabilities() -> None:
    """For good: with no new privileges, no program that is run gets them back."""
    prctl(38, 1)  # PR_SET_NO_NEW_PRIVS
    header = struct.pack("<II", 0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3
    call("syscall", "capset", _CAPSET, header, bytes(24))


def set_undumpable() -> None:
    """Let no other process of the user attach to this one, or read its memory or environment."""
    if sys.platform == "linux":
        prctl(4, 0)  # PR_SET_DUMPABLE


def die_with_parent() -> None:
    """To be called after a change of user, which forgets it. Other systems have no such thing."""
    if sys.platform == "linux":
        prctl(1, 9)  # PR_SET_PDEATHSIG


def write_id_maps(pid: int | str, users: Iterable[int], groups: Iterable[int]) -> None:
    """Let these keep their numbers inside a new user namespace."""
    for name, ids in (("uid_map", users), ("gid_map", groups)):
        with open(f"/proc/{pid}/{name}", "wb", buffering=0) as file:
            # One write: the kernel takes the whole map or none.
            file.write("".join(f"{number} {number} 1\n" for number in ids).encode())
