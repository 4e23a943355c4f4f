"""The process that children are forked from. Started as a module by `host.py`.

It imports what its task needs once, enters namespaces where they are to be had, and forks a child
in milliseconds when its parent asks. Protocol: one JSON object at a time on the control socket,
with a `word` and the `number` of a child: "fork" (with its channel and, where it has such, its
stdout and stderr), "end", "drop" (to end without waiting for it), "stop", "continue"; each is
answered by one line.

A child reads one JSON object a line, {"call": number, …}, and answers in order, {"done": number,
…}. One whose confinement fails says {"failed": why} on its channel and never sees a question. What
it answers may be anything where its task runs code of others: whoever reads it trusts none of it.
"""

import contextlib
import gc
import importlib
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Collection, Sequence
from typing import Any

from engines.process import confinement, kernel, namespaces, seccomp, start

Task = Callable[[dict[str, Any]], dict[str, Any]]

SIGNALS = {"stop": signal.SIGSTOP, "continue": signal.SIGCONT, "drop": signal.SIGKILL}
OUT_OF_MEMORY = (
    b'{"done": %d, "status": "memory", "kind": "too long",'
    b' "error": "MemoryError: it needs more than it may have"}\n'
)


class Template:
    def __init__(self, order: dict[str, Any], control: socket.socket) -> None:
        self._order, self._control = order, control
        self._layers: list[str] | None = order["layers"]
        self._isolated = "namespaces" in (self._layers or ())
        self._limits = confinement.Limits(**order["limits"])
        self._readable = [*namespaces.system_paths(programs=False), *order["packages"]]
        self._used_bytes = 0
        self._own_namespace = -1
        self._pids: dict[int, int] = {}
        self._dropped: set[int] = set()

    def prepare(self) -> None:
        if self._isolated:
            namespaces.unshare_all(network=False)  # before an import may start a thread
        packages = self._order["packages"]
        sys.path += [path for path in packages if path not in sys.path]
        task = importlib.import_module(self._order["task"])
        self._task: Task = task.build_task(*self._order["arguments"])
        sys.path[:] = paths_of_code(sys.path, packages, start.STUDIO)
        if sys.platform == "linux":
            with open("/proc/self/statm") as file:
                self._used_bytes = int(file.read().split()[0]) * os.sysconf("SC_PAGESIZE")
        if self._isolated:
            namespaces.build_root(self._readable, temporary_mb=0)
            # What a first child needs is made here once; in a namespace it is process number 1.
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
        start.send(self._control, {"ready": True})
        while (received := socket.recv_fds(self._control, 4096, 3))[0]:
            message, descriptors, _, _ = received
            try:
                reply = self._carry_out(json.loads(message), descriptors)
            except OSError as error:
                reply = {"error": str(error)}
            start.send(self._control, reply)
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
            return {"error": "no such process"}
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
                    self._become_child(folder, *descriptors)
            finally:
                if self._isolated:  # else the next child would share this one's namespace
                    kernel.call("setns", "setns", self._own_namespace, kernel.CLONE_NEWPID)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        return pid

    def _become_child(self, folder: str, descriptor: int, *output: int) -> None:
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
                start.send(channel, {"failed": str(error)})
                channel.makefile().readline()  # with an order unread, our words would be lost
                os._exit(1)
            answer_questions(channel, self._task)
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
        if folder:
            os.chdir(folder)
            os.environ["HOME"] = os.environ["TMPDIR"] = folder
        confinement.limit_resources(self._limits, used_bytes=self._used_bytes, processes=processes)
        kernel.die_with_parent()
        writable = [folder] if folder else []
        confinement.confine(self._layers, readable=readable, writable=writable, code=True)

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


def paths_of_code(paths: Sequence[str], packages: Collection[str], studio: str) -> list[str]:
    """Leave out a checkout from which the studio itself is imported: it is not for the code.

    Where the studio was installed, that folder is the one of all packages.
    """
    return [path for path in paths if path in packages or path != studio]


def answer_questions(channel: socket.socket, task: Task) -> None:
    """Answer until the parent closes the channel. Ends the process after a lack of memory."""
    for line in channel.makefile("rb"):
        question = json.loads(line)
        number = question.pop("call")
        # Ready-made: when it is needed there may be no memory to make it.
        out_of_memory = OUT_OF_MEMORY % number
        try:
            answer = task(question)
        except MemoryError:
            channel.sendall(out_of_memory)
            os._exit(3)  # a process that ran out of memory is not trusted with another answer
        except RecursionError:
            answer = {"kind": "too long", "error": "the expression is nested too deeply"}
        except Exception as error:  # becomes the recorded error of the call
            answer = {"error": f"{type(error).__name__}: {str(error)[:200]}"}
        channel.sendall(json.dumps({**answer, "done": number}).encode() + b"\n")


def main(descriptor: int) -> None:
    os.chdir("/")  # so that no folder of the user is in use
    control, order = start.receive_order(descriptor)
    os.environ.clear()
    os.environ.update({"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"})
    template = Template(order, control)
    try:
        template.prepare()
    except Exception as error:  # becomes the parent's
        start.send(control, {"error": f"{type(error).__name__}: {error}"})
        return
    template.run()


if __name__ == "__main__":
    main(int(sys.argv[1]))
