"""Our end of the template process of `template.py`: its start, its orders, its end.

Raises OSError where it, or a child of it, cannot be had.
"""

import asyncio
import contextlib
import itertools
import json
import os
import socket
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from typing import IO, Any, Literal, TypeVar

from engines.core.frozen import frozen
from engines.process.confinement import Limits
from engines.process.start import ScratchFolder, start_module

T = TypeVar("T")


@frozen
class Work:
    """What children do, and what they may do it with.

    `task` is the module whose `build_task(*arguments)` makes what answers their questions, and
    `packages` are the folders from which it imports; children read nothing else. `layers` must
    hold; None: those that the machine has.
    """

    task: str
    packages: Sequence[str]
    limits: Limits
    layers: Sequence[str] | None = None
    arguments: Sequence[Any] = ()


class ForkedChild:
    """Our end of its channel, and the files that it has for stdout and stderr.

    Files, not pipes: the system bounds them as all files, and nobody has to read meanwhile.
    """

    def __init__(self, number: int, *, has_output: bool, has_folder: bool) -> None:
        self.number, self.calls = number, 0
        self.folder = ScratchFolder("studio-sandbox-") if has_folder else None
        files = 2 if has_output else 0
        self.output: list[IO[bytes]] = [tempfile.TemporaryFile(buffering=0) for _ in range(files)]  # noqa: SIM115
        self.channel, self.theirs = socket.socketpair()
        self.channel.setblocking(False)

    def close(self) -> None:
        self.channel.close()
        self.theirs.close()
        for file in self.output:
            file.close()
        if self.folder:
            self.folder.remove()


class Host:
    """Forks children. With `interactive` they have output, a folder to write in, and a spare.

    A template that was killed from outside is replaced.
    """

    def __init__(self, work: Work, *, interactive: bool = False) -> None:
        packages = [os.path.abspath(path) for path in work.packages]
        self._order = {**asdict(work), "packages": packages}
        self._interactive = interactive
        self._has_folder = interactive and "namespaces" not in (work.layers or ())
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._ready = self._closed = False
        self._numbers = itertools.count(1)
        self._spares: list[Future[ForkedChild]] = []
        # One thread, so one order at a time: replies carry no name. The template ends with it.
        self._thread = ThreadPoolExecutor(1, "template")

    async def start(self) -> None:
        await self._in_thread(self._start)

    async def fork(self) -> ForkedChild:
        """A child that is ready."""
        child = self._spares.pop() if self._spares else None
        if child is None or (child.done() and child.exception()):
            child = self._thread.submit(self._fork)
        try:
            forked = await asyncio.shield(asyncio.wrap_future(child))
        except asyncio.CancelledError:
            self._spares.append(child)
            raise
        if self._interactive and not self._spares:  # the next gets ready meanwhile
            self._spares.append(self._thread.submit(self._fork))
        return forked

    async def end(self, number: int) -> Mapping[str, Any]:
        """Kill a child; its "status" and "cpu_s", or nothing where the template is gone."""
        try:
            return await self._in_thread(lambda: self._ask({"word": "end", "number": number}))
        except OSError:
            return {}

    def send(self, word: Literal["drop", "stop", "continue"], number: int) -> None:
        """Send an order that nobody waits for; where the template is gone, the channel tells."""
        self._thread.submit(self._ask, {"word": word, "number": number})

    async def aclose(self) -> None:
        self._closed = True
        if self._process and not self._ready:
            self._process.kill()  # it imports yet, and does not listen
        await self._in_thread(self._end)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Work that is begun is done, also where nobody waits for it any more."""
        running = asyncio.get_running_loop().run_in_executor(self._thread, work)
        return await asyncio.shield(running)

    def _start(self) -> None:
        if self._closed:
            raise ConnectionError("it was closed")
        if self._control is not None:
            return
        try:
            self._process, self._control = start_module("engines.process.template", self._order)
            self._check_reply(self._control.recv(4096))
        except OSError:
            self._end()
            raise
        self._ready = True

    def _fork(self) -> ForkedChild:
        self._start()
        try:
            return self._fork_once()
        except OSError:
            if self._control is not None:
                raise  # the template lives, and can fork no more
        self._start()
        return self._fork_once()

    def _fork_once(self) -> ForkedChild:
        child = ForkedChild(
            next(self._numbers), has_output=self._interactive, has_folder=self._has_folder
        )
        folder = child.folder.path if child.folder else ""
        descriptors = [child.theirs.fileno(), *(file.fileno() for file in child.output)]
        try:
            self._ask({"word": "fork", "number": child.number, "folder": folder}, descriptors)
        except OSError:
            child.close()
            raise
        child.theirs.close()
        return child

    def _ask(
        self, message: Mapping[str, Any], descriptors: Sequence[int] = ()
    ) -> Mapping[str, Any]:
        if self._control is None:
            raise ConnectionError("it is closed")
        try:
            socket.send_fds(self._control, [json.dumps(message).encode()], descriptors)
            line = self._control.recv(4096)
        except OSError:
            self._end()  # a late reply would answer another order
            raise
        return self._check_reply(line)

    def _check_reply(self, line: bytes) -> Mapping[str, Any]:
        if not line:
            self._end()
            raise ConnectionError("it ended unexpectedly")
        reply: Mapping[str, Any] = json.loads(line)
        if "error" in reply:
            raise OSError(reply["error"])
        return reply

    def _end(self) -> None:
        """End the template, which kills its children when our end of the socket closes."""
        if self._control is None or self._process is None:
            return
        self._control.close()
        self._control, self._ready = None, False
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        self._process.kill()
        self._process.wait()
        for spare in [spare for spare in self._spares if spare.done()]:
            self._spares.remove(spare)
            if not spare.exception():
                spare.result().close()
