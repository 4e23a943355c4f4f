"""Our ends of the processes of `worker.py`: the template, and a worker forked from it.

Owns starting and ending them and the lines that travel. Does not decide when: the
deadline and the order of questions are `worker_pool`'s.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

START_S = 60.0  # importing sympy takes 0.5 s on a quiet machine and many seconds on a full one


@dataclass(frozen=True, slots=True)
class Trouble:
    """A question that has no answer, and why."""

    kind: Literal["timeout", "too long", "failed"]
    text: str


Answer = Mapping[str, Any] | Trouble


class Worker(asyncio.Protocol):
    """Our end of one worker's socket; lines are kept even when nobody waits for them."""

    def __init__(self) -> None:
        self.pid = 0
        self.sent = 0  # questions on their way or in work
        self.usable = True  # False once it missed a deadline or ended
        self._lines: deque[bytes] = deque()
        self._rest = b""
        self._waiter: asyncio.Future[None] | None = None
        self._transport: asyncio.Transport | None = None
        self.gone = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._lines.extend(lines)
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone.set()
        self._wake()

    def _wake(self) -> None:
        if self._waiter and not self._waiter.done():
            self._waiter.set_result(None)

    def send(self, data: bytes) -> None:
        if self._transport:
            self._transport.write(data)

    async def answer(self, deadline_s: float) -> Answer:
        """The next answer. One that arrived while our own loop was stalled still counts."""
        if not self._lines and not self.gone.is_set():
            self._waiter = asyncio.get_running_loop().create_future()
            await asyncio.wait({self._waiter}, timeout=deadline_s)
        if self._lines:
            self.sent -= 1
            answer: Mapping[str, Any] = json.loads(self._lines.popleft())
            if "error" not in answer:
                return answer
            return Trouble(answer.get("kind", "failed"), str(answer["error"]))
        self.usable = False
        if self.gone.is_set():
            return Trouble("failed", "the checking process ended (out of memory or crashed)")
        return Trouble("timeout", f"no verdict within {deadline_s:g} s")

    async def close(self) -> None:
        if self._transport:
            self._transport.abort()
            await self.gone.wait()


class Template:
    """The process that workers are forked from."""

    def __init__(self, task: str, memory_mb: int) -> None:
        ours, theirs = socket.socketpair()
        program = Path(__file__).with_name("worker.py")
        # Keys in our environment are not the workers' business. The hash seed is fixed
        # because sympy's choice between equal forms follows it.
        kept = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "PYTHONHOME")
        environment = {name: os.environ[name] for name in kept if name in os.environ}
        environment |= {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
        environment |= {"PYTHONHASHSEED": "0"}
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", str(program), task, str(memory_mb << 20), str(os.getpid())],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
                cwd="/",
                start_new_session=True,  # Ctrl-C in the terminal is for the studio alone
            )
        ours.setblocking(False)
        self._control = ours
        self.ready = False  # True once it listens: until then the socket's end tells it nothing

    async def reply(self) -> Mapping[str, Any]:
        """Raises OSError when the template is gone or silent for `START_S`."""
        line = b""
        try:
            async with asyncio.timeout(START_S):
                while not line.endswith(b"\n"):
                    part = await asyncio.get_running_loop().sock_recv(self._control, 4096)
                    if not part:
                        raise ConnectionError("it ended unexpectedly")
                    line += part
        except TimeoutError as error:
            raise ConnectionError(f"it was silent for {START_S:g} s") from error
        reply: Mapping[str, Any] = json.loads(line)
        if "error" in reply:
            raise OSError(str(reply["error"]))
        self.ready = True
        return reply

    async def fork(self, kill: int) -> Worker:
        """Replace worker `kill` (0: none) by a new one."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                socket.send_fds(
                    self._control, [json.dumps({"kill": kill}).encode()], [theirs.fileno()]
                )
            reply = await self.reply()
            ours.setblocking(False)
            _, worker = await asyncio.get_running_loop().create_unix_connection(Worker, sock=ours)
        except BaseException:
            ours.close()
            raise
        worker.pid = reply["pid"]
        return worker

    async def close(self) -> None:
        """End it with its workers, which it kills when our end of the socket closes."""
        self._control.close()
        if not self.ready:
            self.process.kill()
        try:
            await asyncio.to_thread(self.process.wait, 5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            await asyncio.to_thread(self.process.wait)
