"""Model-written Python in processes of our own: the door of this package.

One rollout's interpreter is a `Session`: calls in order, state kept between them. The parent alone
keeps the clock, and trusts nothing that comes out of the interpreter: every reply is bounded and
read as text, and an interpreter that ran out of anything is ended whole.

    sandbox = Sandbox()
    report = await sandbox.start()
    session = sandbox.session()
    result = await session.run("1 + 1")     # result.value == "2"
    await sandbox.aclose()

What it stops, as far as the machine has the layers: reading and writing files of others, any
network, any other process, memory, disk, time and output beyond `Limits`. It does not stop a fault
of the kernel itself. Names of files outside can be asked for where there are no namespaces.
"""

import asyncio
import contextlib
import importlib.util
import json
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from engines.core.codec import JsonMapping, JsonObject
from engines.core.frozen import frozen
from engines.process import namespaces
from engines.process.confinement import Limits
from engines.process.host import ForkedChild, Host, Work
from engines.process.start import START_S, STARTED, start_module
from engines.process.tiers import SandboxError, TierReport, find_tier

PRELOAD = ("numpy", "sympy")
"""Imported once, before interpreters are forked; those that are not installed are left out."""


class Sandbox:
    def __init__(
        self,
        limits: Limits | None = None,
        *,
        accept_limits_only: bool = False,
        preload: Sequence[str] = PRELOAD,
    ) -> None:
        self.limits = limits or Limits()
        self._accept_limits_only = accept_limits_only
        self._preload = [name for name in preload if importlib.util.find_spec(name)]
        self._report: TierReport | None = None
        self._host: Host | None = None
        self._sessions: set[Session] = set()
        self._programs: set[Program] = set()

    async def start(self) -> TierReport:
        """Find the layers of this machine, and start the process that interpreters come from.

        Raises SandboxError: there are resource limits alone and nobody accepted that.
        """
        report = await self._accepted_tier()
        if self._host is None:
            # Those of the user, or given by an environment variable, are not found otherwise.
            packages = [path for path in sys.path if path.endswith("-packages")]
            work = Work(
                task="engines.tools.sandbox.interpreter",
                packages=packages,
                limits=self.limits,
                layers=report.in_force,
                arguments=[self._preload],
            )
            self._host = Host(work, interactive=True)
        try:
            await self._host.start()
        except OSError as error:
            raise SandboxError.of_start("its first process", error) from error
        return report

    def session(self) -> "Session":
        """An interpreter for one rollout, to be closed after it. `start` comes first."""
        if self._host is None or self._report is None:
            raise RuntimeError("the sandbox is not started")
        session = Session(self._host, self.limits, on_close=self._sessions.discard)
        self._sessions.add(session)
        return session

    async def start_program(
        self,
        argv: Sequence[str],
        *,
        folder: Path,
        env: Mapping[str, str],
        readable: Sequence[Path] = (),
        stdin: bytes = b"",
        network: Literal["none", "public"] = "none",
        port: int = 8080,
        limits: Limits | None = None,
    ) -> "Program":
        """Start any program, with its children, apart from everything but `folder`.

        Args:
            argv: the program and its arguments; it is looked for on the PATH of `env`.
            folder: its working folder, the one place but /tmp where it may write. The caller makes
                and removes it.
            env: its whole environment.
            readable: what it may read beside the system's programs and this interpreter.
            stdin: what it reads from its standard input, before the end of that.
            network: "none" leaves it 127.0.0.1:`port` alone; "public" the host's network.
            port: where `Program.listener` listens in the program's own network. Without
                namespaces there is no listener: it may connect to this port of any host, and
                before Linux 6.12 signal other processes of the user.
            limits: instead of the sandbox's own; memory holds for each process by itself.

        Raises SandboxError: as `start`, or it cannot be confined.
        """
        report = await self._accepted_tier()
        order: JsonObject = {
            "argv": list(argv),
            "layers": report.in_force,
            "folder": os.path.realpath(folder),
            "env": dict(env),
            "readable": [os.path.abspath(path) for path in readable],
            "network": network,
            "port": port,
        }
        if report.tier == "namespaces" and os.geteuid() == 0:
            namespaces.give_to_nobody(order["folder"])  # as which the program runs
        try:
            program = Program(order, stdin, limits or self.limits)
        except OSError as error:
            raise SandboxError.of_start("the program", error) from error
        try:
            await program.started.wait()
        except asyncio.CancelledError:
            await program.kill()
            raise
        if not program.runs:
            raise SandboxError.of_start("the program", (await program.wait()).error)
        self._programs.add(program)
        program.following.add_done_callback(lambda _: self._programs.discard(program))
        return program

    async def aclose(self) -> None:
        """End everything that was started here; nothing is left running or on disk."""
        for program in list(self._programs):
            await program.kill()
        for session in list(self._sessions):
            await session.aclose()
        if self._host is not None:
            host, self._host = self._host, None
            await host.aclose()

    async def _accepted_tier(self) -> TierReport:
        if self._report is None:
            report = await find_tier()
            if report.tier == "resource-limits-only" and not self._accept_limits_only:
                missing = "; ".join(f"{k}: {v}" for k, v in report.layers.items() if v != "ok")
                raise SandboxError(
                    "agent.sandbox",
                    f"this machine has resource limits alone, which keep no secret ({missing}).",
                    "Say agent.sandbox: resource-limits-only where the code may be trusted, or "
                    "use a machine with Linux 5.13 or later.",
                )
            self._report = report
        return self._report


