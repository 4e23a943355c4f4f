"""A template process and the workers forked from it, for tasks that may have to be killed.

The template imports what its task needs once, then forks a worker in milliseconds whenever
its parent asks. It is started by its path, so that it imports nothing of `engines` but its task
and what confines a worker: answers of a model are parsed there.
Protocol: each order on the template's control socket is one JSON object, {"kill": pid}, or
any with a new worker's socket attached; each reply is one line. A worker reads one JSON
object a line, {"call": number, …}, and answers in order, {"done": number, …}.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import resource
import select
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

from engines.tools.sandbox.confine import confine_worker

Task = Callable[[dict[str, Any]], dict[str, Any]]

PARENT_CHECK_S = 2.0
OUT_OF_MEMORY = (
    b'{"done": %d, "error": "the check needs more memory than it may have", "kind": "too long"}\n'
)


def answer_questions(channel: socket.socket, task: Task) -> None:
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
            answer = {"error": "the expression is nested too deeply", "kind": "too long"}
        except Exception as error:  # becomes the verdict's recorded error
            answer = {"error": f"{type(error).__name__}: {str(error)[:200]}"}
        channel.sendall(json.dumps({"done": number, **answer}).encode() + b"\n")


def serve(control: socket.socket, task: Task, memory_bytes: int, parent: int) -> None:
    """Fork or kill a worker per order; when the parent is gone, kill them all and return."""
    children: set[int] = set()
    while True:
        # End of file tells of the parent's end, unless a fork of it still holds the socket.
        if not select.select([control], [], [], PARENT_CHECK_S)[0]:
            if os.getppid() != parent:
                break
            continue
        message, descriptors, _, _ = socket.recv_fds(control, 4096, 1)
        if not message:
            break
        if not descriptors:
            kill_workers(children.intersection([json.loads(message)["kill"]]), children)
            control.sendall(b'{"killed": true}\n')
            continue
        with socket.socket(fileno=descriptors[0]) as channel:
            try:
                pid = os.fork()
            except OSError as error:
                control.sendall(json.dumps({"error": str(error)}).encode() + b"\n")
                continue
            if pid == 0:
                try:
                    control.close()
                    limit_process(memory_bytes)
                    answer_questions(channel, task)
                finally:
                    os._exit(0)  # leave without running what the template registered
        children.add(pid)
        control.sendall(json.dumps({"pid": pid}).encode() + b"\n")
    kill_workers(set(children), children)


def kill_workers(pids: set[int], children: set[int]) -> None:
    """Kill and reap. Nothing else reaps, so a pid in `children` is never another process."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        children.discard(pid)


def limit_process(memory_bytes: int) -> None:
    template = os.getppid()
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: die with the template
        if os.getppid() != template:
            os._exit(0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError, ValueError):  # macOS knows RLIMIT_AS but may refuse it
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    # It imports further modules when a check needs them, and nothing more than that.
    confine_worker(readable=[path for path in sys.path if path])


def main(task_module: str, memory_bytes: int, parent: int, descriptor: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.chdir("/")  # so that no folder of the user is in use
    control = socket.socket(fileno=descriptor)
    try:
        task: Task = importlib.import_module(task_module).build_task()
    except Exception as error:  # becomes the parent's VerifierError
        control.sendall(json.dumps({"error": f"{type(error).__name__}: {error}"}).encode() + b"\n")
        return
    gc.collect()
    gc.freeze()  # keeps the collector of each fork off the pages it shares with the template
    control.sendall(b'{"ready": true}\n')
    serve(control, task, memory_bytes, parent)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
