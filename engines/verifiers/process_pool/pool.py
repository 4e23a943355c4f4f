"""Worker processes with a deadline that really kills.

Owns the order of questions, the deadline of each, and killing and replacing a worker
that missed it. Does not know what the questions mean. Belongs to the event loop
that first uses it; nothing starts before that.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import Mapping
from typing import Any

from engines.core.errors import VerifierError
from engines.verifiers.process_pool.process import Answer, Template, Trouble, Worker

PIPELINE = 2  # one question in work, one waiting in the socket: the worker never idles for us
CLOSED = Trouble("failed", "the verifier was closed")


class _PendingQuestion:
    __slots__ = ("future", "line", "orphaned")

    def __init__(self, question: Mapping[str, Any]) -> None:
        # ASCII JSON: NUL and lone surrogates travel as escapes.
        self.line = json.dumps(question).encode() + b"\n"
        self.future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.orphaned = False  # True once its worker ended under it

    def settle(self, answer: Answer) -> None:
        if not self.future.done():  # done: whoever asked was cancelled
            self.future.set_result(answer)


class WorkerPool:
    """Answers questions in `workers` processes; each answer is due `deadline_s` after its turn.

    Args:
        task: "math" or "pattern", see `worker.py`.
        workers: processes beside the template.
        deadline_s: for one question, from when its worker is free for it.
        memory_mb: address space of one worker.
    """

    def __init__(self, task: str, *, workers: int, deadline_s: float, memory_mb: int) -> None:
        self._task, self._workers = task, workers
        self._deadline_s, self._memory_mb = deadline_s, memory_mb
        self._queue: asyncio.Queue[_PendingQuestion] = asyncio.Queue()
        self._template: Template | None = None
        self._opening: asyncio.Task[None] | None = None
        self._lanes: list[asyncio.Task[None]] = []
        # Protects the control socket: its replies carry no name, so one order at a time.
        self._ordering = asyncio.Lock()
        self._closed = False

    async def start(self) -> None:
        """Return when questions can be answered. `ask` does this by itself.

        Raises:
            VerifierError: the processes cannot be started.
        """
        if self._closed:
            raise RuntimeError("the pool is closed")
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())
        try:
            await asyncio.shield(self._opening)
        except OSError as error:
            raise VerifierError(
                f'checking process "{self._task}"',
                f"it cannot be started ({error}).",
                "Reinstall practice-studio, or free processes and memory, and start again.",
            ) from error

    async def ask(self, question: Mapping[str, Any]) -> Answer:
        if not self._closed:
            try:
                await self.start()
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if not self._closed or (task and task.cancelling()):
                    raise  # we are cancelled, and not only the opening, which `aclose` cancels
        if self._closed:
            return CLOSED
        asked = _PendingQuestion(question)
        self._queue.put_nowait(asked)
        return await asked.future

    async def aclose(self) -> None:
        """End all processes; what is still being asked is answered with trouble."""
        self._closed = True
        tasks, self._lanes = [*self._lanes, *([self._opening] if self._opening else [])], []
        self._opening = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        while not self._queue.empty():
            self._queue.get_nowait().settle(CLOSED)
        if self._template:
            template, self._template = self._template, None
            await template.close()

    async def _open(self) -> None:
        await self._open_template()
        self._lanes = [asyncio.create_task(self._run_lane()) for _ in range(self._workers)]

    async def _open_template(self) -> Template:
        if self._template is None:
            self._template = Template(self._task, self._memory_mb)
            try:
                await self._template.reply()
            except OSError:
                await self._drop_template()
                raise
        return self._template

    async def _drop_template(self) -> None:
        if self._template:
            template, self._template = self._template, None
            await template.close()

    async def _fork(self, kill: int = 0) -> Worker:
        async with self._ordering:
            for attempt in (1, 2):
                template = await self._open_template()
                try:
                    return await template.fork(kill)
                except OSError:
                    if attempt == 2 or template.process.poll() is None:
                        raise
                    # It was killed from outside, and its workers with it.
                    await self._drop_template()
            raise AssertionError("unreachable")

    @staticmethod
    def _add_to_flight(asked: _PendingQuestion, flight: deque[_PendingQuestion]) -> None:
        if not asked.future.done():  # done: whoever asked was cancelled while it waited
            flight.append(asked)

    async def _run_lane(self) -> None:
        """Keep one worker busy; after a timeout or a crash go on with a new one."""
        flight: deque[_PendingQuestion] = deque()
        worker: Worker | None = None
        try:
            while True:
                if not flight:
                    self._add_to_flight(await self._queue.get(), flight)
                while len(flight) < PIPELINE and not self._queue.empty():
                    self._add_to_flight(self._queue.get_nowait(), flight)
                if not flight:
                    continue
                try:
                    worker = worker or await self._fork()
                except OSError as error:
                    flight.popleft().settle(Trouble("failed", f"no checking process: {error}"))
                    continue
                for asked in list(flight)[worker.sent :]:
                    worker.send(asked.line)
                worker.sent = len(flight)
                answer = await worker.answer(self._deadline_s)
                if worker.usable or not _can_retry(flight[0], worker):
                    flight.popleft().settle(answer)
                if not worker.usable:
                    await worker.close()
                    old, worker = worker.pid, None
                    with contextlib.suppress(OSError):  # tried again by the next question
                        worker = await self._fork(kill=old)
        finally:
            for asked in flight:
                asked.settle(CLOSED)
            if worker:
                await worker.close()


def _can_retry(asked: _PendingQuestion, worker: Worker) -> bool:
    """True when a question gets a second worker: its first may have been killed from outside."""
    if not worker.gone.is_set() or asked.orphaned:
        return False
    asked.orphaned = True
    return True
