"""The one place where events enter: to disk first, then into the state, then to listeners."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from engines.core.events import DurableEvent, TransientEvent
from engines.core.state.fold import fold
from engines.core.state.run_state import RunState
from engines.record.derived.run_state import keep_state
from engines.record.journal import Entry, Journal

_REQUEST: ContextVar[str] = ContextVar("request", default="")
"""Id of the request that this task carries out; in each event that it records."""

Listener = Callable[[DurableEvent | TransientEvent], None]


class Recorder:
    """Records durable events and passes transient ones on."""

    def __init__(self, journal: Journal, state: RunState) -> None:
        self._journal = journal
        self._listeners: list[Listener] = []
        self._text_readers: list[Callable[[], bool]] = []
        self._recording = 0  # events that are not in the state yet
        self.state = state
        self.entry: Entry | None = None  # of the journal, whose event is passed on right now

    def listen(
        self, listener: Listener, *, reads_text: Callable[[], bool] | None = None
    ) -> Callable[[], None]:
        """Call `listener` with every event from now on; returns how to stop that.

        `reads_text` says whether anybody reads streamed text there now; None: nobody ever does.
        """
        self._listeners.append(listener)
        if reads_text is not None:
            self._text_readers.append(reads_text)

        def stop() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)
            if reads_text in self._text_readers:
                self._text_readers.remove(reads_text)

        return stop

    def is_text_read(self) -> bool:
        """Whether anybody reads streamed text now; any thread may ask."""
        return any(reads() for reads in tuple(self._text_readers))

    @property
    def request(self) -> str:
        """Id of the request that is carried out here and now; "" where none is."""
        return _REQUEST.get()

    @contextmanager
    def carrying_out(self, request: str) -> Iterator[None]:
        """Put the id of this request into every event that is recorded meanwhile, by this task."""
        token = _REQUEST.set(request)
        try:
            yield
        finally:
            _REQUEST.reset(token)

    async def record(self, event: DurableEvent) -> None:
        """Return when the event is on disk and, as it was written, in `state`.

        Raises RecordError: it could not be written; the state has not changed.
        """
        self._recording += 1
        try:
            entry = await self._journal.append(event, _REQUEST.get())
            fold(self.state, entry.event)
        finally:
            self._recording -= 1
        self.entry = entry
        try:
            self._pass_on(entry.event)
        finally:
            self.entry = None

    async def roll(self, step: int) -> bool:
        """After a step, begin another segment of a journal that is long, and keep the state."""
        while self._recording:
            await self._journal.wait_idle()
            await asyncio.sleep(0)
        if rolled := self._journal.roll(step):
            keep_state(self._journal.path, self.state, self._journal.at)
        return rolled

    def emit(self, event: TransientEvent) -> None:
        """Take in and pass on an event that is never written."""
        fold(self.state, event)
        self._pass_on(event)

    def _pass_on(self, event: DurableEvent | TransientEvent) -> None:
        for listener in tuple(self._listeners):
            listener(event)
