"""The thread that sends spans: what waits, what is dropped, and how a run ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pytest

from engines.core import events as ev
from engines.core.errors import DamagedError
from studio.tracing import collector as sender
from studio.tracing.collector import Entry, SpanSender
from studio.tracing.spans import Span


def an_entry(number: int) -> Entry:
    return Entry(number, float(number), ev.RunPaused())


def two_spans(entry: Entry) -> Iterator[Span]:
    for half in (0, 1):
        yield Span(f"{entry.seq}.{half}", 1, 2 * entry.seq + half + 1, None, 0.0, 1.0)


@dataclass
class FakeCollector:
    """Takes batches, but for those that `refuses` says no to."""

    open: threading.Event = field(default_factory=threading.Event)
    refuses: Callable[[int], bool] = lambda _: False
    tried: int = 0
    taken: list[str] = field(default_factory=list)
    took: threading.Event = field(default_factory=threading.Event)
    closed: bool = False

    def answers(self) -> bool:
        return self.open.is_set()

    def send(self, spans: Sequence[Span]) -> bool:
        self.tried += 1
        if self.refuses(self.tried):
            return False
        self.taken += [span.name for span in spans]
        self.took.set()
        return True

    def close(self) -> None:
        self.closed = True


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "POLL_S", 0.001)
    monkeypatch.setattr(sender, "LONGEST_PAUSE_S", 0.001)


def opened() -> FakeCollector:
    collector = FakeCollector()
    collector.open.set()
    return collector


def test_every_span_is_sent_in_order_and_in_batches() -> None:
    collector = opened()
    sending = SpanSender(collector, two_spans)
    for number in range(1000):
        sending.put(an_entry(number))
    assert sending.close() == 0
    assert collector.taken == [f"{n}.{half}" for n in range(1000) for half in (0, 1)]
    assert collector.tried >= 2000 // sender.BATCH and collector.closed


def test_nothing_is_made_for_a_collector_that_has_not_answered_and_the_oldest_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sender, "MOST_WAITING", 10)
    monkeypatch.setattr(sender, "END_S", 0.0)
    collector, made = FakeCollector(), []

    def make(entry: Entry) -> Iterator[Span]:
        made.append(entry)
        return two_spans(entry)

    sending = SpanSender(collector, make)
    for number in range(25):
        sending.put(an_entry(number))
    assert sending.close() == 25 and sending.dropped == 15
    assert made == []


def test_a_batch_that_was_refused_is_sent_again_and_counts_as_left_where_it_never_is() -> None:
    collector = opened()
    collector.refuses = lambda tried: tried <= 3
    sending = SpanSender(collector, two_spans)
    sending.put(an_entry(0))
    assert collector.took.wait(60)  # it comes again by itself
    assert sending.close() == 0
    assert collector.taken == ["0.0", "0.1"]
    collector = opened()
    collector.refuses = lambda _: True
    sending = SpanSender(collector, two_spans)
    sending.put(an_entry(0))
    assert sending.close() in (1, 2)  # the event, or its spans where they were made
    assert collector.taken == []


def test_an_event_whose_records_cannot_be_read_is_counted_and_the_next_is_sent() -> None:
    def make(entry: Entry) -> Iterator[Span]:
        if entry.seq == 0:
            raise DamagedError("records", "is damaged.", "Mend it.")
        return two_spans(entry)

    collector = opened()
    sending = SpanSender(collector, make)
    for number in (0, 1):
        sending.put(an_entry(number))
    assert sending.close() == 1
    assert collector.taken == ["1.0", "1.1"]
