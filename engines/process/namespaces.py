"""Namespaces of our own: an empty network, no other process, and files that are chosen.

What is mounted is read-only but for `writable` and the private temporary files. Raises OSError
where the machine does not allow it; the process is then good for nothing but to end.
"""

import contextlib
import os
import sys
import sysconfig
from collections.abc import Iterable

from engines.process import kernel

NOBODY = 65534
PRIVATE = "/home/agent"
"""Where `mount_private` mounts: /tmp leads there unless something readable lies in /tmp."""

_SYSTEM = ("/usr", "/bin", "/lib", "/lib32", "/lib64", "/sbin", "/opt")
_SETTINGS = (
    *("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "localtime", "passwd", "group"),
    *("hosts", "nsswitch.conf", "resolv.conf", "ssl/certs", "ssl/openssl.cnf", "mime.types"),
)


def system_paths(*, programs: bool) -> list[str]:
    """What the interpreter, or any program of the system, needs to read."""
    paths = {sys.prefix, sys.base_prefix, *sysconfig.get_paths().values()}
    if programs:
        paths |= {*_SYSTEM, *(f"/etc/{name}" for name in _SETTINGS)}
    elif sys.platform == "linux":
        libraries = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib")
        paths |= {*libraries, "/usr/share/zoneinfo", "/etc/ld.so.cache", "/etc/localtime"}
    return sorted(path for path in paths if os.path.exists(path))


def unshare_all(*, network: bool) -> None:
    """Leave the studio's namespaces; the next child is the first process of the new ones.

    To be called with one thread. An ordinary user keeps its number; the administrator keeps its
    own too, until `become_nobody`.
    """
    user, group = os.geteuid(), os.getegid()
    flags = kernel.CLONE_NEWNS | kernel.CLONE_NEWPID | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS
    flags |= kernel.CLONE_NEWUSER | (0 if network else kernel.CLONE_NEWNET)
    if user == 0:
        _unshare_as_root(flags)
        return
    kernel.unshare(flags)
    with open("/proc/self/setgroups", "wb", buffering=0) as file:
        file.write(b"deny")
    kernel.write_id_maps("self", [user], [group])


def _unshare_as_root(flags: int) -> None:
    # Two users need a map that is written from outside: a child stays there for it.
    ready, tell = os.pipe()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        code = 1
        with contextlib.suppress(OSError):
            os.close(tell)
            if os.read(ready, 1):
                kernel.write_id_maps(parent, [0, NOBODY], [0, NOBODY])
                code = 0
        os._exit(code)
    os.close(ready)
    try:
        kernel.unshare(flags)
        os.write(tell, b"x")
    finally:
        os.close(tell)
        _, status = os.waitpid(child, 0)
    if status:
        raise OSError("the users of the namespace cannot be named")


def become_nobody() -> None:
    """Give up the administrator's number, where we have it, and every capability."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    kernel.drop_capabilities()


def give_to_nobody(folder: str) -> None:
    """Let the program that runs as nobody have a folder of its own."""
    for root, folders, files in os.walk(folder):
        for name in (".", *folders, *files):
            os.chown(os.path.join(root, name), NOBODY, NOBODY, follow_symlinks=False)


def build_root(readable: Iterable[str], *, writable: Iterable[str] = (), temporary_mb: int) -> None:
    """Make a root of our own from the given paths, and forget all others.

    With `temporary_mb` there is a /tmp of that size, and a /proc of the caller's namespace;
    without, the place of `mount_private`.
    """
    chosen = {**dict.fromkeys(readable, True), **dict.fromkeys(writable, False)}
    chosen |= dict.fromkeys(kernel.DEVICES, False)
    targets = {path: os.path.realpath(path) for path in chosen if os.path.exists(path)}
    kernel.mount("none", "/", None, kernel.MS_PRIVATE_REC)
    kernel.mount("tmpfs", "/tmp", "tmpfs", kernel.MS_NOSUID_NODEV, "mode=755")
    os.mkdir("/tmp/old")
    os.chdir("/tmp")
    kernel.pivot_root(".", "old")
    os.chdir("/")
    if temporary_mb:
        os.mkdir("/tmp")
        _mount_files("/tmp", temporary_mb)
    # Folders before what lies in them, so that a mount hides none that was made before.
    read_only = {targets[path]: read for path, read in chosen.items() if path in targets}
    done: dict[str, bool] = {}
    for path in sorted(read_only):
        if not (read_only[path] and any(_lies_in(path, other) for other in done if done[other])):
            _bind(path, read_only[path])
            done[path] = read_only[path]
    for path, target in targets.items():
        if not os.path.lexists(path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.symlink(target, path)
    if not temporary_mb:
        os.makedirs(PRIVATE, exist_ok=True)
        if not os.path.lexists("/tmp"):
            os.symlink(PRIVATE, "/tmp")
    os.makedirs("/proc", exist_ok=True)
    if temporary_mb:
        # Before the old one goes: with nothing to compare, or parts of it hidden by a container,
        # the kernel allows no other, and the program does without.
        with contextlib.suppress(OSError):
            kernel.mount("proc", "/proc", "proc", kernel.MS_NOSUID_NODEV | kernel.MS_NOEXEC)
    kernel.call("umount2", "unmount", "/old", kernel.MNT_DETACH)
    os.rmdir("/old")
    kernel.restrict_mount("/", deep=False)


def mount_private(limit_mb: int) -> None:
    """Temporary files of this process and its children, gone when the last of them is."""
    kernel.unshare(kernel.CLONE_NEWNS)
    _mount_files(PRIVATE, limit_mb)
    os.chdir(PRIVATE)


def _mount_files(place: str, limit_mb: int) -> None:
    owner = NOBODY if os.geteuid() == 0 else os.geteuid()
    options = f"size={limit_mb}m,nr_inodes=4096,mode=700,uid={owner}"
    kernel.mount("tmpfs", place, "tmpfs", kernel.MS_NOSUID_NODEV, options)


def _bind(path: str, read_only: bool) -> None:
    source = f"/old{path}"
    if os.path.isdir(source):
        os.makedirs(path, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if not os.path.lexists(path):
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
    kernel.mount(source, path, None, kernel.MS_BIND_REC)
    attributes = kernel.NO_SETUID | (kernel.READ_ONLY if read_only else 0)
    kernel.restrict_mount(path, attributes, deep=True)


def _lies_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")