Status = Literal["ok", "error", "timeout", "memory", "output", "killed"]

RESTARTED = "the interpreter was restarted: variables are gone\n"
MAX_CODE = MAX_REPLY = 1 << 20
MAX_TEXT, MAX_SHORT, MAX_VARIABLES, MAX_FILES = 20_000, 200, 50, 4096
FOLDER_CHECK_S = 0.1


@frozen
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


@dataclass(slots=True, eq=False)
class Session:
    """Calls of one rollout. The interpreter is had at the first call and kept until `aclose`.

    `on_close` is called at the end.
    """

    host: Host
    limits: Limits
    on_close: "Callable[[Session], object]"
    interpreter: ForkedChild | None = None
    lost: bool = False
    # One call at a time: they share the interpreter.
    calling: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def run(self, code: str, *, wall_s: float | None = None) -> RunResult:
        """Run one call. What the code does is a result; SandboxError: there is no sandbox."""
        if len(code) > MAX_CODE:
            return RunResult("error", error=f"the code is longer than {MAX_CODE} characters")
        async with self.calling:
            restarted = self.lost
            try:
                if self.interpreter is None:
                    self.interpreter = await self._fork()
                interpreter, self.lost = self.interpreter, False
                wall_s = self.limits.wall_s if wall_s is None else wall_s
                result = await self._call(interpreter, code, wall_s)
                if result.status in ("ok", "error"):
                    # Threads of the code do not go on between calls.
                    self.host.send("stop", interpreter.number)
                else:
                    result = self._explain(result, await self._end())
            except BaseException:
                await self._end()
                raise
        return replace(result, stderr=RESTARTED + result.stderr) if restarted else result

    async def aclose(self) -> None:
        async with self.calling:
            await self._end(wait=False)
        self.on_close(self)

    async def _fork(self) -> ForkedChild:
        try:
            return await self.host.fork()
        except OSError as error:
            raise SandboxError.of_start("an interpreter", error) from error

    async def _call(self, interpreter: ForkedChild, code: str, wall_s: float) -> RunResult:
        for file in interpreter.output:
            file.seek(0)
            file.truncate()
        if interpreter.calls:
            self.host.send("continue", interpreter.number)
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
        most = self.limits.output_chars
        if result.status != "timeout" and sum(f.tell() for f in interpreter.output) > most:
            result = RunResult("output", error=f"it wrote more than {most} characters")
        texts = [os.pread(file.fileno(), most, 0) for file in interpreter.output]
        stdout, stderr = (text.decode("utf-8", "replace") for text in texts)
        stderr = stderr[: most - len(stdout)]
        return replace(result, stdout=stdout, stderr=stderr, elapsed_s=elapsed_s)

    async def _watch_folder(self, folder: str) -> RunResult:
        """Without namespaces the system limits each file alone."""
        while not folder_is_full(folder, self.limits.disk_mb << 20):
            await asyncio.sleep(FOLDER_CHECK_S)
        return RunResult(
            "killed", error=f"its files take more than {self.limits.disk_mb} MB or are too many"
        )

    def _explain(self, result: RunResult, ended: JsonMapping) -> RunResult:
        """Say how an interpreter ended that said nothing itself."""
        if result.status != "killed" or result.error:
            return result
        code, cpu_s = ended.get("status"), self.limits.cpu_s
        if code is None:
            return replace(result, error="the process that it came from has ended")
        if code == -signal.SIGKILL and ended["cpu_s"] >= cpu_s - 0.5:
            return replace(
                result, status="timeout", error=f"it used up its {cpu_s:g} s of processor time"
            )
        how = f"ended itself (exit code {code})"
        if code < 0:
            how = f"was ended by signal {-code} ({signal.strsignal(-code)})"
        return replace(result, error=f"the interpreter {how}")

    async def _end(self, *, wait: bool = True) -> JsonMapping:
        """End the interpreter; how it ended, where we wait for that."""
        interpreter, self.interpreter = self.interpreter, None
        if interpreter is None:
            return {}
        self.lost = self.lost or interpreter.calls > 0
        try:
            if wait or interpreter.folder:
                return await self.host.end(interpreter.number)
            self.host.send("drop", interpreter.number)
            return {}
        finally:
            await asyncio.to_thread(interpreter.close)


