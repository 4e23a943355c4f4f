"""The process in which a verifier file of the user runs.

Plain functions are called one at a time in the main thread (math_verify arms SIGALRM, which works
nowhere else), coroutines side by side in one event loop. Deadlines are the parent's, which kills
this process. Memory is not limited. Where the system allows it, it can write in its private
temporary folder, the user's caches and /dev/shm alone, and signal or trace no process but its own
children.

Run as a program with the number of its socket. It gets {"load": …} once, answers {"loaded": …} or
{"refused": …}, and from then on speaks as `engines.process.pool.Launcher` says.
"""

import ast
import asyncio
import concurrent.futures
import contextlib
import glob
import importlib.util
import inspect
import itertools
import json
import os
import queue
import socket
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from engines.core import codec, user_code
from engines.process import confinement, kernel
from engines.verifiers.foreign import calls

MAX_SAID = 240
"""Characters of an exception's text that are passed on."""

Order = codec.JsonMapping


class Channel:
    """Our end of the socket, read by a thread of its own: the main one may be busy or hang."""

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)
        self._socket = socket.socket(fileno=descriptor)
        self._sending = threading.Lock()  # keeps lines whole: user threads may ask, too
        self._numbers = itertools.count(1)
        self._awaited: dict[int, concurrent.futures.Future[str]] = {}
        self.orders: queue.SimpleQueue[Order] = queue.SimpleQueue()
        self.deliver: Callable[[Order], object] = self.orders.put  # called in the reading thread
        threading.Thread(target=self._listen, daemon=True).start()

    def send(self, message: codec.JsonMapping) -> None:
        line = json.dumps(message).encode() + b"\n"
        with self._sending:
            self._socket.sendall(line)

    async def ask(self, call: int, messages: list[dict[str, str]]) -> str:
        """Put a question to the run's judge; RuntimeError where there is no reply."""
        number = next(self._numbers)
        # Not a future of this loop: a plain function may run several loops one by one.
        waiting = self._awaited[number] = concurrent.futures.Future()
        self.send({"ask": number, "call": call, "messages": messages})
        return await asyncio.wrap_future(waiting)

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            for line in self._socket.makefile("rb"):
                self._handle_message(json.loads(line))
        os._exit(0)  # the parent is gone or wants us gone

    def _handle_message(self, message: Order) -> None:
        if "reply" in message:
            waiting = self._awaited.pop(message["reply"])
            if not waiting.set_running_or_notify_cancel():
                return
            if "error" in message:
                waiting.set_exception(RuntimeError(message["error"]))
            else:
                waiting.set_result(message["text"])
        else:
            self.deliver(message)


class LoadedFunction:
    """A user's function with how it is called."""

    def __init__(self, order: Order) -> None:
        self.file = str(order["file"])
        tree = _parse_source(order["source"].encode("latin-1"), self.file)
        _add_folder(str(Path(self.file).parent))
        calls.serve_imports(Path(self.file))
        module = _execute_module(self.file, tree)
        self.chosen: calls.ChosenFunction = calls.choose_function(module, order["function"])
        if order["columns"] is not None:
            calls.check_columns(self.chosen, order["columns"])
        self.messages = calls.reads_messages(tree)

    def loaded_message(self) -> codec.JsonObject:
        name, signature = self.chosen.name, self.chosen.signature
        return {"loaded": {"function": name, "signature": signature, "async": self.chosen.is_async}}


@dataclass(slots=True)
class FunctionCall:
    """One call of the function that was loaded."""

    loaded: LoadedFunction
    order: Order
    channel: Channel
    logged: dict[str, float] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)

    async def ask(self, messages: list[dict[str, str]]) -> str:
        return await self.channel.ask(self.order["call"], messages)

    def start(self) -> Any:
        """Call the function; what it returns may have to be awaited."""
        calls.current_ask.set(self.ask)
        calls.unread.set(self.unread)
        loaded, order = self.loaded, self.order
        given, named = calls.build_arguments(
            loaded.chosen, order, self.logged, as_messages=loaded.messages
        )
        return loaded.chosen.call(*given, **named)

    def result_message(self, returned: Any) -> codec.JsonObject:
        if self.unread:  # the function made something of it, which is no verdict
            raise calls.CannotRead(self.unread[0])
        signature, count = self.loaded.chosen.signature, len(self.order["rollouts"])
        results = calls.parse_results(returned, signature, count, self.logged)
        return {"done": self.order["call"], "results": results}

    def error_message(self, error: BaseException) -> codec.JsonObject:
        line = error_line(error, self.loaded.file, self.loaded.chosen.name)
        return {"done": self.order["call"], "error": line}


def answer_calls(loaded: LoadedFunction, channel: Channel) -> None:
    channel.send(loaded.loaded_message())
    while True:
        call = FunctionCall(loaded, channel.orders.get(), channel)
        try:
            returned = call.start()
            if inspect.isawaitable(returned):
                returned = asyncio.run(_await_result(returned))
            answer = call.result_message(returned)
        except BaseException as error:  # math_verify's timeout and sys.exit are no Exceptions
            answer = call.error_message(error)
        channel.send(answer)


