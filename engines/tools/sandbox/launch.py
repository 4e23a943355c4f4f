"""Confines and starts one program, and ends all of it. Started as a module by `sandbox.py`.

Its stdin is the program's. Out of the control socket come `STARTED`, with the listener where there
is one, then the fields of `ProgramResult` once nothing of the program is left; an "error" where it
cannot be confined. When the socket ends, so does the program.
"""

import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from engines.process import confinement, kernel, namespaces, start

CHECK_S, END_S = 0.1, 10.0
TAIL = 1 << 16
FILES = 1024
SERVER_LIMITS = confinement.Limits(
    wall_s=1e9, cpu_s=1_000_000, memory_mb=4_096, disk_mb=1_024, processes=256
)
"""Of a server, which lives as long as its run."""


class Launcher:
    """Without `keep_output` the program writes to our own stdout and stderr."""

    def __init__(
        self, order: dict[str, Any], control: socket.socket, *, keep_output: bool = True
    ) -> None:
        self._order, self._control = order, control
        self._limits = confinement.Limits(**order["limits"])
        self._folder: str = order["folder"]
        self._layers: list[str] = order["layers"]
        self._isolated = "namespaces" in self._layers
        self._networked: bool = order["network"] == "public"
        self._readable = [*namespaces.system_paths(programs=True), *order["readable"]]
        pipes = [os.pipe() for _ in range(2 if keep_output else 0)]
        self._open = [ours for ours, _ in pipes]
        self._theirs = [theirs for _, theirs in pipes]
        self._tails = dict.fromkeys(self._open, b"")

    def run(self) -> None:
        told, tell = os.pipe()
        if self._isolated:
            namespaces.unshare_all(network=self._networked)
            pid = self._fork(lambda: self._be_first(tell))
        else:
            if sys.platform == "linux":
                kernel.prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: orphans become our children
            pid = self._fork(self._become_program)
        for descriptor in (tell, *self._theirs):
            os.close(descriptor)
        began = time.monotonic()
        code, why = self._watch(pid, began + self._limits.wall_s)
        if self._isolated:
            code = int(os.read(told, 16) or code)
        result: dict[str, Any] = {
            "status": why or ("error" if code else "ok"),
            "returncode": None if why else code,
            "elapsed_s": time.monotonic() - began,
        }
        for name, tail in zip(("stdout", "stderr"), self._tails.values(), strict=False):
            result[name] = tail.decode("utf-8", "replace")
        if why == "timeout":
            result["error"] = f"it was stopped after {self._limits.wall_s:g} s"
        start.send(self._control, result)

    def _fork(self, work: Callable[[], None]) -> int:
        pid = os.fork()
        if pid == 0:
            try:
                work()
            except Exception as error:
                start.send(self._control, {"error": str(error)[:500]})
            finally:
                os._exit(1)
        return pid

    def _watch(self, pid: int, end: float) -> tuple[int, str]:
        """Until it has ended, or must for the reason given; nothing of it is then left."""
        ended, why = 0, ""
        while not ended and not why:
            self._read(CHECK_S)
            ended, status = os.waitpid(pid, os.WNOHANG)
            if select.select([self._control], [], [], 0)[0]:
                why = "killed"
            elif time.monotonic() > end:
                why = "timeout"
        if not ended:
            if sys.platform != "linux":
                os.killpg(pid, signal.SIGKILL)
            os.kill(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
        if sys.platform == "linux" and not self._isolated:
            kill_children()
        while self._open and self._read(END_S):
            pass
        return os.waitstatus_to_exitcode(status), "" if ended else why

    def _read(self, wait_s: float) -> bool:
        """Keep the last of the output; whether there was any, or its end."""
        ready = select.select(self._open, [], [], wait_s)[0]
        for descriptor in ready:
            part = os.read(descriptor, TAIL)
            self._tails[descriptor] = (self._tails[descriptor] + part)[-TAIL:]
            if not part:
                self._open.remove(descriptor)
        return bool(ready)

    def _be_first(self, tell: int) -> None:
        """The first process of the namespace: starts the program, and ends with it."""
        kernel.die_with_parent()
        kernel.set_undumpable()
        namespaces.build_root(
            self._readable, writable=[self._folder], temporary_mb=self._limits.disk_mb
        )
        pid = self._fork(self._become_program)
        ended = 0
        while ended != pid:
            ended, status = os.wait()  # orphans come here, too
        os.write(tell, str(os.waitstatus_to_exitcode(status)).encode())

    def _become_program(self) -> None:
        os.setsid()
        os.chdir(self._folder)
        listeners = []
        if self._isolated and not self._networked:
            listeners.append(listen_inside(self._order["port"]).detach())
        self._confine()
        socket.send_fds(self._control, [start.STARTED], listeners)
        for number, descriptor in enumerate(self._theirs, start=1):
            os.dup2(descriptor, number)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        argv, env = self._order["argv"], self._order["env"]
        try:
            os.execvpe(argv[0], argv, env)
        except (OSError, ValueError) as error:
            os.write(2, f"{argv[0]} cannot be started: {error}\n".encode(errors="replace"))
            os._exit(127)

    def _confine(self) -> None:
        others = 4 if self._isolated else count_own_threads()
        confinement.limit_resources(
            self._limits, processes=self._limits.processes + others, files=FILES
        )
        if self._isolated:
            namespaces.become_nobody()
        elif self._layers:
            kernel.drop_capabilities()
        confinement.confine(
            self._layers,
            readable=["/"] if self._isolated else self._readable,
            writable=[self._folder, *(["/tmp"] if self._isolated else [])],
            code=False,
            network=self._isolated or self._networked,
            ports=[self._order["port"]],
        )


def listen_inside(port: int) -> socket.socket:
    """A listener on the loopback of a network namespace that has just been made."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        up = struct.pack("16sH22x", b"lo", 1)  # struct ifreq with IFF_UP
        fcntl.ioctl(any_socket, 0x8914, up)  # SIOCSIFFLAGS
    return socket.create_server(("127.0.0.1", port), backlog=128)


def count_own_threads() -> int:
    """Of this user on the whole machine, which the limit of processes counts."""
    count = 0
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if folder.stat().st_uid == os.getuid():
                count += len(os.listdir(folder / "task"))
    return count


def kill_children() -> None:
    """Kill and reap all our children until there are none: orphans become our children."""
    with contextlib.suppress(ChildProcessError):
        while True:
            for folder in Path("/proc").glob("[0-9]*"):
                with contextlib.suppress(OSError):
                    # The name in parentheses may hold anything.
                    after_name = (folder / "stat").read_bytes().rpartition(b")")[2]
                    if int(after_name.split()[1]) == os.getpid():
                        os.kill(int(folder.name), signal.SIGKILL)
            os.waitpid(-1, 0)


def serve_stdio() -> None:
    """Confine ourselves and become a server that is spoken to over our own standard streams.

    Called as `SETTINGS PROGRAM …`, with {"folder": …, "readable": […], "accept": false} as
    settings. It takes the place of the program: it has its environment, no network, and ends when
    this process does. Says on standard error why it cannot be confined.
    """
    from engines.process import tiers  # other programs start sooner without asyncio

    given, *argv = sys.argv[1:]
    settings = json.loads(given)
    report = tiers.choose_tier(tiers.probe_layers())
    if report.tier == "resource-limits-only" and not settings["accept"]:
        sys.exit("this machine has no sandbox: set agent.sandbox: resource-limits-only")
    if report.tier == "namespaces" and os.geteuid() == 0:
        namespaces.give_to_nobody(settings["folder"])
    order = {
        "argv": argv,
        # The interpreter of the studio first, as for programs that are agents.
        "env": {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        "folder": settings["folder"],
        "readable": settings["readable"],
        "layers": report.in_force,
        "network": "none",
        "port": 0,
        "limits": asdict(SERVER_LIMITS),
    }
    ours, theirs = socket.socketpair()
    with ours:  # as long as it is open, the program may run
        Launcher(order, theirs, keep_output=False).run()


def main(descriptor: int) -> None:
    control, order = start.receive_order(descriptor)
    try:
        Launcher(order, control).run()
    except OSError as error:
        start.send(control, {"error": str(error)})


if __name__ == "__main__":
    main(int(sys.argv[1]))
