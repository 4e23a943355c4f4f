"""Starts the processes of `worker.py`, in which a user's function runs.

A process is ended with its session: a child that opens a session of its own (a daemon) outlives
it, and so do containers and jobs elsewhere. Limits no memory.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from engines.core.errors import VerifierError
from engines.process.pool import Child, Message
from engines.process.scratch_folder import ScratchFolder
from engines.process.start import kill_session, start_python
from engines.verifiers.stated_answer import short_text

DIED = {
    "cause": "the process ended while it loaded the file.",
    "move": "Look for what exits or crashes at its top level.",
}


def parse_message(line: bytes) -> Message | None:
    """A message of the worker; None where it is none."""
    try:
        message: Any = json.loads(line)
    except (ValueError, RecursionError):
        return None
    match message:
        case (
            {"loaded": {"signature": str(), "async": bool()}}
            | {"refused": {"cause": str(), "move": str()}}
            | {"done": int(), "error": str()}
            | {"done": int(), "results": list()}
            | {"ask": int(), "call": int(), "messages": list()}
        ):
            whole: Message = message
            return whole
    return None


class FunctionLauncher:
    """Starts processes that have loaded a user's file, within `load_s`.

    `concurrency` is how many calls run at a time in one process where the function is a
    coroutine.
    """

    exit_text = "the verifier's process ended (crash, exit or out of memory)"

    def __init__(self, place: str, *, concurrency: int, load_s: float) -> None:
        self._place, self._concurrency, self._load_s = place, concurrency, load_s
        self.load: Message = {}  # the order that loads the file, in every process
        self.loaded: Mapping[str, Any] | None = None  # function, signature and async, once known

    async def start(
        self, on_message: Callable[[Message], None], on_exit: Callable[[], None]
    ) -> Child:
        """Start a process and load the file.

        Raises VerifierError: the file cannot serve, or there can be no further process.
        """
        first: asyncio.Future[Message] = asyncio.get_running_loop().create_future()

        def handle_message(message: Message) -> None:
            if first.done():
                on_message(message)
            else:
                first.set_result(message)

        def handle_exit() -> None:
            if not first.done():
                first.set_result({"refused": DIED})
            on_exit()

        try:
            child = await _start_child(handle_message, handle_exit)
        except OSError as error:
            cause = f"no process can be started for it ({error})."
            move = "Free processes and memory, and start again."
            raise VerifierError(self._place, cause, move) from error
        try:
            child.send({"load": self.load})
            async with asyncio.timeout(self._load_s):
                message = await first
        except TimeoutError:
            cause = f"it was not loaded within {self._load_s:g} s."
            message = {"refused": {"cause": cause, "move": "Look for what it waits for."}}
        except BaseException:
            await child.close()
            raise
        if refused := message.get("refused", None if "loaded" in message else DIED):
            await child.close()
            place = f"{self._place}:{refused['line']}" if refused.get("line") else self._place
            # An exception's text is the file's own: no escape sequence reaches a terminal.
            cause, move = (short_text(refused[name], 500) for name in ("cause", "move"))
            raise VerifierError(place, cause, move)
        self.loaded = message["loaded"]
        child.capacity = self._concurrency if message["loaded"]["async"] else 1
        return child

    async def aclose(self) -> None:
        """Nothing is left once the processes are ended."""


async def _start_child(on_message: Callable[[Message], None], on_exit: Callable[[], None]) -> Child:
    folder = ScratchFolder("studio-verifier-")
    # Our environment is passed on whole: the file is the user's code and may need its keys.
    environment = {**os.environ, "TMPDIR": folder.path}
    try:
        process, ours = start_python(
            ["-m", "engines.verifiers.foreign.worker"], environment, paths=sys.path
        )
    except BaseException:
        folder.remove()
        raise

    def clean_up() -> None:
        process.wait()
        folder.remove()

    async def kill() -> None:
        kill_session(process)  # here and now: a thread may have to be waited for
        await asyncio.to_thread(clean_up)

    child = Child(on_message, on_exit, parse_message, kill)
    await child.connect(ours)
    return child
