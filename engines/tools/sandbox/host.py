"""Our end of the template process of `template.py`: its start, its orders, its end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from engines.tools.sandbox.errors import SandboxError
from engines.tools.sandbox.limits import Limits
from engines.tools.sandbox.tiers import STUDIO, TierReport

T = TypeVar("T")

START_S = 60.0  # importing sympy takes 0.5 s on a quiet machine and many seconds on a full one
# Keys in our environment are not the code's business. The hash seed is fixed because sympy's
# choice between equal forms follows it; one thread, because none may run when a process is forked.
_ENVIRONMENT = {
    "PYTHONHASHSEED": "0",
    **dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
}
_KEPT = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "PYTHONHOME")


def start_module(
    module: str, environment: Mapping[str, str]
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start a module of ours in a session of its own, with our end of a socket to it."""
    ours, theirs = socket.socketpair()
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    try:
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-P", "-s", "-m", module, str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**kept, **environment, "PYTHONPATH": STUDIO},
                start_new_session=True,
            )
    except BaseException:
        ours.close()
        raise
    ours.setblocking(False)
    return process, ours


async def finish(doing: Coroutine[Any, Any, T]) -> T:
    """Await something short to its end, also where we are cancelled.

    An order given up halfway would end the template, and with it the interpreters of others.
    """
    task = asyncio.create_task(doing)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


class Host:
    def __init__(self, limits: Limits, report: TierReport, preload: Sequence[str]) -> None:
        self._order = {
            "tier": report.tier,
            "landlock": report.holds("landlock"),
            "limits": asdict(limits),
            "preload": list(preload),
            "studio": STUDIO,
            # Those of the user, or given by an environment variable, are not found otherwise.
            "packages": [path for path in sys.path if path.endswith("-packages")],
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._closed = False
        # Protects the control socket: its replies carry no name, so one order at a time.
        self._ordering = asyncio.Lock()

    async def start(self) -> None:
        async with self._ordering:
            if self._control is not None:
                return
            if self._closed:
                raise SandboxError("sandbox", "it was closed.", "Start it again.")
            try:
                self._process, self._control = start_module(
                    "engines.tools.sandbox.template", _ENVIRONMENT
                )
                await self._ask(self._order)
            except (OSError, ValueError) as error:
                await self._end()
                raise SandboxError(
                    "sandbox",
                    f"its first process cannot be started ({error}).",
                    "Free processes and memory, and start again.",
                ) from error

    async def fork(
        self, folder: str, descriptors: Sequence[int], take: Callable[[int], object]
    ) -> None:
        """Fork an interpreter; `take` gets its process id, which is valid for orders alone."""

        async def ask() -> None:
            async with self._ordering:
                take(int((await self._ask({"fork": folder}, descriptors))["pid"]))

        await finish(ask())

    async def order(self, word: str, pid: int) -> Mapping[str, Any]:
        """Send "end", "drop", "stop" or "continue". Raises OSError: the template is gone."""

        async def ask() -> Mapping[str, Any]:
            async with self._ordering:
                return await self._ask({word: pid})

        return await finish(ask())

    async def _ask(
        self, message: Mapping[str, Any], descriptors: Sequence[int] = ()
    ) -> Mapping[str, Any]:
        if self._control is None:
            raise ConnectionError("it is closed")
        content = json.dumps(message).encode()
        try:
            async with asyncio.timeout(START_S):
                # An order fits in the socket: nothing else is under way in it.
                if descriptors:
                    socket.send_fds(self._control, [content], descriptors)
                else:
                    self._control.send(content)
                line = await self._read_line(self._control)
        except TimeoutError as error:
            await self._end()
            raise ConnectionError(f"it was silent for {START_S:g} s") from error
        except BaseException:
            # Whoever waited gave up or the template is gone; a late reply would answer another.
            await self._end()
            raise
        reply: Mapping[str, Any] = json.loads(line)
        if "error" in reply:
            raise OSError(str(reply["error"]))
        return reply

    async def _read_line(self, control: socket.socket) -> bytes:
        line = b""
        while not line.endswith(b"\n"):
            part = await asyncio.get_running_loop().sock_recv(control, 4096)
            if not part:
                raise ConnectionError("it ended unexpectedly")
            line += part
        return line

    async def aclose(self) -> None:
        async with self._ordering:
            self._closed = True
            await self._end()

    async def _end(self) -> None:
        """End the template, which kills its interpreters when our end of the socket closes."""
        control, self._control = self._control, None
        process, self._process = self._process, None
        if control is not None:
            control.close()
        if process is None:
            return
        waiting = asyncio.to_thread(process.wait, 5)
        try:
            await asyncio.shield(waiting)
        except subprocess.TimeoutExpired:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(process.wait, 5)
