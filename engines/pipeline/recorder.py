"""The one place where events enter: to disk first, then into the state, then to listeners.

Owns that order. Knows no listener and no meaning.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from engines.core.events import DurableEvent, TransientEvent
from engines.core.state.fold import fold
from engines.core.state.run_state import RunState

Listener = Callable[[DurableEvent | TransientEvent], None]


class EventLog(Protocol):
    """Where durable events go; `engines.record.journal.Journal` is one."""

    def append(self, event: DurableEvent) -> Awaitable[DurableEvent]:
        """Write an event; what comes back is the event as it was written."""
        ...


class Recorder:
    """Records durable events and passes transient ones on."""

    def __init__(self, journal: EventLog, state: RunState) -> None:
        self._journal = journal
        self._listeners: list[Listener] = []
        self.state = state

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` with every event from now on; returns how to stop that."""
        self._listeners.append(listener)

        def stop() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return stop

    async def record(self, event: DurableEvent) -> None:
        """Return when the event is on disk and, as it was written, in `state`.

        Raises:
            RecordError: it could not be written; the state has not changed.
        """
        event = await self._journal.append(event)
        fold(self.state, event)
        self._notify(event)

    def emit(self, event: TransientEvent) -> None:
        self._notify(event)

    def _notify(self, event: DurableEvent | TransientEvent) -> None:
        for listener in tuple(self._listeners):
            listener(event)
