"""The line between a run and a worker of a cluster: each end asks, tells and answers the other.

Owns questions under way, their answers and cancellations. Knows neither what is asked nor what
carries the items.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context
from itertools import count
from typing import Any

from engines.core.codec import JsonObject
from engines.core.errors import CallFailed, StudioError
from engines.core.frozen import frozen

Item = tuple[Any, ...]
Work = tuple[Coroutine[Any, Any, Any], Context | None]
"""What answers a question, and the context it runs in; None: that of the line."""
Ref = tuple[str, str | int]
"""Names a model of the run's process: its list there, and its place in it."""


@frozen
class PackedError:
    """An error on its way. One that is not the studio's own keeps its name and its text."""

    kind: type[Exception] | str
    args: tuple[Any, ...]
    state: JsonObject

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
    `take_note` takes what wants no answer; both are called in the order in which items arrive.
    """

    def __init__(
        self,
        send: Callable[[Item], None],
        work_for: Callable[[str, Item], Work],
        take_note: Callable[[str, Item], None],
    ) -> None:
        self._send = send
        self._work_for = work_for
        self._take_note = take_note
        self._numbers = count()
        self._answers: dict[int, asyncio.Future[Any]] = {}  # that are waited for here
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
        number = next(self._numbers)
        answer = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        self._send(("ask", number, kind, args))
        try:
            return await answer
        except asyncio.CancelledError:
            self._send(("cancel", number))
            raise
        finally:
            del self._answers[number]

    def tell(self, kind: str, *args: Any) -> None:
        if self._lost is None:
            self._send(("tell", kind, args))

    def receive(self, item: Item) -> None:
        match item:
            case ("ask", number, kind, args):
                work, context = self._work_for(kind, args)
                task = asyncio.get_running_loop().create_task(work, context=context)
                self._working[number] = task
                task.add_done_callback(lambda done: self._send_answer(number, done))
            case ("tell", kind, args):
                self._take_note(kind, args)
            case ("cancel", number):
                if number in self._working:
                    self._working[number].cancel()
            case ("answer", number, outcome):
                answer = self._answers.get(number)
                if answer is None or answer.done():  # nobody waits any more
                    return
                if isinstance(outcome, PackedError):
                    answer.set_exception(outcome.unpack())
                else:
                    answer.set_result(outcome)

    def lose(self, error: Exception) -> None:
        """Fail what is asked here, now and later; what works for the other end goes on."""
        self._lost = error
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(error)

    def _send_answer(self, number: int, done: asyncio.Task[Any]) -> None:
        del self._working[number]
        if done.cancelled():  # by whoever asked, or because all ends
            return
        error = done.exception()
        if self._lost is None:
            outcome = done.result() if error is None else PackedError.pack(error)
            self._send(("answer", number, outcome))
