"""A question to a child process until it is answered, and its clock."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from engines.verifiers.process_pool.child import Message


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a question has no answer."""

    kind: Literal["timeout", "too long", "failed"]
    text: str


Answer = Message | Trouble
ModelAccess = Callable[[list[dict[str, str]]], Awaitable[str]]
"""Answers chat messages that a call asks its model.

Raises CallFailed where there is no reply; anything else ends the call.
"""
OpenModelAccess = Callable[[], ModelAccess]


class Call:
    """A question to a child process, until it is answered."""

    def __init__(self, question: Message, open_access: OpenModelAccess | None) -> None:
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
        self.started = False  # True once its process works on it
        self.late = False  # True once its time was up, while others run beside it

    def start_clock(self, on_timeout: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        self.started, self._since = True, loop.time()
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
