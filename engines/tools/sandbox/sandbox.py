"""Model-written Python in processes of our own: the door of this package.

    sandbox = Sandbox()
    report = await sandbox.start()
    session = sandbox.session()
    result = await session.run("1 + 1")     # result.value == "2"
    await sandbox.aclose()

What it stops, as far as the machine has the layers: reading and writing files of others, any
network, any other process, memory, disk, time and output beyond `Limits`. It does not stop a fault
of the kernel itself. Names of files outside can be asked for where there are no namespaces.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from engines.tools.sandbox.host import Host
from engines.tools.sandbox.limits import Limits
from engines.tools.sandbox.program import Program, launch_program
from engines.tools.sandbox.session import Session
from engines.tools.sandbox.tiers import SandboxError, TierReport, find_tier

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
            self._host = Host(self.limits, report, self._preload)
        await self._host.start()
        return report

    def session(self) -> Session:
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
    ) -> Program:
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
        order = {
            "argv": list(argv),
            "layers": report.in_force,
            "folder": os.path.realpath(folder),
            "env": dict(env),
            "readable": [os.path.abspath(path) for path in readable],
            "network": network,
            "port": port,
        }
        program = await launch_program(order, stdin, limits or self.limits)
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
