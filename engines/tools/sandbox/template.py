"""The process that interpreters are forked from. Started as a module; imports no studio code.

It imports what code often needs once, enters namespaces where they are to be had, and forks an
interpreter in milliseconds when its parent asks. Protocol: one JSON object at a time on the
control socket, with a `word` and the `number` of an interpreter: "fork" (with three descriptors:
channel, stdout, stderr), "end", "drop" (to end without waiting for it), "stop", "continue"; each is
answered by one line. An interpreter whose confinement fails says {"failed": why} on its channel
and never sees code.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import signal
import socket
import sys
from typing import Any

from engines.tools.sandbox import interpreter
from engines.tools.sandbox.confine import confine
from engines.tools.sandbox.control import receive_order, send
from engines.tools.sandbox.layers import kernel, namespaces, seccomp
from engines.tools.sandbox.limits import Limits, limit_resources

SIGNALS = {"stop": signal.SIGSTOP, "continue": signal.SIGCONT, "drop": signal.SIGKILL}


class Template:
    def __init__(self, order: dict[str, Any], control: socket.socket) -> None:
        self._layers: list[str] = order["layers"]
        self._isolated = "namespaces" in self._layers
        self._limits = Limits(**order["limits"])
        self._readable = [*namespaces.system_paths(programs=False), *order["packages"]]
        self._control = control
        self._used_bytes = 0
        self._own_namespace = -1
        self._pids: dict[int, int] = {}
        self._dropped: set[int] = set()

    def prepare(self, preload: list[str]) -> None:
        if self._isolated:
            namespaces.unshare_all(network=False)  # before an import may start a thread
        for name in preload:
            importlib.import_module(name)
        if sys.platform == "linux":
            with open("/proc/self/statm") as file:
                self._used_bytes = int(file.read().split()[0]) * os.sysconf("SC_PAGESIZE")
        # What a first call needs is made here once; in a namespace its process is number 1.
        interpreter.Interpreter().run("1 + 1")
        if self._isolated:
            namespaces.build_root(self._readable, temporary_mb=0)
            seccomp.build_filter(1, code=True, streams_only=True)
        gc.collect()
        gc.freeze()  # keeps the collector of each fork off the pages it shares with us

    def run(self) -> None:
        kernel.die_with_parent()
        if self._isolated:
            pid = os.fork()  # the first process of the namespace: all others end with it
            if pid:
                self._control.close()
                os.waitpid(pid, 0)
                return
            kernel.die_with_parent()
            self._own_namespace = os.pidfd_open(os.getpid())
        send(self._control, {"ready": True})
        while (received := socket.recv_fds(self._control, 4096, 3))[0]:
            message, descriptors, _, _ = received
            try:
                reply = self._carry_out(json.loads(message), descriptors)
            except OSError as error:
                reply = {"error": str(error)}
            send(self._control, reply)
        for pid in self._pids.values():
            self._end(pid)

    def _carry_out(self, order: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        self._dropped -= {pid for pid in self._dropped if os.waitpid(pid, os.WNOHANG) != (0, 0)}
        word, number = order["word"], order["number"]
        if word == "fork":
            self._pids[number] = self._fork(order["folder"], descriptors)
            return {}
        pid = self._pids.get(number)
        if pid is None:
            return {"error": "no such interpreter"}
        if word == "end":
            return self._end(self._pids.pop(number))
        if word == "drop":
            self._dropped.add(self._pids.pop(number))
        self._signal(pid, SIGNALS[word])
        return {}

    def _fork(self, folder: str, descriptors: list[int]) -> int:
        try:
            if self._isolated:
                kernel.unshare(kernel.CLONE_NEWPID)
            try:
                pid = os.fork()
                if pid == 0:
                    self._become_interpreter(folder, *descriptors)
            finally:
                if self._isolated:  # else the next interpreter would share this one's namespace
                    kernel.call("setns", "setns", self._own_namespace, kernel.CLONE_NEWPID)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        return pid

    def _become_interpreter(self, folder: str, descriptor: int, *output: int) -> None:
        channel = socket.socket(fileno=descriptor)
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self._control.close()
            for number, file in enumerate(output, start=1):
                os.dup2(file, number)
                os.close(file)
            if self._isolated:
                os.close(self._own_namespace)
            try:
                self._confine(folder)
            except OSError as error:
                channel.sendall(json.dumps({"failed": str(error)}).encode() + b"\n")
                channel.makefile().readline()  # with an order unread, our words would be lost
                os._exit(1)
            interpreter.answer_calls(channel)
        finally:
            os._exit(0)  # leave without running what the template registered

    def _confine(self, folder: str) -> None:
        processes, readable = None, self._readable
        if self._isolated:
            namespaces.mount_private(self._limits.disk_mb)
            namespaces.become_nobody()
            # A user namespace counts the processes of its user from the beginning.
            kernel.unshare(kernel.CLONE_NEWUSER)
            folder, readable, processes = namespaces.PRIVATE, ["/"], self._limits.processes
        else:
            os.setsid()
            os.chdir(folder)
        os.environ["HOME"] = os.environ["TMPDIR"] = folder
        limit_resources(self._limits, used_bytes=self._used_bytes, processes=processes)
        if self._layers:
            kernel.drop_capabilities()
        kernel.die_with_parent()
        confine(self._layers, readable=readable, writable=[folder], code=True)
        if self._layers:
            kernel.set_undumpable()

    def _signal(self, pid: int, number: signal.Signals) -> None:
        """Nothing else reaps our children, so a pid among them is never another process."""
        if not self._layers:  # it may have children
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, number)
        os.kill(pid, number)

    def _end(self, pid: int) -> dict[str, Any]:
        self._signal(pid, signal.SIGKILL)
        _, status, used = os.wait4(pid, 0)
        cpu_s = used.ru_utime + used.ru_stime
        return {"status": os.waitstatus_to_exitcode(status), "cpu_s": cpu_s}


def main(descriptor: int) -> None:
    os.chdir("/")  # so that no folder of the user is in use
    control, order = receive_order(descriptor)
    # A checkout from which the studio itself is imported is not for the code. Where the studio was
    # installed, that folder is the one of all packages.
    packages = order["packages"]
    paths = dict.fromkeys([*sys.path, *packages])
    sys.path[:] = [path for path in paths if path in packages or path != order["studio"]]
    os.environ.clear()
    os.environ.update({"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"})
    template = Template(order, control)
    try:
        template.prepare(order["preload"])
    except (OSError, ImportError) as error:
        send(control, {"error": str(error)})
        return
    template.run()


if __name__ == "__main__":
    main(int(sys.argv[1]))
