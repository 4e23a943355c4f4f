"""The file `control.sock` of a run: bound by its process, connected to and asked by clients.

A process whose path is too long for a socket binds in a short private folder and leaves a link; a
client whose path is too long, naming the workspace another way, connects through an open folder.
"""

import contextlib
import json
import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from engines.core.errors import ConflictError
from studio.session import requests

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
        raise ConflictError(
            f"run {run.run}",
            f"its socket belongs to another user (uid {owner}).",
            "Ask as that user, or look who put it there.",
        )


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


T = TypeVar("T")

CONNECT_S, ANSWER_S = 2.0, 20.0
"""A process that is suspended takes requests, until its queue is full, and answers none."""


def ask(run: RunAddress, request: requests.Request[T]) -> T:
    """Send one request to a running process and return its answer.

    Raises NotRunningError: no process of that run answers. StudioError: the run refused, with its
    own words.
    """
    with _ask(run, request) as (answer, _):
        return answer


def watch(run: RunAddress) -> Iterator[dict[str, Any]]:
    """Yield where a run stands, as `Watching`, then its events until its process ends.

    `Watching.events` says how many durable events came before the first one that follows.
    """
    with _ask(run, requests.Watch()) as (answer, file):
        yield {"kind": "Watching", **answer}
        with contextlib.suppress(ConnectionError):  # the process was killed: that is the end
            for line in file:
                if line.endswith(b"\n"):  # else the process was killed within it
                    yield json.loads(line)["event"]


def is_alive(run: RunAddress) -> bool:
    """Whether a process answers that run's socket.

    Raises ConflictError: the path of the socket is too long to be connected to.
    """
    if not os.path.lexists(run.socket):  # most of hundreds that are listed
        return False
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(CONNECT_S)
        try:
            with connect_path(run) as path:
                connection.connect(path)
        except (TimeoutError, BlockingIOError):  # others wait for it, too
            return True
        except OSError:
            return False
    return True


@contextlib.contextmanager
def _ask(run: RunAddress, request: requests.Request[T]) -> Iterator[tuple[T, Any]]:
    """The answer to a request, and the file from which what follows is read."""
    sent = requests.request_line(request)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(ANSWER_S)
        try:
            with connect_path(run) as path:
                check_owner(path, run)
                connection.connect(path)
        except (TimeoutError, BlockingIOError) as error:  # the queue of requests is full
            raise requests.silent_error(run.run) from error
        except OSError as error:
            raise requests.not_running_error(run.run) from error
        try:
            with connection.makefile("rwb") as file:
                file.write(sent)
                file.flush()
                line = file.readline()  # however long: it comes from a process of our own user
                if not line.endswith(b"\n"):  # nothing, or cut within it
                    raise requests.ended_early_error(run.run)
                connection.settimeout(None)  # what follows comes when it happens
                yield requests.parse_answer(request, json.loads(line)), file
        except TimeoutError as error:
            raise requests.silent_error(run.run) from error
        except ConnectionError as error:
            raise requests.ended_early_error(run.run) from error
