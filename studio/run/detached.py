"""A run's process, started so that it outlives the process that starts it.

It runs in a session of its own, out of reach of the terminal's signals, and writes to a pipe
which run it carries out, or why there is none.
"""

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from engines.core.errors import StudioError
from engines.core.frozen import frozen

MAX_OUTPUT = 200_000
"""Bytes kept of what a process prints before it is ready."""
_READ = 65_536


@frozen
class ReadyRun:
    """A run that can be attached to, or looked at: `pid` is 0 where no process has it."""

    run: str
    pid: int
    text: str = ""  # what was printed before: notes, and who reviews
    code: int = 0


@frozen
class RefusedStart:
    """Nothing was started: why, as the process printed it, and its exit code."""

    text: str
    code: int
    run: None = None


class StartingProcess:
    """A process that has not opened its run yet."""

    def __init__(self, child: subprocess.Popen[bytes], pipe: int) -> None:
        self._child, self._pipe = child, pipe
        self.output = b""  # of the process before its run is open, the last MAX_OUTPUT bytes
        self.outcome: ReadyRun | RefusedStart | None = None  # None: not known yet
        os.set_blocking(pipe, False)
        # A process that has ended stays in the system's table until its parent waits for it.
        threading.Thread(target=child.wait, name=f"reaping {child.pid}", daemon=True).start()

    @property
    def stage(self) -> str:
        """What it says it does now, such as "loading hf:tiny …"; "" before it said anything."""
        lines = self.output.decode("utf-8", "replace").splitlines()
        return next((line for line in reversed(lines) if line.endswith("…")), "")

    def fileno(self) -> int:
        """The end of the pipe that becomes readable; -1 once it is closed."""
        return self._pipe

    async def wait_ready(self) -> ReadyRun | RefusedStart:
        """Wait until its run is open or refused; may be called again after a cancellation."""
        loop, readable = asyncio.get_running_loop(), asyncio.Event()
        while self.outcome is None:
            readable.clear()
            loop.add_reader(self._pipe, readable.set)
            try:
                await readable.wait()
            finally:
                loop.remove_reader(self._pipe)
            if self.read_pipe():
                code = await asyncio.to_thread(self._child.wait)
                text = self.output.decode("utf-8", "replace").strip()
                self.outcome = RefusedStart(text or f"its process ended with code {code}", code)
        return self.outcome

    def close_pipe(self) -> None:
        """Stop listening; the process goes on."""
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1

    def read_pipe(self) -> bool:
        """Read what has come; True where the process closed the pipe and named no run."""
        try:
            read = os.read(self._pipe, _READ)
        except BlockingIOError:
            return False
        self.output = (self.output + read)[-MAX_OUTPUT:]
        *lines, _ = self.output.split(b"\n")
        for number, line in enumerate(lines):
            if (announced := _parse_announcement(line)) is not None:
                text = b"\n".join(lines[:number]).decode("utf-8", "replace")
                self.outcome = replace(announced, text=text)
                self.close_pipe()
                return False
        if not read:
            self.close_pipe()
        return not read


def studio_command(workspace: Path, *words: str) -> list[str]:
    """A command line of the studio for another process, whatever folder that is begun in."""
    # Not `-m studio`, which would put the current folder before the installed modules.
    program = "import sys; sys.path.append(sys.argv.pop(1)); from studio.cli import main; main()"
    code = str(Path(__file__).resolve().parents[2])
    return [sys.executable, "-P", "-c", program, code, "--workspace", str(workspace), *words]


def start(
    arguments: Sequence[str],
    workspace: Path,
    *,
    popen: Callable[..., subprocess.Popen[bytes]] = subprocess.Popen,
) -> StartingProcess:
    """Start `studio headless ARGUMENTS` on a workspace, as a process of its own."""
    ours, theirs = os.pipe()
    command = studio_command(workspace, "headless", f"--ready-fd={theirs}", *arguments)
    try:
        child = popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=theirs,
            pass_fds=(theirs,),
            # Ctrl-C and a hang-up of the terminal go to its session, which this process leaves.
            start_new_session=True,
        )
    except OSError as error:
        os.close(ours)
        raise StudioError(
            "studio headless", f"it cannot be started: {error.strerror}.", "Try again."
        ) from error
    finally:
        os.close(theirs)
    return StartingProcess(child, ours)


def announce(fd: int, run: str, pid: int, log: Path | None) -> None:
    """Write to the pipe which run is carried out by which process (0: by none), and close it.

    From then on all output goes to the log; None: nowhere. Nobody need listen any more: the
    process that started this one may have ended.
    """
    # Before the announcement: the notes of a start belong to what the other side reads.
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    with suppress(OSError):
        os.write(fd, json.dumps({"run": run, "pid": pid}).encode() + b"\n")
    with suppress(OSError):
        os.close(fd)
    redirected = _open_log(log)
    for number in (1, 2):
        os.dup2(redirected, number)
    os.close(redirected)


def _open_log(path: Path | None) -> int:
    if path is not None:
        with suppress(OSError):  # the journal reports a full disk
            return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    return os.open(os.devnull, os.O_WRONLY)


def _parse_announcement(line: bytes) -> ReadyRun | None:
    if not line.startswith(b'{"run": '):
        return None
    return ReadyRun(**json.loads(line))
