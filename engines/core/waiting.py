"""Which reply of a run the call at hand is for, and whether it repeats one; its tasks know, too."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import NoReturn, TypeVar, cast

from engines.core.errors import AnswersPending
from engines.core.types import CallKey, Tell, Usage

_KEY: ContextVar[CallKey | None] = ContextVar("key", default=None)


@contextmanager
def name_call(key: CallKey) -> Iterator[None]:
    """Calls inside are made for the reply of this key."""
    before = _KEY.set(key)
    try:
        yield
    finally:
        _KEY.reset(before)


def current_call() -> CallKey | None:
    """None outside any ledger."""
    return _KEY.get()


_REPEATS: ContextVar[bool] = ContextVar("repeats", default=False)


@contextmanager
def mark_replayed() -> Iterator[None]:
    """Calls inside are made once more only to take part in a batch."""
    before = _REPEATS.set(True)
    try:
        yield
    finally:
        _REPEATS.reset(before)


def is_replayed() -> bool:
    return _REPEATS.get()


_RUNNING: "ContextVar[tuple[Deadline, ...]]" = ContextVar("deadlines", default=())


class Deadline:
    """One deadline under way, as `deadline` gives it."""

    def __init__(self, timeout: asyncio.Timeout) -> None:
        self._timeout = timeout
        self._waiting = 0
        self._left_s: float | None = None  # once it goes on; None: it runs

    @property
    def ends_at(self) -> float | None:
        """In the time of the loop; None while it stands still."""
        return self._timeout.when()

    @property
    def expired(self) -> bool:
        return self._timeout.expired()

    def expire(self) -> None:
        """End now, as if the time were over."""
        self._timeout.reschedule(asyncio.get_running_loop().time())

    def pause(self) -> None:
        """Stand still until `go_on` was called as often."""
        ends = self._timeout.when()
        if ends is not None and not self.expired:
            self._left_s = ends - asyncio.get_running_loop().time()
            self._timeout.reschedule(None)
        self._waiting += 1

    def go_on(self) -> None:
        self._waiting -= 1
        if not self._waiting and self._left_s is not None:
            self._timeout.reschedule(asyncio.get_running_loop().time() + self._left_s)
            self._left_s = None


@asynccontextmanager
async def deadline(limit_s: float) -> AsyncIterator[Deadline]:
    """As `asyncio.timeout`: raises TimeoutError where the block takes longer."""
    async with asyncio.timeout(limit_s) as timeout:
        made = Deadline(timeout)
        token = _RUNNING.set((*_RUNNING.get(), made))
        try:
            yield made
        finally:
            _RUNNING.reset(token)


@contextmanager
def pause_deadlines() -> Iterator[None]:
    """Stop every deadline that the work at hand runs under, for as long as the block takes."""
    running = _RUNNING.get()
    for one in running:
        one.pause()
    try:
        yield
    finally:
        for one in running:
            one.go_on()


def expired_deadline() -> int | None:
    """Which of the deadlines that this work runs under is over, the outermost being 0."""
    return next((at for at, one in enumerate(_RUNNING.get()) if one.expired), None)


async def expire_deadline(at: int, usage: Usage) -> NoReturn:
    """Have that deadline end this work, as a call that has cost `usage`."""
    running = _RUNNING.get()
    if at >= len(running):
        raise TimeoutError
    running[at].expire()
    try:
        await asyncio.get_running_loop().create_future()
    except asyncio.CancelledError:
        raise asyncio.CancelledError(usage) from None
    raise AssertionError("nobody fulfils it")


T = TypeVar("T")


async def gather_all(work: Iterable[Awaitable[T]]) -> list[T]:
    """Results in the order of `work`; the first failure cancels the rest and is raised as it is.

    What waits for an answer is no failure: the rest goes on, then all that wait are raised as one.
    """
    waiting: list[AnswersPending] = []

    async def await_one(item: Awaitable[T]) -> T | None:
        try:
            return await item
        except AnswersPending as pending:
            waiting.append(pending)
            return None

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(await_one(item)) for item in work]
    except BaseExceptionGroup as failures:
        raise _first_failure(failures) from None
    if waiting:
        raise AnswersPending.merge(waiting)
    return cast("list[T]", [task.result() for task in tasks])


def _first_failure(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    leaf: BaseException = failures
    while isinstance(leaf, BaseExceptionGroup):
        leaf = leaf.exceptions[0]
    return leaf


SLOW_S = 1.0
"""A part that takes less says nothing."""


@contextmanager
def slow_stage(tell: Tell, text: str) -> Iterator[None]:
    """Tell what goes on once it has taken a second; what blocks the event loop tells it itself.

    The line ends in an ellipsis, by which a screen that waits for the run knows it.
    """
    timer = asyncio.get_running_loop().call_later(SLOW_S, tell, f"{text} …")
    try:
        yield
    finally:
        timer.cancel()


_T = TypeVar("_T")


async def run_to_end(work: Callable[[], _T]) -> _T:
    """Work in a thread; who is cancelled meanwhile goes on once it is done."""
    working = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        await asyncio.wait([working])
        raise
