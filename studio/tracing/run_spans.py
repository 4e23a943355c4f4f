"""Spans of a run on their way to a collector: while it goes on, and of one that is over."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AsyncExitStack
from functools import partial
from itertools import chain, islice

from engines.core.errors import ConfigError, ConflictError, install_command
from engines.core.events import DurableEvent, RunEnded, TransientEvent
from engines.core.state.run_state import RunState
from engines.pipeline.recorder import Recorder
from engines.record.journal import Entry, read_journal
from engines.record.ledger import read_record
from engines.record.run_dir import RunDir
from engines.tracing.otel import BATCH, OTLPCollector, SpanSender, is_installed
from engines.tracing.otel import Entry as Event
from engines.tracing.spans import Span, SpanMapper
from studio.config.loading import LoadedRun

Tell = Callable[[str], None]


def check_tracing(loaded: LoadedRun, tell: Tell = lambda _: None) -> None:
    """Refuse a run file that asks for spans where OpenTelemetry is missing.

    Where only the environment names a collector, for whatever program, that is told.
    """
    address = loaded.config.collector
    if address is None or is_installed():
        return
    move = f"Run: {install_command('otel')}"
    if address.asked:
        place = loaded.place("tracing.base_url")
        raise ConfigError(place, "spans need OpenTelemetry, which is not installed.", move)
    tell(f"note: no spans are sent, since OpenTelemetry is not installed. {move}")


def open_tracing(
    loaded: LoadedRun,
    run: RunDir,
    recorder: Recorder,
    recent: Iterable[Entry],
    stack: AsyncExitStack,
    tell: Tell,
) -> None:
    """Send the spans of a run from now on, until the stack is closed.

    `recent` are the entries that an earlier process has written since the last step began.
    """
    if loaded.config.collector is None or not is_installed():
        return
    sending = _Sending(loaded, run, recorder.state, recent)

    def listen(_: DurableEvent | TransientEvent) -> None:
        if recorder.entry is not None:
            sending.put(recorder.entry)

    recorder.listen(listen)
    stack.push_async_callback(asyncio.to_thread, sending.close, tell)


class _Sending:
    """A run's way to its collector; `state` and `recent` say what was sent before."""

    def __init__(
        self, loaded: LoadedRun, run: RunDir, state: RunState, recent: Iterable[Entry]
    ) -> None:
        self._loaded, self._run = loaded, run
        self._collector, self._mapper = _open_collector(loaded), _open_mapper(loaded, run)
        self._sent: deque[Event] = deque()  # or lost with its process
        if (started := state.started) is not None:
            self._sent.append((0, run.started_at(), started))
            if state.paid is not None:  # the run's own span was sent as it ended then
                self._sent.append((0, run.started_at(), RunEnded("stopped")))
        self._sent.extend((entry.seq, entry.at, entry.event) for entry in recent)
        self._sender = SpanSender(self._collector, self._make_spans)

    def put(self, entry: Entry) -> None:
        self._sender.put((entry.seq, entry.at, entry.event))

    def close(self, tell: Tell) -> None:
        mask = self._loaded.mask
        if left := self._sender.close():
            why = f" ({self._collector.reason})" if self._collector.reason else ""
            tell(
                f"note: {left} events or spans of this run did not reach "
                f"{mask(self._collector.url)}{mask(why)}: "
                f"studio runs trace {self._run.run} sends all of it"
            )

    def _make_spans(self, event: Event) -> Iterator[Span]:
        while self._sent:
            deque(self._mapper.take(*self._sent.popleft()), maxlen=0)
        return self._mapper.take(*event)


def send_run(loaded: LoadedRun, run: RunDir) -> int:
    """Send every span of a run that is on disk; returns how many.

    One that the collector has already comes with the id it had.

    Raises ConfigError: no collector is named, or OpenTelemetry is not installed. ConflictError: the
    collector does not take them.
    """
    if loaded.config.collector is None:
        move = "Give --endpoint http://127.0.0.1:6006, or set PHOENIX_ENDPOINT."
        raise ConfigError("studio runs trace", "no collector is named.", move)
    if not is_installed():
        move = f"Run: {install_command('otel')}"
        raise ConfigError(
            "studio runs trace", "it needs OpenTelemetry, which is not installed.", move
        )
    collector, sent = _open_collector(loaded), 0
    spans, answers = run_spans(loaded, run), collector.answers()
    try:
        while batch := list(islice(spans, BATCH)):
            if not (answers and collector.send(batch)):
                cause = loaded.mask(collector.reason) or "nobody listens there."
                move = "Start the collector, or give its address with --endpoint."
                raise ConflictError(loaded.mask(collector.url), cause, move)
            sent += len(batch)
    finally:
        collector.close()
    return sent


def run_spans(loaded: LoadedRun, run: RunDir) -> Iterator[Span]:
    """Every span of a run, from its journal and its records."""
    mapper = _open_mapper(loaded, run)
    entries = read_journal(run.journal)  # a part of a long one at a time
    return chain.from_iterable(mapper.take(e.seq, e.at, e.event) for e in entries)


def _open_mapper(loaded: LoadedRun, run: RunDir) -> SpanMapper:
    content = loaded.config.tracing.content
    return SpanMapper(partial(read_record, run.records), content=content)


def _open_collector(loaded: LoadedRun) -> OTLPCollector:
    address = loaded.config.collector
    assert address is not None
    return OTLPCollector(address.url, address.headers, address.project)
