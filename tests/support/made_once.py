"""Folders that take long to make, made once for all workers of a test run."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

_folder: Path | None = None


def keep_in(folder: Path) -> None:
    """Make folders in here from now on; all workers of a run name the same one."""
    global _folder
    _folder = folder


def made_once(name: str, make: Callable[[Path], object]) -> Path:
    """A folder of that name, which `make` fills when it is first asked for.

    Whoever wants to change what is in it works on a copy.

    Args:
        name: of the folder; one name, one content.
        make: gets the empty folder. What it raises goes on, and the next one tries again.
    """
    global _folder
    if _folder is None:  # outside of pytest, as in a benchmark
        _folder = Path(tempfile.mkdtemp(prefix="made-once-"))
    folder, done = _folder / name, _folder / f"{name}.done"
    # A worker that dies leaves the lock free, and a folder without its mark.
    with FileLock(_folder / f"{name}.lock", timeout=800):
        if not done.exists():
            attempt = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=_folder))
            make(attempt)
            attempt.rename(folder)
            done.touch()
    return folder
