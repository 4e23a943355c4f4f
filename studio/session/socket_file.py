"""The file `control.sock` of a run: bound by its process, connected to by clients.

A process whose path is too long for a socket binds in a short private folder and leaves a link; a
client whose path is too long, naming the workspace another way, connects through an open folder.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from engines.core.errors import ConflictError

LONGEST_PATH = 100
"""Bytes: what sun_path holds on every platform, with room for the NUL."""
_PRIVATE = "studio-"
_NAME = "control.sock"
_OPENED = Path("/proc/self/fd")


class RunAddress(Protocol):
    """Where a run's process listens; a `RunDir` is one."""

    @property
    def run(self) -> str: ...

    @property
    def socket(self) -> Path: ...


@contextlib.contextmanager
def bind_path(path: Path, folders: Sequence[str] | None = None) -> Iterator[str]:
    """Where to bind: the path itself, or a short one it then links to.

    Whoever binds holds the run's lock: a socket found there was left by a killed process. A
    private folder is made in one of `folders`; None: in those for temporary files.

    Raises ConflictError: the path is too long, and no short folder can be made.
    """
    _remove_stale(path)
    # The absolute path, since a client may run in another folder.
    if len(os.fsencode(os.path.abspath(path))) <= LONGEST_PATH:
        try:
            yield str(path)
        finally:
            path.unlink(missing_ok=True)
        return
    private = _private_folder(path, _temporary_folders() if folders is None else folders)
    try:
        path.symlink_to(private / _NAME)
        yield str(private / _NAME)
    finally:
        path.unlink(missing_ok=True)
        shutil.rmtree(private, ignore_errors=True)


@contextlib.contextmanager
def connect_path(run: RunAddress) -> Iterator[str]:
    """A path to connect to for as long as the context lasts.

    Raises ConflictError: there is none that is short enough. OSError: the folder is not there.
    """
    path = run.socket
    if path.is_symlink():  # a process left it whose own path was too long
        path = Path(os.readlink(path))
    if len(os.fsencode(path)) <= LONGEST_PATH:
        yield str(path)
        return
    if _OPENED.is_dir():
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            yield str(_OPENED / str(folder) / path.name)
        finally:
            os.close(folder)
        return
    for other in (os.path.realpath(path), os.path.relpath(path)):
        if len(os.fsencode(other)) <= LONGEST_PATH:
            yield other
            return
    raise ConflictError(
        f"run {run.run}",
        f"the path of its socket has {len(os.fsencode(path))} bytes, and {LONGEST_PATH} can be "
        "connected to.",
        "Name the workspace by a shorter path, or go there first.",
    )


def check_owner(path: str, run: RunAddress, uid: int | None = None) -> None:
    """Refuse a socket of another user (`uid`; None: of this process) before anything is sent."""
    owner = os.stat(path).st_uid
    if owner != (os.getuid() if uid is None else uid):
        cause = f"its socket belongs to another user (uid {owner})."
        raise ConflictError(f"run {run.run}", cause, "Ask as that user, or look who put it there.")


def _remove_stale(path: Path) -> None:
    """Remove what a killed process left: the socket, or the link and its private folder."""
    if path.is_symlink():
        target = Path(os.readlink(path))
        folder = target.parent
        with contextlib.suppress(OSError):
            found = os.lstat(folder)
            ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
            private = folder.name.startswith(_PRIVATE) and stat.S_IMODE(found.st_mode) == 0o700
            if ours and private and target.name == _NAME:
                target.unlink(missing_ok=True)
                folder.rmdir()  # fails where it holds anything else: then it is not ours
    path.unlink(missing_ok=True)


def _temporary_folders() -> list[str]:
    folders = [os.environ.get("XDG_RUNTIME_DIR") or "", "/tmp"]
    with contextlib.suppress(FileNotFoundError):  # none can be written to
        folders.insert(0, tempfile.gettempdir())
    return folders


def _private_folder(path: Path, folders: Sequence[str]) -> Path:
    """A new folder of mode 0700 with a short name."""
    for parent in folders:
        longest = len(os.fsencode(parent)) + len(f"/{_PRIVATE}12345678/{_NAME}")
        if not os.path.isabs(parent) or longest > LONGEST_PATH:
            continue
        with contextlib.suppress(OSError):
            return Path(tempfile.mkdtemp(prefix=_PRIVATE, dir=parent))
    raise ConflictError(
        str(path),
        f"its path is too long for a socket ({LONGEST_PATH} bytes at most), and no short folder "
        "for temporary files can be written to.",
        "Set TMPDIR to one, or choose a --workspace with a shorter path.",
    )
