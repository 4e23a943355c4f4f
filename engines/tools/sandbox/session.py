"""One rollout's interpreter: calls in order, state kept between them, and what came of each.

The parent alone keeps the clock, and trusts nothing that comes out of the interpreter: every
reply is bounded and read as text. An interpreter that ran out of anything is ended whole.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from engines.tools.sandbox.host import Host, Interpreter
from engines.tools.sandbox.limits import Limits

Status = Literal["ok", "error", "timeout", "memory", "output", "killed"]

RESTARTED = "the interpreter was restarted: variables are gone\n"
MAX_CODE = MAX_REPLY = 1 << 20
MAX_TEXT, MAX_SHORT, MAX_VARIABLES, MAX_FILES = 20_000, 200, 50, 4096
FOLDER_CHECK_S = 0.1


@dataclass(frozen=True, slots=True)
class RunResult:
    """What one call came to. All texts are bounded; bytes that are no UTF-8 are replaced.

    `value` is the repr of the last statement, "" where that is no expression or None; `variables`
    are the public names; `error` holds the code's own last lines.
    """

    status: Status
    stdout: str = ""
    stderr: str = ""
    value: str = ""
    variables: tuple[str, ...] = ()
    error: str = ""
    elapsed_s: float = 0.0


class Session:
    """Calls of one rollout. The interpreter is had at the first call and kept until `aclose`.

    `on_close` is called at the end.
    """

    def __init__(
        self, host: Host, limits: Limits, *, on_close: Callable[[Session], object]
    ) -> None:
        self._host, self._limits, self._on_close = host, limits, on_close
        self._interpreter: Interpreter | None = None
        self._lost = False
        self._calling = asyncio.Lock()  # one call at a time: they share the interpreter

    async def run(self, code: str, *, wall_s: float | None = None) -> RunResult:
        """Run one call. What the code does is a result; SandboxError: there is no sandbox."""
        if len(code) > MAX_CODE:
            return RunResult("error", error=f"the code is longer than {MAX_CODE} characters")
        async with self._calling:
            restarted = self._lost
            try:
                if self._interpreter is None:
                    self._interpreter = await self._host.fork()
                interpreter, self._lost = self._interpreter, False
                wall_s = self._limits.wall_s if wall_s is None else wall_s
                result = await self._call(interpreter, code, wall_s)
                if result.status in ("ok", "error"):
                    # Threads of the code do not go on between calls.
                    self._host.send("stop", interpreter.number)
                else:
                    result = self._explain(result, await self._end())
            except BaseException:
                await self._end()
                raise
        return replace(result, stderr=RESTARTED + result.stderr) if restarted else result

    async def aclose(self) -> None:
        async with self._calling:
            await self._end(wait=False)
        self._on_close(self)

    async def _call(self, interpreter: Interpreter, code: str, wall_s: float) -> RunResult:
        for file in interpreter.output:
            file.seek(0)
            file.truncate()
        if interpreter.calls:
            self._host.send("continue", interpreter.number)
        interpreter.calls += 1
        began = time.perf_counter()
        tasks = {asyncio.create_task(_ask(interpreter, code))}
        if interpreter.folder:
            tasks.add(asyncio.create_task(self._watch_folder(interpreter.folder.path)))
        try:
            done, _ = await asyncio.wait(tasks, timeout=wall_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
        elapsed_s = time.perf_counter() - began
        result = RunResult("timeout", error=f"it was stopped after {wall_s:g} s")
        if done:
            result = done.pop().result()
        most = self._limits.output_chars
        if result.status != "timeout" and sum(f.tell() for f in interpreter.output) > most:
            result = RunResult("output", error=f"it wrote more than {most} characters")
        texts = [os.pread(file.fileno(), most, 0) for file in interpreter.output]
        stdout, stderr = (text.decode("utf-8", "replace") for text in texts)
        stderr = stderr[: most - len(stdout)]
        return replace(result, stdout=stdout, stderr=stderr, elapsed_s=elapsed_s)

    async def _watch_folder(self, folder: str) -> RunResult:
        """Without namespaces the system limits each file alone."""
        while not folder_is_full(folder, self._limits.disk_mb << 20):
            await asyncio.sleep(FOLDER_CHECK_S)
        error = f"its files take more than {self._limits.disk_mb} MB or are too many"
        return RunResult("killed", error=error)

    def _explain(self, result: RunResult, ended: Mapping[str, Any]) -> RunResult:
        """Say how an interpreter ended that said nothing itself."""
        if result.status != "killed" or result.error:
            return result
        code, cpu_s = ended.get("status"), self._limits.cpu_s
        if code is None:
            return replace(result, error="the process that it came from has ended")
        if code == -signal.SIGKILL and ended["cpu_s"] >= cpu_s - 0.5:
            error = f"it used up its {cpu_s:g} s of processor time"
            return replace(result, status="timeout", error=error)
        how = f"ended itself (exit code {code})"
        if code < 0:
            how = f"was ended by signal {-code} ({signal.strsignal(-code)})"
        return replace(result, error=f"the interpreter {how}")

    async def _end(self, *, wait: bool = True) -> Mapping[str, Any]:
        """End the interpreter; how it ended, where we wait for that."""
        interpreter, self._interpreter = self._interpreter, None
        if interpreter is None:
            return {}
        self._lost = self._lost or interpreter.calls > 0
        try:
            if wait or interpreter.folder:
                return await self._host.end(interpreter.number)
            self._host.send("drop", interpreter.number)
            return {}
        finally:
            await asyncio.to_thread(interpreter.close)


async def _ask(interpreter: Interpreter, code: str) -> RunResult:
    """A result as far as the interpreter tells it."""
    loop, channel, line = asyncio.get_running_loop(), interpreter.channel, b""
    order = json.dumps({"call": interpreter.calls, "code": code}).encode() + b"\n"
    try:
        with contextlib.suppress(ConnectionError):  # it may have said why it ended
            await loop.sock_sendall(channel, order)
        while not line.endswith(b"\n") and len(line) <= MAX_REPLY:
            if not (part := await loop.sock_recv(channel, 1 << 16)):
                return RunResult("killed")
            line += part
        return RunResult(**parse_reply(json.loads(line), interpreter.calls))
    except ConnectionError:
        return RunResult("killed")
    except (ValueError, RecursionError):
        return RunResult("killed", error="it wrote to the channel of the sandbox")


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
    names = variables[:MAX_VARIABLES] if isinstance(variables, list) else []
    short = tuple(_text(name)[:MAX_SHORT] for name in names)
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
