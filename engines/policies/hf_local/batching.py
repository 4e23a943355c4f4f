"""Collects calls and has them decoded together, in a thread. Knows no model."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass, field

from engines.core.errors import CallFailed
from engines.core.protocols import OnText
from engines.core.types import NO_USAGE
from engines.policies.hf_local.decoding import DecodedReply, DecodeRequest

_ROUNDS = 2
"""Turns of the loop that are waited, so that tasks started together are together."""


@dataclass(eq=False, slots=True)
class WaitingCall:
    """One reply that somebody waits for. `gone` is read by the decoding thread."""

    row: DecodeRequest
    on_text: OnText | None
    future: asyncio.Future[DecodedReply]
    owner: object | None
    gone: bool = False
    begun: bool = False  # its batch is being decoded
    shown: str = ""  # what on_text has received


Decode = Callable[[Sequence[WaitingCall], "Batch"], Sequence[DecodedReply | CallFailed]]
"""Runs in the thread: replies aligned with the calls; raises `DecodingCancelled` if told to."""


@dataclass(eq=False, slots=True)
class Batch:
    """What the thread sees of the loop it works for."""

    loop: asyncio.AbstractEventLoop
    stopped: bool = False

    def show(self, pieces: Sequence[tuple[WaitingCall, str]]) -> None:
        """Hand out new text, from the thread."""
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            self.loop.call_soon_threadsafe(_forward_pieces, pieces)


@dataclass(eq=False)
class BatchQueue:
    """The queue.

    With tries attending a batch begins once each of them waits in it, so that its members
    follow from the run and not from timing. A call from outside any try never waits for them:
    a try could be waiting for it. Calls are ordered by prompt and seed for the same reason.
    """

    decode: Decode
    limit: Callable[[], int]  # rows decoded at a time, asked before each batch
    waiting: list[WaitingCall] = field(default_factory=list)
    _attending: set[object] = field(default_factory=set)
    _waiting_outside: Counter[object] = field(default_factory=Counter)  # tries of `_attending`
    _try: ContextVar[object | None] = field(
        default_factory=lambda: ContextVar("try", default=None)
    )  # which try a call belongs to; tasks that the try starts inherit it
    _serving: asyncio.Task[None] | None = None
    _scheduled: bool = False
    _batch: Batch | None = None
    _thread: ThreadPoolExecutor | None = None

    @contextlib.contextmanager
    def join_batch(self) -> Iterator[None]:
        """One try under way; inside another it is a part of that one.

        Enter it for all tries of a step before the first of them can wait.
        """
        if self._try.get() is not None:
            yield
            return
        joined = object()
        self._attending.add(joined)
        before = self._try.set(joined)
        try:
            yield
        finally:
            self._try.reset(before)
            self._attending.remove(joined)
            self._schedule()

    @contextlib.contextmanager
    def leave_batch(self) -> Iterator[None]:
        """The try at hand waits, for money say, until others are through: no batch waits for it."""
        current = self._try.get()
        if current is None:
            yield
            return
        self._waiting_outside[current] += 1
        self._schedule()
        try:
            yield
        finally:
            self._waiting_outside[current] -= 1
            self._waiting_outside += Counter()  # forgets those at 0

    async def ask(self, row: DecodeRequest, on_text: OnText | None) -> tuple[DecodedReply, str]:
        """The reply to one row, and what of its text was shown.

        Raises:
            CallFailed: it could not be decoded, or the policy was closed meanwhile.
            CancelledError: with `NO_USAGE` where it was cancelled before its batch began.
        """
        call = WaitingCall(
            row, on_text, asyncio.get_running_loop().create_future(), self._try.get()
        )
        self.waiting.append(call)
        self._schedule()
        try:
            return await call.future, call.shown
        except asyncio.CancelledError:
            if call.begun:
                raise
            raise asyncio.CancelledError(NO_USAGE) from None
        finally:
            call.gone = True
            if call in self.waiting:
                self.waiting.remove(call)
                self._schedule()

    async def aclose(self) -> None:
        """Stop what is being decoded; whoever waits gets a `CallFailed`."""
        left, self.waiting = self.waiting, []
        _fail(left, "the policy was closed")
        if self._batch is not None:
            self._batch.stopped = True
        if self._serving is not None:
            await asyncio.gather(self._serving, return_exceptions=True)
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None

    def _schedule(self) -> None:
        if self._scheduled or self._serving is not None or not self.waiting:
            return
        self._scheduled = True
        loop = asyncio.get_running_loop()
        loop.call_soon(self._start_after_rounds, loop, _ROUNDS - 1)

    def _start_after_rounds(self, loop: asyncio.AbstractEventLoop, rounds: int) -> None:
        if rounds:
            loop.call_soon(self._start_after_rounds, loop, rounds - 1)
            return
        self._scheduled = False
        released = self._take_ready_calls()
        if released:
            self._serving = loop.create_task(self._decode_batches(loop, released))

    def _take_ready_calls(self) -> list[WaitingCall]:
        tries = {call.owner for call in self.waiting}
        complete = all(one in tries or one in self._waiting_outside for one in self._attending)
        released = [call for call in self.waiting if complete or call.owner is None]
        self.waiting = [] if complete else [c for c in self.waiting if c.owner is not None]
        return sorted(released, key=lambda call: (call.row.prompt_ids, call.row.seed))

    async def _decode_batches(
        self, loop: asyncio.AbstractEventLoop, released: list[WaitingCall]
    ) -> None:
        self._thread = self._thread or ThreadPoolExecutor(1, "decode")
        self._batch = batch = Batch(loop)
        calls: list[WaitingCall] = []
        try:
            while released and not batch.stopped:
                limit = self.limit()
                calls, released = released[:limit], released[limit:]
                calls = [call for call in calls if not call.gone]
                if not calls:
                    continue
                for call in calls:
                    call.begun = True
                try:
                    drawn = await loop.run_in_executor(self._thread, self.decode, calls, batch)
                except Exception as error:  # torch raises whatever it likes; nobody may hang
                    raised = f"decoding raised {type(error).__name__}: {error}"
                    _fail(calls, "the policy was closed" if batch.stopped else raised)
                else:
                    _deliver(calls, drawn)
                    del drawn
        finally:
            batch.stopped = True  # also when this task is cancelled: the thread ends soon
            _fail([*calls, *released], "the policy was closed")
            self._batch = self._serving = None
            self._schedule()


def _deliver(calls: Sequence[WaitingCall], drawn: Sequence[DecodedReply | CallFailed]) -> None:
    for call, reply in zip(calls, drawn, strict=True):
        if call.future.done():
            continue
        if isinstance(reply, CallFailed):
            call.future.set_exception(reply)
        else:
            call.future.set_result(reply)


def _fail(calls: Sequence[WaitingCall], reason: str) -> None:
    for call in calls:
        if not call.future.done():
            call.future.set_exception(CallFailed("failed", reason))


def _forward_pieces(pieces: Sequence[tuple[WaitingCall, str]]) -> None:
    for call, piece in pieces:
        if call.gone or call.future.done() or call.on_text is None:
            continue
        call.shown += piece
        try:
            call.on_text(piece)
        except Exception as error:  # the listener's own: its call ends with it
            call.gone = True
            call.future.set_exception(error)
