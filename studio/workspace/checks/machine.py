"""The clock, the file system of the workspace, and the limit of open files.

Disk space and encoding are `studio.workspace.preflight`'s, since the start page shows them, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path

from studio.workspace.checks.finding import Finding

FEWEST_FILES = 1024
WRITTEN = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
"""No clock that goes right is before this."""
DRIFT_S, OFFSET_S = 0.5, 30.0
_QUARTER_S = 900.0
_MOUNTS = Path("/proc/self/mountinfo")
_NETWORK = (
    *("9p", "afs", "beegfs", "ceph", "cifs", "davfs", "drvfs", "glusterfs", "lustre", "ncpfs"),
    *("nfs", "nfs4", "prl_fs", "smb3", "smbfs", "vboxsf", "fuse.gcsfuse", "fuse.glusterfs"),
    *("fuse.rclone", "fuse.s3fs", "fuse.sshfs"),
)
"""Where rename, flock and fsync promise less, or nothing to another machine."""


@dataclass(frozen=True, slots=True)
class ClockReading:
    """Both clocks at one moment, in seconds."""

    wall: float
    monotonic: float

    @classmethod
    def now(cls) -> ClockReading:
        return cls(time.time(), time.monotonic())


def clock_offset(date: str, wall: float) -> float | None:
    """Seconds by which our clock is ahead of a `date` header; None: it cannot be read."""
    try:
        return wall - parsedate_to_datetime(date).timestamp()
    except ValueError:
        return None


def clock_findings(
    before: ClockReading,
    after: ClockReading,
    offsets: Iterable[tuple[str, float]],
    environ: Mapping[str, str],
) -> list[Finding]:
    """`offsets`: places that told the time, and by how many seconds our clock is ahead."""
    found: list[Finding] = []
    if after.wall < WRITTEN:
        day = datetime.fromtimestamp(after.wall, UTC).date()
        cause = f"it says {day}, before this program was written: no certificate is valid then."
        found.append(Finding("fix", "clock", cause, "Set it: timedatectl set-ntp true"))
    moved = (after.wall - before.wall) - (after.monotonic - before.monotonic)
    if abs(moved) > DRIFT_S:
        cause = f"it was set by {moved:+.1f} s while this was looked at."
        move = "Let one service set it (chrony, systemd-timesyncd), in small steps."
        found.append(Finding("note", "clock", cause, move))
    for place, offset in offsets:
        if abs(offset) <= OFFSET_S:
            continue
        cause = f"it is {abs(offset):,.0f} s {'ahead of' if offset > 0 else 'behind'} {place}"
        is_zone = abs(offset - round(offset / _QUARTER_S) * _QUARTER_S) < OFFSET_S
        cause += ", as if it held local time for UTC." if is_zone else "."
        move = "Set it: timedatectl set-ntp true. Until then waits that end at a date go wrong."
        found.append(Finding("note", "clock", cause, move))
    zone = environ.get("TZ", "").removeprefix(":")
    if zone and not _is_zone(zone):
        cause = f"TZ={zone} is not known here, so local times are shown in UTC."
        found.append(Finding("note", "TZ", cause, "Name one as Europe/Berlin, or install tzdata."))
    told = [abs(offset) for _, offset in offsets]
    agrees = f", within {max(told):.0f} s of the endpoints" if told else ""
    good = Finding(
        "ok", "clock", f"{datetime.fromtimestamp(after.wall, UTC):%F %H:%M} UTC{agrees}."
    )
    return found or [good]


def _is_zone(name: str) -> bool:
    if "/" not in name or name.startswith("/"):
        return True  # a rule, as CET-1CEST, or a file
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        return bool(ZoneInfo(name))
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return False


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
