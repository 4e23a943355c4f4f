"""One rollout's interpreter: calls in order, state kept between them, and what came of each.

The parent alone keeps the clock, and trusts nothing that comes out of the interpreter: every
reply is bounded and read as text. An interpreter that ran out of anything is ended whole.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from engines.tools.sandbox.errors import SandboxError
from engines.tools.sandbox.host import Host
from engines.tools.sandbox.limits import Limits

Status = Literal["ok", "error", "timeout", "memory", "output", "killed"]

RESTARTED = "the interpreter was restarted: variables are gone\n"
MAX_CODE = 1 << 20
MAX_REPLY = 1 << 20
MAX_TEXT, MAX_SHORT, MAX_VARIABLES = 20_000, 200, 50
MAX_FILES = 4096
FOLDER_CHECK_S = 0.1
_CHUNK = 1 << 16


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
    """Our ends of one interpreter's channel, stdout and stderr."""

    def __init__(self, host: Host, limits: Limits, *, folder: str) -> None:
        self._host, self._limits, self._folder = host, limits, folder
        self._pid = 0
        self._descriptors: list[int] = []
        self._channel: socket.socket | None = None
        self._output: tuple[bytearray, bytearray] = (bytearray(), bytearray())
        self._reply, self._has_ended = bytearray(), False
        self._finished: asyncio.Future[str] | None = None

    async def start(self) -> None:
        """Raises OSError: none can be forked."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self._channel = ours
        passed = [theirs.detach()]
        try:
            for _ in range(2):
                end, other = os.pipe()
                self._descriptors.append(end)
                passed.append(other)
                os.set_blocking(end, False)
            await self._host.fork(self._folder, passed, self._take)
        except BaseException:
            await self.end(wait=False)
            raise
        finally:
            for descriptor in passed:
                os.close(descriptor)
        loop = asyncio.get_running_loop()
        loop.add_reader(ours, self._read_reply)
        for number, descriptor in enumerate(self._descriptors):
            loop.add_reader(descriptor, self._read_output, number)

    async def call(self, code: str, wall_s: float) -> RunResult:
        """Run code. After any status but "ok" and "error" this interpreter is to be ended."""
        loop = asyncio.get_running_loop()
        for text in self._output:
            text.clear()
        self._finished = loop.create_future()
        if self._reply:  # before it was asked: it failed, or wrote on its own
            self._finish("reply" if self._reply.startswith(b'{"failed"') else "garbage")
        elif self._has_ended:
            self._finish("ended")
        began = time.perf_counter()
        watching = asyncio.create_task(self._watch_folder()) if self._folder else None
        try:
            async with asyncio.timeout(wall_s):
                assert self._channel is not None
                with contextlib.suppress(ConnectionError):  # the reader tells that it ended
                    line = json.dumps({"code": code}).encode() + b"\n"
                    await loop.sock_sendall(self._channel, line)
                why = await self._finished
        except TimeoutError:
            why = "timeout"
        finally:
            self._finished = None
            if watching is not None:
                watching.cancel()
        elapsed_s = time.perf_counter() - began
        fields = self._result_fields(why)
        for number in range(2):
            self._read_output(number)
        stdout, stderr = (bytes(text).decode("utf-8", "replace") for text in self._output)
        if why == "timeout":
            fields = {"status": "timeout", "error": f"it was stopped after {wall_s:g} s"}
        elif len(stdout) + len(stderr) > self._limits.output_chars or why == "output":
            most = self._limits.output_chars
            fields = {"status": "output", "error": f"it wrote more than {most} characters"}
            stdout, stderr = stdout[:most], stderr[: most - len(stdout[:most])]
        return RunResult(stdout=stdout, stderr=stderr, elapsed_s=elapsed_s, **fields)

    async def end(self, *, wait: bool) -> Mapping[str, Any]:
        """Kill it. With `wait` how it ended ("status", "cpu_s"); {} where the template is gone."""
        pid, self._pid = self._pid, 0
        try:
            return await self._host.order("end" if wait else "drop", pid) if pid else {}
        except OSError:
            return {}
        finally:
            self._close()

    def _take(self, pid: int) -> None:
        self._pid = pid

    async def set_running(self, running: bool) -> None:
        """Between calls it is stopped: threads of the code do not go on."""
        await self._host.order("continue" if running else "stop", self._pid)

    def _result_fields(self, why: str) -> dict[str, Any]:
        if why == "reply":
            line = bytes(self._reply)
            self._reply.clear()
            with contextlib.suppress(ValueError, RecursionError):
                return parse_reply(json.loads(line))
            why = "garbage"
        causes = {
            "garbage": "it wrote to the channel of the sandbox",
            "disk": f"its files take more than {self._limits.disk_mb} MB or are too many",
        }
        return {"status": "killed", "error": causes.get(why, "")}

    async def _watch_folder(self) -> None:
        """Where its files are on our disk: without namespaces the system limits each one alone."""
        while True:
            await asyncio.sleep(FOLDER_CHECK_S)
            if folder_is_full(self._folder, self._limits.disk_mb << 20):
                self._finish("disk")
                return

    def _read_reply(self) -> None:
        assert self._channel is not None
        try:
            part = self._channel.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            part = b""
        if not part:
            asyncio.get_running_loop().remove_reader(self._channel)
            self._has_ended = True
        self._reply += part
        if self._reply.endswith(b"\n"):
            self._finish("reply")
        elif len(self._reply) > MAX_REPLY:
            self._finish("garbage")
        elif not part:
            self._finish("ended")

    def _read_output(self, number: int) -> None:
        descriptor, text = self._descriptors[number], self._output[number]
        # A little more than allowed, so that the excess is seen; the rest stays in the pipe.
        while (room := self._limits.output_chars + 4 - len(text)) > 0:
            try:
                part = os.read(descriptor, min(room, _CHUNK))
            except BlockingIOError:
                return
            if not part:
                asyncio.get_running_loop().remove_reader(descriptor)
                return
            text += part
        asyncio.get_running_loop().remove_reader(descriptor)
        self._finish("output")

    def _finish(self, why: str) -> None:
        if self._finished is not None and not self._finished.done():
            self._finished.set_result(why)

    def _close(self) -> None:
        loop = asyncio.get_running_loop()
        if self._channel is not None:
            loop.remove_reader(self._channel)
            self._channel.close()
        for descriptor in self._descriptors:
            loop.remove_reader(descriptor)
            os.close(descriptor)
        self._channel, self._descriptors = None, []


def parse_reply(reply: Any) -> dict[str, Any]:
    """The fields of a result, from what the interpreter says they are. Raises ValueError."""
    match reply:
        case {"failed": str(why)}:
            return {"status": "killed", "error": f"it cannot be confined ({why[:MAX_SHORT]})"}
        case {"status": "ok" | "error" | "memory" as status}:
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
        self._folder = ""
        self._interpreter: Interpreter | None = None
        self._lost = False
        self._calling = asyncio.Lock()  # one call at a time: they share the interpreter

    async def run(self, code: str, *, wall_s: float | None = None) -> RunResult:
        """Run one call. What the code does is a result; SandboxError: there is no sandbox."""
        if len(code) > MAX_CODE:
            return RunResult("error", error=f"the code is longer than {MAX_CODE} characters")
        wall_s = self._limits.wall_s if wall_s is None else wall_s
        async with self._calling:
            interpreter = await self._ready_interpreter()
            restarted, self._lost = self._lost, False
            try:
                result = await interpreter.call(code, wall_s)
                if result.status in ("ok", "error"):
                    with contextlib.suppress(OSError):
                        await interpreter.set_running(False)
                else:
                    result = await self._end_after(result)
            except BaseException:
                await self._end()
                raise
        if restarted:
            result = replace(result, stderr=RESTARTED + result.stderr)
        return result

    async def aclose(self) -> None:
        async with self._calling:
            await self._end(wait=False)
        self._on_close(self)

    async def _ready_interpreter(self) -> Interpreter:
        """Raises SandboxError."""
        try:
            if self._interpreter is not None:
                await self._interpreter.set_running(True)
                return self._interpreter
        except OSError:
            await self._end()
        if self._has_folder:
            self._folder = tempfile.mkdtemp(prefix="studio-sandbox-")
        interpreter = Interpreter(self._host, self._limits, folder=self._folder)
        try:
            await self._host.start()
            await interpreter.start()
        except OSError as error:
            await self._end()
            move = "Free processes and memory, and start again."
            raise SandboxError("sandbox", f"no process can be had ({error}).", move) from error
        self._interpreter = interpreter
        return interpreter

    async def _end_after(self, result: RunResult) -> RunResult:
        ended = await self._end()
        if result.status != "killed" or result.error:
            return result
        code, cpu_s = int(ended.get("status", 0)), float(ended.get("cpu_s", 0))
        if code == -signal.SIGKILL and cpu_s >= self._limits.cpu_s - 0.5:
            error = f"it used up its {self._limits.cpu_s:g} s of processor time"
            return replace(result, status="timeout", error=error)
        if code < 0:
            error = f"the interpreter was ended by signal {-code} ({signal.strsignal(-code)})"
        else:
            error = f"the interpreter ended itself (exit code {code})"
        return replace(result, error=error)

    async def _end(self, *, wait: bool = True) -> Mapping[str, Any]:
        interpreter, self._interpreter = self._interpreter, None
        folder, self._folder = self._folder, ""
        try:
            if interpreter is None:
                return {}
            self._lost = True
            return await interpreter.end(wait=wait or bool(folder))
        finally:
            if folder:
                await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
