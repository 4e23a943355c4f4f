"""Spans of a run on their way to a collector: while it goes on, and of one that is over."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AsyncExitStack
from functools import partial
from itertools import chain, islice

from engines.core.errors import ConfigError, ConflictError
from engines.core.events import DurableEvent, RunEnded, TransientEvent
from engines.core.extras import install_command
from engines.pipeline.recorder import Recorder
from engines.record.journal import Entry
from engines.record.ledger import read_record
from engines.record.run_dir import RunDir
from engines.tracing.otel import OTLPCollector, is_installed
from engines.tracing.sender import BATCH, SpanSender
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
    collector, mapper = _open_collector(loaded), _open_mapper(loaded, run)
    sent: deque[tuple[int, float, DurableEvent]] = deque()  # or lost with the process
    if (started := recorder.state.started) is not None:
        sent.append((0, run.started_at(), started))
        if recorder.state.paid is not None:  # the run's own span was sent as it ended then
            sent.append((0, run.started_at(), RunEnded("stopped")))
    sent.extend((entry.seq, entry.at, entry.event) for entry in recent)

    def make_spans(entry: tuple[int, float, DurableEvent]) -> Iterator[Span]:
        while sent:
            deque(mapper.take(*sent.popleft()), maxlen=0)
        return mapper.take(*entry)

    sender = SpanSender(collector, make_spans)

    def listen(_: DurableEvent | TransientEvent) -> None:
        if (entry := recorder.entry) is not None:
            sender.put((entry.seq, entry.at, entry.event))

    async def close() -> None:
        if left := await asyncio.to_thread(sender.close):
            why = f" ({loaded.mask(collector.reason)})" if collector.reason else ""
            to = loaded.mask(collector.url)
            tell(
                f"note: {left} events or spans of this run did not reach {to}{why}: "
                f"studio runs trace {run.run} sends all of it"
            )

    recorder.listen(listen)
    stack.push_async_callback(close)


def send_run(loaded: LoadedRun, run: RunDir) -> int:
    """Send every span of a run that is on disk; returns how many.

    One that the collector has already comes with the id it had.

    Raises:
        ConfigError: no collector is named, or OpenTelemetry is not installed.
        ConflictError: the collector does not take them.
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
    return chain.from_iterable(mapper.take(e.seq, e.at, e.event) for e in run.entries())


def _open_mapper(loaded: LoadedRun, run: RunDir) -> SpanMapper:
    content = loaded.config.tracing.content
    return SpanMapper(partial(read_record, run.records), content=content)


def _open_collector(loaded: LoadedRun) -> OTLPCollector:
    address = loaded.config.collector
    assert address is not None
    return OTLPCollector(address.url, address.headers, address.project)