async def answer_calls_concurrently(loaded: LoadedFunction, channel: Channel) -> None:
    tasks: dict[int, asyncio.Task[None]] = {}

    async def answer_call(call: FunctionCall) -> None:
        try:
            answer = call.result_message(await call.start())
        except BaseException as error:  # being cancelled ends the call, too
            answer = call.error_message(error)
        channel.send(answer)

    def deliver(order: Order) -> None:
        if "cancel" in order:
            if task := tasks.get(order["cancel"]):
                task.cancel()
            return
        number = order["call"]
        tasks[number] = asyncio.create_task(answer_call(FunctionCall(loaded, order, channel)))
        tasks[number].add_done_callback(lambda _: tasks.pop(number))

    loop = asyncio.get_running_loop()
    channel.deliver = lambda order: loop.call_soon_threadsafe(deliver, order)
    channel.send(loaded.loaded_message())
    await loop.create_future()


def error_line(error: BaseException, file: str, function: str) -> str:
    """An exception in one line, with the function, its file and the line there that raised it."""
    if isinstance(error, calls.FileRefused):
        return f"the function cannot be called: {error.cause}"
    if isinstance(error, calls.WrongReturn):
        return f"{error} ({function} in {Path(file).name})"
    number = _error_line_number(error, file)
    place = f"{Path(file).name}:{number}" if number else Path(file).name
    return f"{error_text(error)} ({function} in {place})"


def error_text(error: BaseException) -> str:
    """The kind and the text of an exception of the user's code: one line, not too long."""
    text = user_code.error_text(error)
    return text if len(text) <= MAX_SAID else f"{text[: MAX_SAID - 1]}…"


def _error_line_number(error: BaseException, file: str) -> int | None:
    """The line of the file that an exception went through last."""
    frames = traceback.extract_tb(error.__traceback__)
    return next((frame.lineno for frame in reversed(frames) if frame.filename == file), None)


def _parse_source(source: bytes, file: str) -> ast.Module:
    try:
        return ast.parse(source, file)
    except SyntaxError as error:
        raise calls.FileRefused(
            f"it is not Python ({error.msg}).", "Mend it.", error.lineno
        ) from error
    except ValueError as error:
        raise calls.FileRefused(
            f"it is not Python ({error_text(error)}).", "Give a Python file."
        ) from error


def _add_folder(folder: str) -> None:
    """Let the file import its neighbours, after the standard library: it may be math.py."""
    third = (n for n, entry in enumerate(sys.path) if entry.endswith("-packages"))
    sys.path.insert(next(third, len(sys.path)), folder)


def _execute_module(file: str, tree: ast.Module) -> ModuleType:
    spec = importlib.util.spec_from_file_location(user_code.VERIFIER_MODULE, file)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[user_code.VERIFIER_MODULE] = module  # dataclasses look their module up
    try:
        exec(compile(tree, file, "exec"), vars(module))
    except BaseException as error:
        if isinstance(error, ImportError):
            name = str(error.name or "").partition(".")[0]
            move = f'Install "{name}" beside the studio.' if name else "Mend the import."
            cause = f"an import fails ({error_text(error)})."
        else:
            cause, move = f"it raised {error_text(error)} while it was loaded.", "Mend it."
        raise calls.FileRefused(cause, move, _error_line_number(error, file)) from error
    return module


async def _await_result(returned: Any) -> Any:
    return await returned


def cache_folders() -> list[str]:
    """Where libraries keep what they load at run time, such as models."""
    found = [os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")]
    if home := os.environ.get("HF_HOME"):
        found.append(home)
    for folder in found:
        with contextlib.suppress(OSError):
            os.makedirs(folder, exist_ok=True)  # only what is there can be allowed
    return found


def main(descriptor: int) -> None:
    kernel.die_with_parent()  # a hang may hold the GIL
    kernel.set_undumpable()  # it has the studio's keys in its environment, as the studio has
    confinement.confine(
        None,
        # Its files and packages may lie anywhere, and a judge may call services.
        readable=None,
        # Multiprocessing keeps its locks there; a model of its own may need a graphics card.
        writable=[
            *(tempfile.gettempdir(), *cache_folders()),
            *("/dev/shm", "/dev/dri", *glob.glob("/dev/nvidia*")),
        ],
        code=False,
        network=True,
    )
    channel = Channel(descriptor)
    try:
        loaded = LoadedFunction(channel.orders.get()["load"])
    except calls.FileRefused as refused:
        fields = {"cause": refused.cause, "move": refused.move, "line": refused.line}
        channel.send({"refused": fields})
        return
    if loaded.chosen.is_async:
        asyncio.run(answer_calls_concurrently(loaded, channel))
    else:
        answer_calls(loaded, channel)


if __name__ == "__main__":
    main(int(sys.argv[1]))
