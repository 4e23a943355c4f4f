"""Child processes that answer questions, each with a deadline that really kills.

Owns which process takes which call, each call's clock, the end of a process that hangs, and the
retry of the calls that were in it. Belongs to the event loop that first uses it.
"""

import asyncio
import functools
import itertools
import json
import socket
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from engines.core.errors import CallFailed, VerifierError
from engines.core.frozen import frozen
from engines.process import confinement, host

ChildMessage = Mapping[str, Any]
Parse = Callable[[bytes], ChildMessage | None]

MAX_LINE = 64 << 20
GRACE_S = 1.0  # for a coroutine to end once it is cancelled; one that blocks its loop does not


class Child(asyncio.Protocol):
    """A running child process.

    `parse` makes a line a message; None, where it is none, ends the child. `on_exit` is called
    when it ends without `close`; `kill` kills and reaps it.
    """

    capacity = 1
    """Calls that it works on at a time."""

    def __init__(
        self,
        on_message: Callable[[ChildMessage], None],
        on_exit: Callable[[], None],
        parse: Parse,
        kill: Callable[[], Awaitable[object]],
    ) -> None:
        self._on_message, self._on_exit = on_message, on_exit
        self._parse, self._kill = parse, kill
        self._rest = b""
        self._transport: asyncio.Transport | None = None
        self._closing = self._dropped = False

    async def connect(self, ours: socket.socket) -> None:
        """Take over our end of the socket of the process, which has been started."""
        ours.setblocking(False)
        try:
            await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=ours)
        except BaseException:
            ours.close()
            await self.close()
            raise

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE:
            self._drop()
        for line in lines:
            if self._closing or self._dropped:
                return
            message = self._parse(line)
            if message is None:
                self._drop()  # user code wrote to the socket: later lines may be its own, too
            else:
                self._on_message(message)

    def _drop(self) -> None:
        """Treat the process as ended: its messages cannot be trusted."""
        self._dropped, self._rest = True, b""
        if self._transport:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._closing:
            self._on_exit()

    def send(self, message: ChildMessage) -> None:
        # ASCII JSON: NUL and lone surrogates travel as escapes.
        if self._transport and not self._closing:
            self._transport.write(json.dumps(message).encode() + b"\n")

    async def close(self) -> None:
        """Kill and reap the process. May be called more than once."""
        if self._closing:
            return
        self._closing = True
        if self._transport:
            self._transport.abort()
        await self._kill()


@frozen
class Trouble:
    """Why a question has no answer."""

    kind: Literal["timeout", "too long", "failed"]
    text: str


Answer = ChildMessage | Trouble
ModelAccess = Callable[[list[dict[str, str]]], Awaitable[str]]
"""Answers chat messages that a call asks its model.

Raises CallFailed where there is no reply; anything else ends the call.
"""
OpenModelAccess = Callable[[], ModelAccess]

CLOSED = Trouble("failed", "the verifier was closed")