async def _ask(interpreter: ForkedChild, code: str) -> RunResult:
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


def parse_reply(reply: Any, call: int = 0) -> JsonObject:
    """The fields of a result, from what the interpreter says they are. Raises ValueError.

    A reply to another call than `call` is none.
    """
    match reply:
        case {"failed": str(why)}:
            return {"status": "killed", "error": f"it cannot be confined ({why[:MAX_SHORT]})"}
        case {"status": "ok" | "error" | "memory" as status} if reply.get("done", 0) == call:
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


@frozen
class ProgramResult:
    """How a program ended; of its output only the last 64 KiB each are kept."""

    status: Literal["ok", "error", "timeout", "killed"] = "error"
    returncode: int | None = None
    """None where it was killed; a negative number is the signal that ended it."""
    stdout: str = ""
    stderr: str = ""
    elapsed_s: float = 0.0
    error: str = ""


class Program:
    """A running program. To be waited for or killed."""

    def __init__(self, order: JsonMapping, stdin: bytes, limits: Limits) -> None:
        """Raises OSError: no process can be started."""
        self.listener: socket.socket | None = None
        """Listens inside the program's own network, where it has one; not blocking."""
        with tempfile.TemporaryFile() as given:
            given.write(stdin)
            given.seek(0)
            whole = {**order, "limits": asdict(limits)}
            self._launcher, self._control = start_module(
                "engines.tools.sandbox.launch", whole, stdin=given
            )
        self._limits = limits
        self.runs = False
        self.started = asyncio.Event()
        self.following = asyncio.create_task(self._follow())

    async def wait(self) -> ProgramResult:
        """Until it has ended, or was ended after `wall_s` of its limits."""
        return await asyncio.shield(self.following)

    async def kill(self) -> None:
        """End it and everything that it started. May be called more than once."""
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)  # the launcher then ends it all
        await self.wait()

    async def _follow(self) -> ProgramResult:
        loop, said = asyncio.get_running_loop(), b""
        try:
            async with asyncio.timeout(self._limits.wall_s + START_S):
                said = await asyncio.to_thread(self._receive_start)
                self.started.set()
                while part := await loop.sock_recv(self._control, 1 << 16):
                    said += part
        except OSError:  # it is silent or was killed from outside; TimeoutError is one
            self._launcher.kill()
        finally:
            self.started.set()
            self._control.close()
            if self.listener:
                self.listener.close()
        await asyncio.to_thread(self._launcher.wait)
        found: JsonObject = {"error": "its launcher was killed"}
        for line in said.split(b"\n")[:-1]:
            found |= json.loads(line)
        return ProgramResult(**found)

    def _receive_start(self) -> bytes:
        said, descriptors, _, _ = socket.recv_fds(self._control, 4096, 1)
        for descriptor in descriptors:
            self.listener = socket.socket(fileno=descriptor)
            self.listener.setblocking(False)
        self._control.setblocking(False)
        self.runs = said.startswith(STARTED)
        return said
