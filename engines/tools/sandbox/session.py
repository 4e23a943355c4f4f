"""One rollout's interpreter: calls in order, state kept between them, and what came of each.

The parent alone keeps the clock, and trusts nothing that comes out of the interpreter: every
reply is bounded and read as text. An interpreter that ran out of anything is ended whole.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from engines.tools.sandbox.host import Host
from engines.tools.sandbox.limits import Limits
from engines.tools.sandbox.tiers import SandboxError

Status = Literal["ok", "error", "timeout", "memory", "output", "killed"]

RESTARTED = "the interpreter was restarted: variables are gone\n"
MAX_CODE = MAX_REPLY = 1 << 20
MAX_TEXT, MAX_SHORT, MAX_VARIABLES, MAX_FILES = 20_000, 200, 50, 4096
FOLDER_CHECK_S = 0.1
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class RunResult:
    """What one call came to. All texts are bounded; bytes that are no UTF-8 are replaced.

    `value` is the repr of the last statement, "" where that is no expression or None; `variables`
    are the public names with short reprs; `error` holds the code's own last lines.
    """

    status: Status
    stdout: str = ""
    stderr: str = ""
    value: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)
    error: str = ""
    elapsed_s: float = 0.0


class Interpreter:
    """Our end of one interpreter's channel, and the files that it has for stdout and stderr.

    With `folder` its files lie there, on our disk.
    """

    def __init__(self, host: Host, limits: Limits, folder: str) -> None:
        self._host, self._limits, self._folder = host, limits, folder
        self._number, self._calls = next(_numbers), 0
        # Files, not pipes: the system bounds them as all files, and nobody has to read meanwhile.
        self._output = [tempfile.TemporaryFile(buffering=0) for _ in range(2)]
        self._channel, self._theirs = socket.socketpair()
        self._channel.setblocking(False)

    async def start(self) -> None:
        """Raises OSError: none can be forked."""
        try:
            await self._host.fork(self._number, self._folder, self._theirs, self._output)
        except BaseException:
            await self.end(wait=False)
            raise

    async def call(self, code: str, wall_s: float) -> RunResult:
        """Run code. After any status but "ok" and "error" this interpreter is to be ended."""
        for file in self._output:
            file.seek(0)
            file.truncate()
        if self._calls:
            with contextlib.suppress(OSError):  # its channel tells that it ended
                await self._host.order("continue", self._number)
        began = time.perf_counter()
        tasks = {asyncio.create_task(self._ask(code))}
        if self._folder:
            tasks.add(asyncio.create_task(self._watch_folder()))
        try:
            done, _ = await asyncio.wait(tasks, timeout=wall_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
        elapsed_s = time.perf_counter() - began
        fields = {"status": "timeout", "error": f"it was stopped after {wall_s:g} s"}
        if done:
            fields = done.pop().result()
        result = self._add_output(RunResult(elapsed_s=elapsed_s, **fields))
        if result.status in ("ok", "error"):
            with contextlib.suppress(OSError):
                # Threads of the code do not go on between calls.
                await self._host.order("stop", self._number)
        return result

    async def end(self, *, wait: bool) -> Mapping[str, Any]:
        """Kill it. With `wait` how it ended ("status", "cpu_s"); {} where the template is gone."""
        try:
            return await self._host.order("end" if wait else "drop", self._number)
        except OSError:
            return {}
        finally:
            for file in (self._channel, *self._output):
                file.close()

    async def _ask(self, code: str) -> dict[str, Any]:
        """The fields of a result, as far as the interpreter tells them."""
        self._calls += 1
        loop, line = asyncio.get_running_loop(), b""
        order = json.dumps({"call": self._calls, "code": code}).encode() + b"\n"
        try:
            with contextlib.suppress(ConnectionError):  # it may have said why it ended
                await loop.sock_sendall(self._channel, order)
            while not line.endswith(b"\n") and len(line) <= MAX_REPLY:
                part = await loop.sock_recv(self._channel, 1 << 16)
                if not part:
                    return {"status": "killed"}
                line += part
            return parse_reply(json.loads(line), self._calls)
        except ConnectionError:
            return {"status": "killed"}
        except (ValueError, RecursionError):
            return {"status": "killed", "error": "it wrote to the channel of the sandbox"}

    async def _watch_folder(self) -> dict[str, Any]:
        """Without namespaces the system limits each file alone."""
        while not folder_is_full(self._folder, self._limits.disk_mb << 20):
            await asyncio.sleep(FOLDER_CHECK_S)
        error = f"its files take more than {self._limits.disk_mb} MB or are too many"
        return {"status": "killed", "error": error}

    def _add_output(self, result: RunResult) -> RunResult:
        most = self._limits.output_chars
        written = sum(file.tell() for file in self._output)
        texts = [os.pread(file.fileno(), most, 0) for file in self._output]
        stdout, stderr = (text.decode("utf-8", "replace") for text in texts)
        if written > most and result.status != "timeout":
            error = f"it wrote more than {most} characters"
            result = RunResult("output", error=error, elapsed_s=result.elapsed_s)
        return replace(result, stdout=stdout, stderr=stderr[: most - len(stdout)])


def parse_reply(reply: Any, call: int = 0) -> dict[str, Any]:
    """The fields of a result, from what the interpreter says they are. Raises ValueError.

    A reply to another call than `call` is none.
    """
    match reply:
        case {"failed": str(why)}:
            return {"status": "killed", "error": f"it cannot be confined ({why[:MAX_SHORT]})"}
        case {"status": "ok" | "error" | "memory" as status} if reply.get("call", 0) == call:
            pass
        case _:
            raise ValueError("this is no reply")
    variables = reply.get("variables")
    pairs = list(variables.items())[:MAX_VARIABLES] if isinstance(variables, dict) else []
    short = {_text(name)[:MAX_SHORT]: _text(value)[:MAX_SHORT] for name, value in pairs}
    value, error = (_text(reply.get(name))[:MAX_TEXT] for name in ("value", "error"))
    return {"status": status, "value": value, "error": error, "variables": short}


def _text(value: object) -> str:
    """Text that every encoding takes: JSON lets single halves of surrogate pairs through."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else ""


