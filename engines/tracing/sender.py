"""Sends the spans of a run from a thread of its own, as far as a collector takes them.

Whoever practises only hands entries over: nothing is made of them before the collector has
answered, what it does not take in time is dropped and counted, and the end waits for little.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from threading import Event, Thread
from typing import Protocol

from engines.core.errors import StudioError
from engines.core.events import DurableEvent
from engines.tracing.spans import Span

MOST_WAITING = 4_096
"""Events that wait for the collector; of more, the oldest are dropped."""
BATCH = 256
"""Spans of one request at most."""
POLL_S = 0.5
LONGEST_PAUSE_S = 30.0
END_S = 2.0
"""What the end of a run may wait for: a collector that has answered before, or in a run so short
that it could not have yet."""


class Collector(Protocol):
    """Where spans go. Both methods block; they are called from one thread."""

    def answers(self) -> bool:
        """Whether it takes spans now."""
        ...

    def send(self, spans: Sequence[Span]) -> bool:
        """Whether it took them all."""
        ...

    def close(self) -> None:
        """Give a request up that is under way; any thread may call it."""
        ...


Entry = tuple[int, float, DurableEvent]
"""Number, time and event, as a journal has them."""


class SpanSender:
    """Started when it is made. `make_spans` is called in its thread, with each entry in order."""

    def __init__(self, collector: Collector, make_spans: Callable[[Entry], Iterable[Span]]) -> None:
        self._collector, self._make_spans = collector, make_spans
        self._waiting: deque[Entry] = deque()
        self._unsent: deque[Span] = deque()
        self._ending, self._began = Event(), time.monotonic()
        self._has_answered = False
        self.dropped = 0  # events that no span was made of, or not all
        self._thread = Thread(target=self._run, name="tracing", daemon=True)
        self._thread.start()

    def put(self, entry: Entry) -> None:
        """Hand an entry over; returns at once."""
        if len(self._waiting) >= MOST_WAITING:
            self._waiting.popleft()
            self.dropped += 1
        self._waiting.append(entry)

    def close(self) -> int:
        """Send what is left, as far as the end may wait; returns how much was not: 0 for nothing.

        That is spans, and events that no span was made of.
        """
        self._ending.set()
        spent = 0.0 if self._has_answered else time.monotonic() - self._began
        self._thread.join(max(0.0, END_S - spent))
        self._collector.close()
        return self.dropped + len(self._waiting) + len(self._unsent)

    def _run(self) -> None:
        pause_s = 1.0
        while not self._collector.answers():
            if self._ending.wait(pause_s):
                return
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        self._has_answered = True
        pause_s = POLL_S
        while True:
            ending = self._ending.wait(pause_s)
            if self._send_waiting():
                pause_s = POLL_S
                if ending:
                    return
            elif ending:
                return
            else:
                pause_s = min(2 * max(pause_s, 1.0), LONGEST_PAUSE_S)

    def _send_waiting(self) -> bool:
        """Whether nothing is left."""
        while self._waiting or self._unsent:
            while self._waiting and len(self._unsent) < BATCH:
                entry = self._waiting.popleft()
                try:
                    self._unsent.extend(self._make_spans(entry))
                except StudioError:  # a record is damaged or gone, which whoever reads it tells
                    self.dropped += 1
            batch = [self._unsent[at] for at in range(min(BATCH, len(self._unsent)))]
            if batch and not self._collector.send(batch):
                return False
            for _ in batch:
                self._unsent.popleft()
        return True
