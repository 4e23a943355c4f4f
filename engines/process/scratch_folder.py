"""Temporary folders that do not outlive a process that is killed."""

import contextlib
import fcntl
import functools
import os
import shutil
import tempfile
import time
from pathlib import Path

NEW_S = 60.0  # one that is younger may not be locked yet


class ScratchFolder:
    """A folder in the temporary folder, locked while its owner lives."""

    def __init__(self, prefix: str) -> None:
        remove_stale(prefix)
        self.path = tempfile.mkdtemp(prefix=prefix)
        self._lock = os.open(self.path, os.O_RDONLY)
        fcntl.flock(self._lock, fcntl.LOCK_SH)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


@functools.cache
def remove_stale(prefix: str) -> None:
    """Remove folders whose owner was killed; once in a process."""
    for path in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            if path.is_symlink() or time.time() - path.stat().st_mtime < NEW_S:
                continue
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)
