"""Processes of ours that confine others: their start, the socket to them, its other end, a folder.

A process gets its order as one line of JSON. What else goes to and fro, its module says.
"""

import contextlib
import fcntl
import functools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

STUDIO = str(Path(__file__).parents[2])
"""The folder from which `engines` is imported."""
STARTED = b'{"error": ""}\n'
"""What is answered to an order once all is well."""
START_S = 60.0  # importing sympy takes 0.5 s on a quiet machine and many seconds on a full one
# One thread, because none may run when a process is forked.
_THREADS = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_KEPT = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "PYTHONHOME")


def bare_environment() -> dict[str, str]:
    """For code that the keys in our environment are no business of.

    The hash seed is fixed because sympy's choice between equal forms follows it.
    """
    return {name: os.environ[name] for name in _KEPT if name in os.environ} | {
        "PYTHONHASHSEED": "0"
    }


def start_python(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    *,
    paths: Iterable[str],
    stdin: int | IO[bytes] = subprocess.DEVNULL,
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start Python in a session of its own, with our end of a socket to it. Raises OSError.

    It imports from `paths`. Its last argument is the number of its own end. The session keeps
    Ctrl-C away from it, and lets it be killed together with its children.
    """
    ours, theirs = socket.socketpair()
    try:
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-P", *arguments, str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=stdin,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**environment, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, paths))},
                start_new_session=True,
            )
    except BaseException:
        ours.close()
        raise
    return process, ours


def start_module(
    module: str, order: Mapping[str, Any], *, stdin: int | IO[bytes] = subprocess.DEVNULL
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start a module of ours by `start_python`. Its socket waits for at most `START_S`."""
    environment = bare_environment() | _THREADS
    process, ours = start_python(["-s", "-m", module], environment, paths=[STUDIO], stdin=stdin)
    ours.settimeout(START_S)
    try:
        ours.sendall(json.dumps(order).encode() + b"\n")
    except OSError:
        ours.close()
        process.kill()
        process.wait()
        raise
    return process, ours


def receive_order(descriptor: int) -> tuple[socket.socket, dict[str, Any]]:
    """In the process that was started: its end of the socket, and its order."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = socket.socket(fileno=descriptor)
    control.set_inheritable(False)
    return control, json.loads(control.makefile("rb").readline())


def send(control: socket.socket, message: Mapping[str, Any]) -> None:
    control.sendall(json.dumps(message).encode() + b"\n")


def kill_session(process: subprocess.Popen[bytes]) -> None:
    """Kill a program of `start_python` with its children."""
    if process.returncode is None:  # later the id may be another process's
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()


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
