"""Who may write: one process holds the lock of a run or library folder at a time.

The lock is the operating system's (flock), so it goes with the process that held it,
however that ended.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from engines.core.errors import LockedError
from engines.record.appender import make_private_folder, unwritable_error

ANOTHER = "another process"


@contextmanager
def write_lock(
    folder: Path,
    *,
    timeout_s: float = 0.0,
    who: str = ANOTHER,
    move: str = "Wait until it is done, or end it.",
) -> Iterator[None]:
    """Hold the folder's lock; raises LockedError after `timeout_s`, saying who holds it."""
    try:
        make_private_folder(folder)
        lock = FileLock(folder / ".lock", mode=0o600)
        lock.acquire(timeout=timeout_s)
    except Timeout as error:
        pid, holder = _read_holder(folder)
        raise LockedError(
            str(folder),
            f"{holder if pid is None else f'{holder} (pid {pid})'} is writing here.",
            move,
        ) from error
    except OSError as error:
        raise unwritable_error(folder, error) from error
    name = folder / ".holder"
    try:
        with suppress(OSError):  # it only tells others who we are; a full disk must not matter
            fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(fd, "w") as file:
                file.write(f"{os.getpid()}" + (f"\n{who}" if who != ANOTHER else ""))
        yield
    finally:
        name.unlink(missing_ok=True)
        lock.release()


def check_lockable(folder: Path) -> None:
    """Raise the RecordError that a lock would, before anything is spent; nothing is written."""
    there = next(place for place in (folder, *folder.parents) if place.is_dir())
    if not os.access(there, os.W_OK | os.X_OK):
        raise unwritable_error(folder, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))


def is_held(folder: Path) -> bool:
    """Whether some process is writing there right now; asking creates nothing."""
    if not os.path.exists(folder / ".lock"):
        return False
    try:
        with FileLock(folder / ".lock", mode=0o600).acquire(timeout=0):
            return False
    except Timeout:
        return True
    except OSError:  # who may not open the lock cannot be told who holds it
        return False


def holder_pid(folder: Path) -> int | None:
    """The process that says it is writing there; None where none does."""
    return _read_holder(folder)[0]


def _read_holder(folder: Path) -> tuple[int | None, str]:
    """What the holder wrote of itself: its process, and who that is."""
    try:
        pid, _, who = (folder / ".holder").read_text().partition("\n")
        return int(pid), who or ANOTHER
    except (OSError, ValueError):
        return None, ANOTHER