def folder_is_full(folder: str, most_bytes: int) -> bool:
    """Whether more bytes or files lie in a folder than may. Follows no links."""
    size = count = 0
    for root, folders, files in os.walk(folder):
        count += len(folders) + len(files)
        for name in files:
            with contextlib.suppress(OSError):
                size += os.lstat(os.path.join(root, name)).st_size
        if size > most_bytes or count > MAX_FILES:
            return True
    return False


class Session:
    """Calls of one rollout. The interpreter is forked at the first call and kept until `aclose`.

    `has_folder`: its files lie in a temporary folder of ours. `on_close` is called at the end.
    """

    def __init__(
        self, host: Host, limits: Limits, *, has_folder: bool, on_close: Callable[[Session], object]
    ) -> None:
        self._host, self._limits = host, limits
        self._has_folder, self._on_close = has_folder, on_close
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._interpreter: Interpreter | None = None
        self._lost = False
        self._calling = asyncio.Lock()  # one call at a time: they share the interpreter

    async def run(self, code: str, *, wall_s: float | None = None) -> RunResult:
        """Run one call. What the code does is a result; SandboxError: there is no sandbox."""
        if len(code) > MAX_CODE:
            return RunResult("error", error=f"the code is longer than {MAX_CODE} characters")
        async with self._calling:
            try:
                interpreter = self._interpreter or await self._start_interpreter()
                restarted, self._lost = self._lost, False
                result = await interpreter.call(
                    code, self._limits.wall_s if wall_s is None else wall_s
                )
                if result.status not in ("ok", "error"):
                    result = self._explain(result, await self._end())
            except BaseException:
                await self._end()
                raise
        if restarted:
            result = replace(result, stderr=RESTARTED + result.stderr)
        return result

    async def aclose(self) -> None:
        async with self._calling:
            await self._end(wait=self._has_folder)
        self._on_close(self)

    async def _start_interpreter(self) -> Interpreter:
        """Raises SandboxError."""
        await self._host.start()
        try:
            if self._has_folder:
                self._folder = tempfile.TemporaryDirectory(prefix="studio-sandbox-")
            folder = self._folder.name if self._folder else ""
            interpreter = Interpreter(self._host, self._limits, folder)
            await interpreter.start()
        except OSError as error:
            raise SandboxError.of_start("an interpreter", error) from error
        self._interpreter = interpreter
        return interpreter

    def _explain(self, result: RunResult, ended: Mapping[str, Any]) -> RunResult:
        """Say how an interpreter ended that said nothing itself."""
        if result.status != "killed" or result.error:
            return result
        if not ended:
            return replace(result, error="the process that it came from has ended")
        code = int(ended["status"])
        if code == -signal.SIGKILL and ended["cpu_s"] >= self._limits.cpu_s - 0.5:
            error = f"it used up its {self._limits.cpu_s:g} s of processor time"
            return replace(result, status="timeout", error=error)
        if code < 0:
            error = f"the interpreter was ended by signal {-code} ({signal.strsignal(-code)})"
        else:
            error = f"the interpreter ended itself (exit code {code})"
        return replace(result, error=error)

    async def _end(self, *, wait: bool = True) -> Mapping[str, Any]:
        interpreter, self._interpreter = self._interpreter, None
        folder, self._folder = self._folder, None
        self._lost = self._lost or interpreter is not None
        try:
            return await interpreter.end(wait=wait) if interpreter else {}
        finally:
            if folder:
                await asyncio.to_thread(folder.cleanup)
