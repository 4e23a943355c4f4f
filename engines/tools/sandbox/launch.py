"""Confines and starts one program, and ends all of it. Started as a module by `program.py`.

Protocol: one JSON object with the program's three streams comes in on the control socket. Out go
{"started": true}, with the listener where there is one, then {"failed": why} or {"code": number}
once nothing of the program is left. When the control socket ends, so does the program.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import struct
import sys
from pathlib import Path
from typing import Any

from engines.tools.sandbox.layers import kernel, landlock, namespaces, seccomp
from engines.tools.sandbox.limits import Limits, limit_resources

CHECK_S = 0.1
FILES = 1024
STARTED = b'{"started": true}\n'


class Launcher:
    def __init__(self, order: dict[str, Any], streams: list[int], control: socket.socket) -> None:
        self._order, self._streams, self._control = order, streams, control
        self._limits = Limits(**order["limits"])
        self._folder: str = order["folder"]
        self._isolated: bool = order["tier"] == "namespaces"
        self._networked: bool = order["network"] == "public"
        self._readable = [*namespaces.system_paths(programs=True), *order["readable"]]

    def run(self) -> None:
        if self._isolated:
            namespaces.unshare_all(network=self._networked)
        elif sys.platform == "linux":
            kernel.prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: what loses its parent becomes our child
        told, tell = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(told)
            with self._reporting():
                if self._isolated:
                    self._be_first(tell)
                self._control.sendall(STARTED)
                self._become_program()
        os.close(tell)
        for descriptor in self._streams:
            os.close(descriptor)
        code = self._wait(pid)
        with os.fdopen(told, "rb") as file:
            said = file.read(16)  # how the program ended, where the child is not itself the program
        self._control.sendall(json.dumps({"code": int(said or code)}).encode() + b"\n")

    def _wait(self, pid: int) -> int:
        """Until the program or our parent has ended; then all that it started is ended, too."""
        status, ended = 0, 0
        while not ended and not select.select([self._control], [], [], CHECK_S)[0]:
            ended, status = os.waitpid(pid, os.WNOHANG)
        if not ended:
            if sys.platform != "linux":
                os.killpg(pid, signal.SIGKILL)
            os.kill(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
        if sys.platform == "linux" and not self._isolated:
            kill_children()
        return os.waitstatus_to_exitcode(status)

    def _be_first(self, tell: int) -> None:
        """The first process of the namespace: starts the program, and ends with it."""
        kernel.die_with_parent()
        kernel.set_undumpable()
        namespaces.build_root(
            self._readable, writable=[self._folder], temporary_mb=self._limits.disk_mb
        )
        if self._networked:
            self._control.sendall(STARTED)
        else:
            with listen_inside(self._order["port"]) as listener:
                socket.send_fds(self._control, [STARTED], [listener.fileno()])
        pid = os.fork()
        if pid == 0:
            with self._reporting():
                self._become_program()
        for descriptor in self._streams:
            os.close(descriptor)
        while True:
            ended, status = os.wait()  # orphans come here, too
            if ended == pid:
                os.write(tell, str(os.waitstatus_to_exitcode(status)).encode())
                os._exit(0)

    def _become_program(self) -> None:
        os.setsid()
        for number, descriptor in enumerate(self._streams):
            os.dup2(descriptor, number)
        os.chdir(self._folder)
        self._confine()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        argv, env = self._order["argv"], self._order["env"]
        try:
            os.execvpe(argv[0], argv, env)
        except (OSError, ValueError) as error:
            os.write(2, f"{argv[0]} cannot be started: {error}\n".encode(errors="replace"))
            os._exit(127)

    def _confine(self) -> None:
        limits = self._limits
        others = 4 if self._isolated else count_own_processes()
        limit_resources(limits, processes=limits.processes + others, files=FILES)
        if self._order["tier"] == "resource-limits-only":
            return
        if self._isolated:
            namespaces.become_nobody()
        kernel.drop_capabilities()
        closed = not self._isolated and not self._networked
        if self._order["landlock"]:
            landlock.restrict(
                readable=["/"] if self._isolated else self._readable,
                writable=[self._folder, *(["/tmp"] if self._isolated else [])],
                network=not closed,
                connect_ports=[self._order["port"]],
            )
        seccomp.install(code=False, streams_only=closed)

    @contextlib.contextmanager
    def _reporting(self) -> Any:
        """Tell of a failure, and never go on in the caller's place."""
        try:
            yield
        except Exception as error:
            self._control.sendall(json.dumps({"failed": str(error)}).encode() + b"\n")
        finally:
            os._exit(1)


def listen_inside(port: int) -> socket.socket:
    """A listener on the loopback of a network namespace that has just been made."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        up = struct.pack("16sH22x", b"lo", 1)  # struct ifreq with IFF_UP
        fcntl.ioctl(any_socket, 0x8914, up)  # SIOCSIFFLAGS
    return socket.create_server(("127.0.0.1", port), backlog=128)


def count_own_processes() -> int:
    """Threads of this user on the whole machine, which the limit of processes counts."""
    count = 0
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if folder.stat().st_uid == os.getuid():
                count += len(os.listdir(folder / "task"))
    return count


def kill_children() -> None:
    """Kill and reap all our children until there are none: orphans become our children."""
    while True:
        for pid in own_children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def own_children() -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            # The name in parentheses may hold anything.
            parent = (folder / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()[1]
            if int(parent) == os.getpid():
                found.append(int(folder.name))
    return found


def main(descriptor: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = socket.socket(fileno=descriptor)
    control.setblocking(True)
    message, streams, _, _ = socket.recv_fds(control, 1 << 16, 3)
    for own in (descriptor, *streams):
        os.set_inheritable(own, False)  # the program gets copies as 0, 1 and 2, and no other
    while not message.endswith(b"\n"):
        part = control.recv(1 << 16)
        if not part:
            return
        message += part
    try:
        Launcher(json.loads(message), streams, control).run()
    except OSError as error:
        control.sendall(json.dumps({"failed": str(error)}).encode() + b"\n")


if __name__ == "__main__":
    main(int(sys.argv[1]))
