"""A line between two processes on which each may ask the other.

Owns which answer belongs to which question, and that none waits for ever: where the line is lost,
all that was asked on it fails. How items get across is the owner's; they arrive whole and in order.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context
from dataclasses import dataclass
from itertools import count
from typing import Any

from engines.core.errors import CallFailed, StudioError

Item = tuple[Any, ...]
Work = tuple[Coroutine[Any, Any, Any], Context | None]
"""What answers a question, and the context it runs in; None: that of the line."""


@dataclass(frozen=True, slots=True)
class PackedError:
    """An error on its way. One that is not the studio's own keeps its name and its text."""

    kind: type[Exception] | str
    args: tuple[Any, ...]
    state: dict[str, Any]

    @classmethod
    def pack(cls, error: BaseException) -> "PackedError":
        if isinstance(error, StudioError | CallFailed | TimeoutError):
            return cls(type(error), error.args, dict(vars(error)))
        return cls(type(error).__name__, (str(error),), {})

    def unpack(self) -> Exception:
        kind = self.kind
        if isinstance(kind, str):  # its class may not be known here
            kind = type(kind, (Exception,), {})
        error = kind.__new__(kind, *self.args)
        error.args = self.args
        vars(error).update(self.state)
        return error


class Line:
    """One end of a line.

    `send` takes items for the other end. `work_for` makes the work that answers a question, and
    `told` takes what wants no answer; both are called in the order in which items arrive.
    """

    def __init__(
        self,
        send: Callable[[Item], None],
        work_for: Callable[[str, Item], Work],
        told: Callable[[str, Item], None],
    ) -> None:
        self._send, self._work_for, self._told = send, work_for, told
        self._numbers = count()
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._working: dict[int, asyncio.Task[Any]] = {}
        self._lost: Exception | None = None

    @property
    def working(self) -> tuple[asyncio.Task[Any], ...]:
        """What is under way here for the other end."""
        return tuple(self._working.values())

    async def ask(self, kind: str, *args: Any) -> Any:
        """The other end's answer, or the error it ended with; cancelled here, it is there, too."""
        if self._lost is not None:
            raise self._lost
        number, answer = next(self._numbers), asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        self._send(("ask", number, kind, args))
        try:
            return await answer
        except asyncio.CancelledError:
            if number in self._asked:
                self._send(("cancel", number))
            raise
        finally:
            self._asked.pop(number, None)

    def tell(self, kind: str, *args: Any) -> None:
        if self._lost is None:
            self._send(("tell", kind, args))

    def receive(self, item: Item) -> None:
        match item:
            case ("ask", number, kind, args):
                work, context = self._work_for(kind, args)
                task = asyncio.get_running_loop().create_task(work, context=context)
                self._working[number] = task
                task.add_done_callback(lambda done: self._answer(number, done))
            case ("tell", kind, args):
                self._told(kind, args)
            case ("cancel", number):
                if number in self._working:
                    self._working[number].cancel()
            case ("answer", number, value):
                if (waiting := self._asked.get(number)) and not waiting.done():
                    waiting.set_result(value)
            case ("error", number, raised):
                if (waiting := self._asked.get(number)) and not waiting.done():
                    waiting.set_exception(raised.unpack())

    def lose(self, error: Exception) -> None:
        """Fail what is asked here, now and later; what works for the other end goes on."""
        self._lost = self._lost or error
        for waiting in self._asked.values():
            if not waiting.done():
                waiting.set_exception(error)

    def _answer(self, number: int, done: asyncio.Task[Any]) -> None:
        self._working.pop(number, None)
        if done.cancelled():  # by whoever asked, or because all ends
            return
        error = done.exception()
        if self._lost is not None:
            return
        if error is None:
            self._send(("answer", number, done.result()))
        else:
            self._send(("error", number, PackedError.pack(error)))
