"""Our end of the template of `worker.py`, and the workers that are forked from it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from engines.core.errors import VerifierError
from engines.tools.sandbox.control import START_S, bare_environment, start_python
from engines.verifiers.process_pool.child import Child, Message, kill_session


class Template:
    """The process that workers are forked from. Raises OSError: it cannot be started."""

    def __init__(self, task: str, memory_mb: int) -> None:
        program = str(Path(__file__).with_name("worker.py"))
        arguments = [program, task, str(memory_mb << 20), str(os.getpid())]
        self.process, self._control = start_python(arguments, bare_environment(), paths=sys.path)
        self._control.setblocking(False)
        self.ready = False  # True once it listens: before, the end of its socket does not end it

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

    async def fork(self) -> tuple[int, socket.socket]:
        """A new worker's process id, and our end of its socket."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                socket.send_fds(self._control, [b'{"kill": 0}'], [theirs.fileno()])
            return (await self.reply())["pid"], ours
        except BaseException:
            ours.close()
            raise

    async def kill(self, pid: int) -> None:
        self._control.send(json.dumps({"kill": pid}).encode())
        await self.reply()

    async def close(self) -> None:
        """End it with its workers, which it kills when our end of the socket closes."""
        self._control.close()
        if self.ready:
            with contextlib.suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(self.process.wait, 5)
                return
        await kill_session(self.process)


class ForkLauncher:
    """Forks workers for one task from a template that has imported what the task needs.

    `task` is the module whose `build_task` builds it there; `memory_mb` the address space of
    one worker.
    """

    exit_text = "the checking process ended (out of memory or crashed)"

    def __init__(self, name: str, task: str, *, memory_mb: int) -> None:
        self._name, self._task, self._memory_mb = name, task, memory_mb
        self._template: Template | None = None
        # Protects the control socket: its replies carry no name, so one order at a time.
        self._ordering = asyncio.Lock()

    async def start(
        self, on_message: Callable[[Message], None], on_exit: Callable[[], None]
    ) -> Child:
        try:
            async with self._ordering:
                template, pid, ours = await self._fork()
        except OSError as error:
            cause = f"it cannot be started ({error})."
            move = "Reinstall practice-studio, or free processes and memory, and start again."
            raise VerifierError(f'checking process "{self._name}"', cause, move) from error
        kill = functools.partial(self._kill, template, pid)
        # One question in work, one in the socket: the worker never waits for us.
        child = Child(on_message, on_exit, json.loads, kill, prefetch=1)
        await child.connect(ours)
        return child

    async def aclose(self) -> None:
        if self._template:
            template, self._template = self._template, None
            await template.close()

    async def _fork(self) -> tuple[Template, int, socket.socket]:
        for attempt in (1, 2):
            template = await self._open_template()
            try:
                return template, *await template.fork()
            except OSError:
                if attempt == 2 or template.process.poll() is None:
                    raise
                await self.aclose()  # it was killed from outside, and its workers with it
        raise AssertionError("unreachable")

    async def _open_template(self) -> Template:
        if self._template is None:
            self._template = Template(self._task, self._memory_mb)
            try:
                await self._template.reply()
            except OSError:
                await self.aclose()
                raise
        return self._template

    async def _kill(self, template: Template, pid: int) -> None:
        async with self._ordering:
            if template is not self._template:
                return  # its workers ended with it
            try:
                await template.kill(pid)
            except OSError:
                await self.aclose()