class Call:
    """A question until it is answered, and its clock."""

    def __init__(self, question: ChildMessage, open_access: OpenModelAccess | None) -> None:
        self.question, self._open_access = question, open_access
        self.future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.alone = False  # True once it may have made a process hang or end
        self.restart(0.0)

    def restart(self, deadline_s: float) -> None:
        """Begin as if never sent; the ledger answers what an earlier attempt asked a model."""
        self.model_access = self._open_access() if self._open_access else None
        self.raised: Exception | None = None
        self.model_questions: set[asyncio.Task[None]] = set()
        self.left_s, self._since = deadline_s, 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.late = False  # True once its time was up, while others run beside it

    def start_clock(self, on_timeout: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        self._since = loop.time()
        self._timer = loop.call_later(max(0.0, self.left_s), on_timeout)

    def stop_clock(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None
            self.left_s -= asyncio.get_running_loop().time() - self._since

    def settle(self, answer: Answer) -> None:
        self.cancel_work()
        if self.future.done():  # the caller was cancelled
            return
        if self.raised is not None:
            self.future.set_exception(self.raised)
        else:
            self.future.set_result(answer)

    def cancel_work(self) -> None:
        """Stop its clock and its questions to the model."""
        self.stop_clock()
        for task in self.model_questions:
            task.cancel()


class Launcher(Protocol):
    """Starts the processes of a pool.

    A process gets {"call": number, …} and answers {"done": number, …}. It may ask a model
    ({"ask": id, "call": number, "messages": […]}), which is answered by {"reply": id, "text" or
    "error": …}, and where its capacity is above 1 it gets {"cancel": number}.
    """

    exit_text: str
    """Why a question has no answer whose process ended."""

    async def start(
        self, on_message: Callable[[ChildMessage], None], on_exit: Callable[[], None]
    ) -> Child:
        """Return a process that is ready for calls. VerifierError: there can be none."""
        ...

    async def aclose(self) -> None: ...


@dataclass(slots=True, eq=False)
class _Slot:
    process: Child | None = None  # None until started, and after its end
    opening: asyncio.Task[None] | None = None
    calls: dict[int, Call] = field(default_factory=dict)  # sent, by number, in order


class ProcessPool:
    """Answers questions in child processes, at most `workers`, started as they are needed.

    `deadline_s` is for one call, from when its process begins it; the time that a model takes
    to answer it does not count.
    """

    def __init__(self, launcher: Launcher, *, workers: int, deadline_s: float) -> None:
        self._launcher, self._deadline_s = launcher, deadline_s
        self._slots = [_Slot() for _ in range(workers)]
        self._waiting: deque[Call] = deque()
        self._numbers = itertools.count(1)
        self._ends: set[asyncio.Task[None]] = set()
        self._started = self._closed = False

    @property
    def is_starting(self) -> bool:
        return self._slots[0].opening is not None

    async def start(self) -> None:
        """Return when questions can be answered. `ask` does this by itself.

        Raises VerifierError: no process can be started.
        """
        if self._closed:
            raise RuntimeError("the pool is closed")
        if not self._started:
            await asyncio.shield(self._start_opening(self._slots[0]))

    async def ask(
        self, question: ChildMessage, open_access: OpenModelAccess | None = None
    ) -> Answer:
        """The answer to a question.

        `open_access` opens what answers its questions to a model, anew for each attempt;
        the last one opened belongs to the attempt that is returned. None: it asks none.
        """
        if not self._closed:
            try:
                await self.start()
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if not self._closed or (task and task.cancelling()):
                    raise  # we are cancelled, and not only the opening, which `aclose` cancels
        if self._closed:
            return CLOSED
        call = Call(question, open_access)
        self._waiting.append(call)
        self._assign()
        try:
            return await call.future
        except asyncio.CancelledError:
            self._abandon(call)
            raise

    async def aclose(self) -> None:
        """End all processes; calls that are still open are answered with trouble."""
        self._closed = True
        for call in self._waiting:
            call.settle(CLOSED)
        self._waiting.clear()
        for slot in self._slots:
            if slot.opening:
                slot.opening.cancel()
                await asyncio.gather(slot.opening, return_exceptions=True)
            for call in self._empty_slot(slot):
                call.settle(CLOSED)
        await asyncio.gather(*self._ends)
        await self._launcher.aclose()

    def _assign(self) -> None:
        while self._waiting and not self._closed:
            call = self._waiting[0]
            if call.future.done():
                self._waiting.popleft()
            elif slot := next((slot for slot in self._slots if _has_room(slot, call)), None):
                self._send(slot, self._waiting.popleft())
            else:
                idle = [slot for slot in self._slots if slot.process is None]
                if idle and not any(slot.opening for slot in idle):
                    self._start_opening(idle[0])
                return

    def _send(self, slot: _Slot, call: Call) -> None:
        assert slot.process
        number = next(self._numbers)
        call.restart(self._deadline_s)
        slot.calls[number] = call
        slot.process.send({"call": number, **call.question})
        self._start_clock(slot, number, call)

    def _start_clock(self, slot: _Slot, number: int, call: Call) -> None:
        call.start_clock(lambda: self._handle_timeout(slot, number))

    def _start_opening(self, slot: _Slot) -> asyncio.Task[None]:
        if slot.opening is None:
            slot.opening = asyncio.create_task(self._open_process(slot))
            slot.opening.add_done_callback(lambda task: self._finish_opening(slot, task))
        return slot.opening

    def _finish_opening(self, slot: _Slot, task: asyncio.Task[None]) -> None:
        slot.opening = None
        error = None if task.cancelled() else task.exception()
        if error is not None and not any(slot.process for slot in self._slots):
            for call in self._waiting:
                call.settle(Trouble("failed", str(error)))
            self._waiting.clear()
        elif error is None:  # else no further try before another process has room
            self._assign()

    async def _open_process(self, slot: _Slot) -> None:
        ended = asyncio.Event()

        def handle_exit() -> None:
            ended.set()
            if slot.process is not None:
                self._handle_exit(slot)

        slot.process = await self._launcher.start(
            lambda message: self._handle_message(slot, message), handle_exit
        )
        self._started = True
        if ended.is_set():
            self._handle_exit(slot)

    def _handle_message(self, slot: _Slot, message: ChildMessage) -> None:
        if "done" in message:
            if call := slot.calls.pop(message["done"], None):
                answer: Answer = message
                if "error" in message:
                    answer = Trouble(message.get("kind", "failed"), str(message["error"]))
                call.settle(self._timeout_trouble() if call.late else answer)
            self._assign()
        elif "ask" in message and (call := slot.calls.get(message["call"])):
            self._answer_question(slot, call, message)

    def _answer_question(self, slot: _Slot, call: Call, message: ChildMessage) -> None:
        """Answer what a call asks its model; its clock stands still meanwhile."""
        call.stop_clock()

        async def answer() -> None:
            reply: dict[str, Any] = {"reply": message["ask"]}
            try:
                assert call.model_access
                reply["text"] = await call.model_access(message["messages"])
            except CallFailed as error:
                reply["error"] = str(error)
            except Exception as error:  # raised where the verdict is awaited
                call.raised = error
                reply["error"] = str(error)
            call.model_questions.discard(task)
            if slot.process and call in slot.calls.values():
                if not call.model_questions and not call.late:
                    self._start_clock(slot, message["call"], call)
                slot.process.send(reply)

        task = asyncio.create_task(answer())
        call.model_questions.add(task)

    def _handle_timeout(self, slot: _Slot, number: int) -> None:
        """Time is up: cancel a coroutine that runs beside others, else kill the process."""
        call = slot.calls[number]
        if len(slot.calls) == 1 or not slot.process:
            del slot.calls[number]
            call.settle(self._timeout_trouble())
            self._retry_alone(slot)
            return
        call.stop_clock()
        call.late = True
        slot.process.send({"cancel": number})
        # Where this does nothing, some call blocks the loop. Which, shows when each runs alone.
        call.left_s = min(GRACE_S, self._deadline_s)
        call.start_clock(lambda: self._retry_alone(slot))

    def _abandon(self, call: Call) -> None:
        """End a call that nobody waits for any more."""
        for slot in self._slots:
            for number, other in list(slot.calls.items()):
                if other is call:
                    call.cancel_work()
                    self._handle_timeout(slot, number)

    def _timeout_trouble(self) -> Trouble:
        return Trouble("timeout", f"no verdict within {self._deadline_s:g} s")

    def _handle_exit(self, slot: _Slot) -> None:
        """A process ended. A call that was alone in it for the second time is the cause."""
        for number, call in list(slot.calls.items()):
            if call.alone:
                slot.calls.pop(number).settle(Trouble("failed", self._launcher.exit_text))
        self._retry_alone(slot)

    def _retry_alone(self, slot: _Slot) -> None:
        calls = self._empty_slot(slot)
        for call in calls:
            call.alone = True
        self._waiting.extendleft(reversed(calls))
        self._assign()

    def _empty_slot(self, slot: _Slot) -> list[Call]:
        """End the process of a slot; its calls can be sent again."""
        calls, slot.calls = list(slot.calls.values()), {}
        for call in calls:
            call.cancel_work()
        if slot.process:
            end = asyncio.create_task(slot.process.close())
            self._ends.add(end)
            end.add_done_callback(self._ends.discard)
            slot.process = None
        return calls


def _has_room(slot: _Slot, call: Call) -> bool:
    if slot.process is None:
        return False
    if call.alone:
        return not slot.calls
    room = slot.process.capacity - len(slot.calls)
    return room > 0 and not any(other.alone for other in slot.calls.values())


class ForkLauncher:
    """Forks processes for one task from a template that has imported what the task needs.

    `task` is the module whose `build_task` builds it there; `memory_mb` is for the checks of one
    process, beside what it has from its template.
    """

    exit_text = "the checking process ended (out of memory or crashed)"

    def __init__(self, name: str, task: str, *, memory_mb: int) -> None:
        self._name = name
        # It lives as long as the run; a call's time is its deadline.
        limits = confinement.Limits(memory_mb=memory_mb, cpu_s=1e9)
        self._host = host.Host(host.Work(task, [path for path in sys.path if path], limits))

    async def start(
        self, on_message: Callable[[ChildMessage], None], on_exit: Callable[[], None]
    ) -> Child:
        try:
            forked = await self._host.fork()
        except OSError as error:
            raise VerifierError(
                f'checking process "{self._name}"',
                f"it cannot be started ({error}).",
                "Reinstall practice-studio, or free processes and memory, and start again.",
            ) from error
        kill = functools.partial(self._host.end, forked.number)
        child = Child(on_message, on_exit, json.loads, kill)
        await child.connect(forked.channel)
        return child

    async def aclose(self) -> None:
        await self._host.aclose()
