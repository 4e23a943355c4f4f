"""The process that interpreters are forked from. Started as a module; imports no studio code.

It imports what code often needs once, enters namespaces where they are to be had, and forks an
interpreter in milliseconds when its parent asks. Protocol: one JSON object at a time on the
control socket, {"fork": folder} with three descriptors (channel, stdout, stderr), or {"end": pid},
{"drop": pid} (to end without waiting for it), {"stop": pid}, {"continue": pid}; each is answered by
one line. An interpreter whose confinement fails says {"failed": why} on its channel and never sees
code.
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
from engines.tools.sandbox.layers import kernel, landlock, namespaces, seccomp
from engines.tools.sandbox.limits import Limits, limit_resources

PARENT_CHECK_S = 2.0


class Template:
    def __init__(self, order: dict[str, Any], control: socket.socket) -> None:
        self._tier: str = order["tier"]
        self._landlock: bool = order["landlock"]
        self._limits = Limits(**order["limits"])
        self._readable = [*namespaces.system_paths(programs=False), *order["packages"]]
        self._control = control
        self._parent = os.getppid()
        self._used_bytes = 0

    def prepare(self, preload: list[str]) -> None:
        if self._tier == "namespaces":
            namespaces.unshare_all(network=False)  # before an import may start a thread
        for name in preload:
            importlib.import_module(name)
        if sys.platform == "linux":
            with open("/proc/self/statm") as file:
                self._used_bytes = int(file.read().split()[0]) * os.sysconf("SC_PAGESIZE")
        if self._tier == "namespaces":
            namespaces.build_root(self._readable, temporary_mb=0)
        # What a first call needs is made here once; in a namespace its process is number 1.
        interpreter.Interpreter().run("1 + 1")
        if self._tier == "namespaces":
            seccomp.build_filter(1, code=True)
        gc.collect()
        gc.freeze()  # keeps the collector of each fork off the pages it shares with us

    def run(self) -> None:
        if self._tier != "namespaces":
            self._serve()
            return
        pid = os.fork()  # the first process of the namespace: all others end with it
        if pid == 0:
            kernel.die_with_parent()
            self._parent = 0
            self._serve()
            os._exit(0)
        self._control.close()
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
        while os.waitpid(pid, os.WNOHANG) == (0, 0) and os.getppid() == self._parent:
            signal.sigtimedwait([signal.SIGCHLD], PARENT_CHECK_S)

    def _serve(self) -> None:
        children: set[int] = set()
        own = os.pidfd_open(os.getpid()) if self._tier == "namespaces" else -1
        self._control.settimeout(PARENT_CHECK_S)
        self._reply({"ready": True})
        dropped: set[int] = set()
        while True:
            dropped -= {pid for pid in dropped if os.waitpid(pid, os.WNOHANG) != (0, 0)}
            try:
                message, descriptors, _, _ = socket.recv_fds(self._control, 4096, 3)
            except TimeoutError:
                if os.getppid() != self._parent:
                    break  # a fork of the parent may still hold the socket open
                continue
            if not message:
                break
            ((word, value),) = json.loads(message).items()
            if word == "fork":
                self._fork(value, descriptors, children, own)
            elif value not in children:
                self._reply({"error": "no such interpreter"})
            elif word == "end":
                self._reply(self._end(value))
                children.discard(value)
            elif word == "drop":
                self._signal(value, signal.SIGKILL)
                children.discard(value)
                dropped.add(value)
                self._reply({})
            else:
                self._signal(value, signal.SIGSTOP if word == "stop" else signal.SIGCONT)
                self._reply({})
        for pid in children | dropped:
            self._end(pid)

    def _fork(self, folder: str, descriptors: list[int], children: set[int], own: int) -> None:
        try:
            if own >= 0:
                kernel.unshare(kernel.CLONE_NEWPID)
            try:
                pid = os.fork()
                if pid == 0:
                    self._become_interpreter(folder, descriptors, own)
            finally:
                if own >= 0:  # else the next interpreter would share this one's namespace
                    kernel.setns(own, kernel.CLONE_NEWPID)
        except OSError as error:
            self._reply({"error": str(error)})
        else:
            children.add(pid)
            self._reply({"pid": pid})
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _become_interpreter(self, folder: str, descriptors: list[int], own: int) -> None:
        channel = socket.socket(fileno=descriptors[0])
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self._control.close()
            for number, descriptor in enumerate(descriptors[1:], start=1):
                os.dup2(descriptor, number)
                os.close(descriptor)
            if own >= 0:
                os.close(own)
            try:
                self._confine(folder)
            except OSError as error:
                channel.sendall(json.dumps({"failed": str(error)}).encode() + b"\n")
                os._exit(1)
            interpreter.answer_calls(channel)
        finally:
            os._exit(0)  # leave without running what the template registered

    def _confine(self, folder: str) -> None:
        processes, readable = None, self._readable
        if self._tier == "namespaces":
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
        if self._tier == "resource-limits-only":
            return
        kernel.drop_capabilities()
        kernel.die_with_parent()
        if self._landlock:
            landlock.restrict(readable=readable, writable=[folder], network=False)
        seccomp.install(code=True)
        kernel.set_undumpable()

    def _signal(self, pid: int, number: signal.Signals) -> None:
        """Nothing else reaps our children, so a pid among them is never another process."""
        if self._tier == "resource-limits-only":
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, number)
        os.kill(pid, number)

    def _end(self, pid: int) -> dict[str, Any]:
        self._signal(pid, signal.SIGKILL)
        _, status, used = os.wait4(pid, 0)
        cpu_s = used.ru_utime + used.ru_stime
        return {"status": os.waitstatus_to_exitcode(status), "cpu_s": cpu_s}

    def _reply(self, message: dict[str, Any]) -> None:
        self._control.sendall(json.dumps(message).encode() + b"\n")


def main(descriptor: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.chdir("/")  # so that no folder of the user is in use
    control = socket.socket(fileno=descriptor)
    order = json.loads(control.recv(65536))
    # The folder from which the studio itself is imported is not for the code.
    paths = dict.fromkeys([*sys.path, *order["packages"]])
    sys.path[:] = [path for path in paths if path != order["studio"]]
    os.environ.clear()
    os.environ.update({"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"})
    template = Template(order, control)
    try:
        template.prepare(order["preload"])
    except (OSError, ImportError) as error:
        control.sendall(json.dumps({"error": str(error)}).encode() + b"\n")
        return
    template.run()


if __name__ == "__main__":
    main(int(sys.argv[1]))
