"""Processes in which a user's function answers calls, with a deadline that really kills.

Owns which process takes which call, each call's clock, and who bears the blame when a
process hangs or dies: the others that were in it are asked again. Knows calls only as
messages. Belongs to the event loop that first uses it; nothing starts before that.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from engines.core.errors import CallFailed, VerifierError
from engines.verifiers.foreign.process import ForeignProcess, Message
from engines.verifiers.process_pool.process import Trouble
from engines.verifiers.stated_answer import short_text

GRACE_S = 1.0  # for a coroutine to end once it is cancelled; one that blocks its loop does not
ENDED = Trouble("failed", "the verifier's process ended (crash, exit or out of memory)")
DIED = {
    "cause": "the process ended while it loaded the file.",
    "move": "Look for what exits or crashes at its top level.",
}
CLOSED = Trouble("failed", "the verifier was closed")


class ModelAccess(Protocol):
    """Answers what one call asks a model."""

    async def answer(self, messages: list[dict[str, str]]) -> str:
        """Raises CallFailed where there is no reply; anything else ends the call."""
        ...


class Call:
    """A question to the function, until it is settled."""

    def __init__(self, question: Message, open_asking: Callable[[], ModelAccess]) -> None:
        self.question, self.open_asking = question, open_asking
        self.future: asyncio.Future[Message | Trouble] = asyncio.get_running_loop().create_future()
        self.alone = False  # True once it may have hung or killed a process
        self.restart(0.0)

    def restart(self, deadline_s: float) -> None:
        """Begin as if never sent; what was asked before is answered by the ledger."""
        self.asking = self.open_asking()
        self.raised: Exception | None = None
        self.questions: set[asyncio.Task[None]] = set()
        self.left_s, self.since = deadline_s, 0.0
        self.timer: asyncio.TimerHandle | None = None
        self.late = False  # True once its time was up, while others run beside it

    def settle(self, answer: Message | Trouble) -> None:
        self.cancel_work()
        if self.future.done():  # whoever called was cancelled
            return
        if self.raised is not None:
            self.future.set_exception(self.raised)
        else:
            self.future.set_result(answer)

    def cancel_work(self) -> None:
        """Stop its clock and its questions."""
        if self.timer:
            self.timer.cancel()
        self.timer = None
        for task in self.questions:
            task.cancel()


@dataclass(slots=True, eq=False)
class _Lane:
    """A place for one process."""

    process: ForeignProcess | None = None  # None until loaded, and after its end
    opening: asyncio.Task[None] | None = None
    calls: dict[int, Call] = field(default_factory=dict)  # in work, by number


class ForeignPool:
    """Calls a function of a user's file.

    Args:
        place: the file, for errors.
        workers: processes, started as they are needed.
        concurrency: calls at a time in one process where the function is a coroutine.
        deadline_s: for one call, not counting what its model takes to answer.
        load_s: for loading the file.
    """

    def __init__(
        self,
        place: str,
        *,
        workers: int,
        concurrency: int,
        deadline_s: float,
        load_s: float,
    ) -> None:
        self._load: Message = {}
        self._place = place
        self._concurrency, self._capacity = concurrency, 1
        self._deadline_s, self._load_s = deadline_s, load_s
        self._lanes = [_Lane() for _ in range(workers)]
        self._waiting: deque[Call] = deque()
        self._numbers = itertools.count(1)
        self._ends: set[asyncio.Task[None]] = set()
        self._closed = False
        self.loaded: Mapping[str, Any] | None = None  # what the worker says of the function

    async def start(self, load: Message | None = None) -> Mapping[str, Any]:
        """Load the file, unless it is; returns function, signature and async.

        Args:
            load: the order that loads it, here and in every later process; None keeps the
                last one. Of no account once the file is loaded or being loaded.

        Raises:
            VerifierError: the file cannot serve.
        """
        if self.loaded is None:
            if load is not None and self._lanes[0].opening is None:
                self._load = load
            await asyncio.shield(self._start_opening(self._lanes[0]))
        assert self.loaded is not None
        return self.loaded

    async def ask(
        self, question: Message, open_asking: Callable[[], ModelAccess]
    ) -> tuple[Message | Trouble, ModelAccess]:
        """One call's answer, and the asking of the attempt that gave it."""
        if self._closed:
            return CLOSED, open_asking()
        try:
            await self.start()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self._closed or (task and task.cancelling()):
                raise  # we are cancelled, and not only the opening, which `aclose` cancels
            return CLOSED, open_asking()
        call = Call(question, open_asking)
        self._waiting.append(call)
        self._assign()
        try:
            return await call.future, call.asking
        except asyncio.CancelledError:
            self._abandon(call)
            raise

    async def aclose(self) -> None:
        """End all processes; what is still in work is answered with trouble."""
        self._closed = True
        for call in self._waiting:
            call.settle(CLOSED)
        self._waiting.clear()
        for lane in self._lanes:
            if lane.opening:
                lane.opening.cancel()
                await asyncio.gather(lane.opening, return_exceptions=True)
            for call in self._empty_lane(lane):
                call.settle(CLOSED)
        await asyncio.gather(*self._ends)

    def _assign(self) -> None:
        while self._waiting and not self._closed:
            call = self._waiting[0]
            if call.future.done():
                self._waiting.popleft()
            elif lane := next((lane for lane in self._lanes if self._has_room(lane, call)), None):
                self._send(lane, self._waiting.popleft())
            else:
                idle = [lane for lane in self._lanes if lane.process is None]
                if idle and not any(lane.opening for lane in idle):
                    self._start_opening(idle[0])
                return

    def _has_room(self, lane: _Lane, call: Call) -> bool:
        if lane.process is None:
            return False
        if call.alone:
            return not lane.calls
        return len(lane.calls) < self._capacity and not any(c.alone for c in lane.calls.values())

    def _send(self, lane: _Lane, call: Call) -> None:
        assert lane.process
        number = next(self._numbers)
        call.restart(self._deadline_s)
        lane.calls[number] = call
        lane.process.send({"call": number, **call.question})
        self._start_timer(lane, number, call)

    def _start_timer(self, lane: _Lane, number: int, call: Call) -> None:
        loop = asyncio.get_running_loop()
        call.since = loop.time()
        call.timer = loop.call_later(max(0.0, call.left_s), self._handle_timeout, lane, number)

    def _start_opening(self, lane: _Lane) -> asyncio.Task[None]:
        if lane.opening is None:
            lane.opening = asyncio.create_task(self._open_process(lane))
            lane.opening.add_done_callback(lambda task: self._finish_opening(lane, task))
        return lane.opening

    def _finish_opening(self, lane: _Lane, task: asyncio.Task[None]) -> None:
        lane.opening = None
        error = None if task.cancelled() else task.exception()
        if error is not None and not any(lane.process for lane in self._lanes):
            for call in self._waiting:
                call.settle(Trouble("failed", str(error)))
            self._waiting.clear()
        elif error is None:  # else no further try before another process has room
            self._assign()

    async def _open_process(self, lane: _Lane) -> None:
        first: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        gone = asyncio.Event()

        def on_message(message: Message) -> None:
            if first.done():
                self._handle_message(lane, message)
            else:
                first.set_result(message)

        def on_exit() -> None:
            gone.set()
            if lane.process is not None:
                self._handle_exit(lane)
            elif not first.done():
                first.set_result({"refused": DIED})

        try:
            process = await ForeignProcess.start(on_message, on_exit)
        except OSError as error:
            raise VerifierError(
                self._place,
                f"no process can be started for it ({error}).",
                "Free processes and memory, and start again.",
            ) from error
        try:
            process.send({"load": self._load})
            async with asyncio.timeout(self._load_s):
                message = await first
        except TimeoutError:
            cause = f"it was not loaded within {self._load_s:g} s."
            message = {"refused": {"cause": cause, "move": "Look for what it waits for."}}
        except BaseException:
            await process.close()
            raise
        if refused := message.get("refused", None if "loaded" in message else DIED):
            await process.close()
            place = f"{self._place}:{refused['line']}" if refused.get("line") else self._place
            # An exception's text is the file's own: no escape sequence reaches a terminal.
            raise VerifierError(
                place, short_text(refused["cause"], 500), short_text(refused["move"], 500)
            )
        loaded: Mapping[str, Any] = message["loaded"]
        self.loaded = loaded
        self._capacity = self._concurrency if loaded["async"] else 1
        lane.process = process
        if gone.is_set():
            self._handle_exit(lane)

    def _handle_message(self, lane: _Lane, message: Message) -> None:
        if "done" in message:
            if call := lane.calls.pop(message["done"], None):
                call.settle(self._timeout_trouble() if call.late else message)
            self._assign()
        elif "ask" in message and (call := lane.calls.get(message["call"])):
            self._answer_question(lane, call, message)

    def _answer_question(self, lane: _Lane, call: Call, message: Message) -> None:
        """Answer what a call asks its model; its clock stands still meanwhile."""
        loop = asyncio.get_running_loop()
        if call.timer:
            call.timer.cancel()
            call.timer = None
            call.left_s -= loop.time() - call.since

        async def answer() -> None:
            reply: dict[str, Any] = {"reply": message["ask"]}
            try:
                reply["text"] = await call.asking.answer(message["messages"])
            except CallFailed as error:
                reply["error"] = str(error)
            except Exception as error:  # raised where the verdict is awaited
                call.raised = error
                reply["error"] = str(error)
            call.questions.discard(task)
            if lane.process and call in lane.calls.values():
                if not call.questions and not call.late:
                    self._start_timer(lane, message["call"], call)
                lane.process.send(reply)

        task = loop.create_task(answer())
        call.questions.add(task)

    def _handle_timeout(self, lane: _Lane, number: int) -> None:
        """Time is up: cancel a coroutine among others, kill a process with nothing else."""
        call = lane.calls[number]
        if len(lane.calls) == 1 or not lane.process:
            del lane.calls[number]
            call.settle(self._timeout_trouble())
            self._retry_alone(lane)
            return
        call.late = True
        lane.process.send({"cancel": number})
        # Where this does nothing, some call blocks the loop. Which, shows when each runs alone.
        loop = asyncio.get_running_loop()
        grace_s = min(GRACE_S, self._deadline_s)
        call.timer = loop.call_later(grace_s, self._retry_alone, lane)

    def _abandon(self, call: Call) -> None:
        """Nobody waits for it any more: its time is up."""
        for lane in self._lanes:
            for number, other in list(lane.calls.items()):
                if other is call:
                    call.cancel_work()
                    self._handle_timeout(lane, number)

    def _timeout_trouble(self) -> Trouble:
        return Trouble("timeout", f"no verdict within {self._deadline_s:g} s")

    def _handle_exit(self, lane: _Lane) -> None:
        """A process died. A call that was alone in it for the second time did it."""
        for number, call in list(lane.calls.items()):
            if call.alone:
                lane.calls.pop(number).settle(ENDED)
        self._retry_alone(lane)

    def _retry_alone(self, lane: _Lane) -> None:
        calls = self._empty_lane(lane)
        for call in calls:
            call.alone = True
        self._waiting.extendleft(reversed(calls))
        self._assign()

    def _empty_lane(self, lane: _Lane) -> list[Call]:
        """The calls of a lane whose process is ended, ready to be sent again."""
        calls, lane.calls = list(lane.calls.values()), {}
        for call in calls:
            call.cancel_work()
        if lane.process:
            end = asyncio.create_task(lane.process.close())
            self._ends.add(end)
            end.add_done_callback(self._ends.discard)
            lane.process = None
        return calls
