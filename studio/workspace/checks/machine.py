"""The file system of the workspace, and the limit of open files.

Disk space and encoding are `studio.workspace.preflight`'s, since the start page shows them, too.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from engines.record.repair import Finding

FEWEST_FILES = 1024
_MOUNTS = Path("/proc/self/mountinfo")
_NETWORK = (
    *("9p", "afs", "beegfs", "ceph", "cifs", "davfs", "drvfs", "glusterfs", "lustre", "ncpfs"),
    *("nfs", "nfs4", "prl_fs", "smb3", "smbfs", "vboxsf", "fuse.gcsfuse", "fuse.glusterfs"),
    *("fuse.rclone", "fuse.s3fs", "fuse.sshfs"),
)
"""Where rename, flock and fsync promise less, or nothing to another machine."""


def disk_findings(
    folder: Path, limit: Callable[[], int | None], mounts: Callable[[], str]
) -> list[Finding]:
    """What the workspace lies on, and how many files may be open; both as they are asked for."""
    kind = file_system(folder.absolute(), mounts())
    found = []
    if kind in _NETWORK:
        cause = f"it lies on {kind}: what was written may be lost, and locks may not hold, there."
        move = "Use a --workspace on a local disk, and copy it when a run has ended."
        found.append(Finding("note", str(folder), cause, move))
    if (files := limit()) is not None and files < FEWEST_FILES:
        cause = f"only {files} may be open at a time: many calls at once will fail."
        found.append(Finding("note", "open files", cause, f"Run: ulimit -n {4 * FEWEST_FILES}"))
    if not found:
        most = "any number of" if files is None else f"{files:,}"
        found.append(Finding("ok", "disk", f"{kind or 'a file system'}, {most} open files."))
    return found


def open_files_limit() -> int | None:
    """How many files this process may have open; None: any number, or the platform has none."""
    try:
        import resource
    except ImportError:
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def read_mounts() -> str:
    """What is mounted, as Linux tells it; "" elsewhere."""
    try:
        return _MOUNTS.read_text("utf-8", "replace")
    except OSError:
        return ""


def file_system(folder: Path, mounts: str) -> str:
    """The kind of file system that a folder lies on; "" where that is not known."""
    best, kind = -1, ""
    for line in mounts.splitlines():
        where, _, rest = line.partition(" - ")
        point = where.split(" ")[4].replace("\\040", " ") if where.count(" ") >= 4 else ""
        # Of two that are mounted at one place the later one is seen.
        if point and folder.is_relative_to(point) and len(point) >= best:
            best, kind = len(point), rest.split(" ")[0]
    return kind
