"""Spans of a run on their way to a collector that takes OTLP over HTTP, such as Phoenix.

They are sent while the run goes on, or of one that is over. What the OpenTelemetry SDK has to say
of failed requests is left out: the end of a run says it once.
"""

import asyncio
import logging
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from functools import cached_property, partial
from importlib.util import find_spec
from itertools import chain, islice
from threading import Event, Thread
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from engines.core.errors import ConfigError, ConflictError, StudioError, install_command
from engines.core.events import RunEnded
from engines.core.types import Tell
from engines.pipeline.recorder import Recorder
from engines.record.journal import Entry, read_journal
from engines.record.ledger import read_record
from engines.record.run_dir import RunDir
from studio.config.loading import LoadedRun
from studio.tracing.spans import Span, SpanMapper

if TYPE_CHECKING:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from requests import Response

SERVICE = "practice-studio"


def is_installed() -> bool:
    """Return whether the extra `otel` is there; nothing is imported."""
    with suppress(ImportError):
        return find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    return False


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
    collector = _open_collector(loaded)
    mapper = _open_mapper(loaded, run)
    state = recorder.state
    before: deque[Entry] = deque()  # sent by an earlier process, or lost with it
    if state.started is not None:
        before.append(Entry(0, run.started_at(), state.started))
        if state.paid is not None:  # the run's own span was sent as it ended then
            before.append(Entry(0, run.started_at(), RunEnded("stopped")))
    before.extend(recent)

    def make_spans(entry: Entry) -> Iterator[Span]:
        while before:
            for _ in mapper.take(before.popleft()):
                pass
        return mapper.take(entry)

    sender = SpanSender(collector, make_spans)

    def close() -> None:
        if left := sender.close():
            why = f" ({collector.reason})" if collector.reason else ""
            tell(
                f"note: {left} events or spans of this run did not reach "
                f"{loaded.mask(collector.url)}{loaded.mask(why)}: "
                f"studio runs trace {run.run} sends all of it"
            )

    recorder.listen(lambda _: sender.put(recorder.entry) if recorder.entry else None)
    stack.push_async_callback(asyncio.to_thread, close)


def send_run(loaded: LoadedRun, run: RunDir) -> int:
    """Send every span of a run that is on disk; returns how many.

    One that the collector has already comes with the id it had.

    Raises ConfigError: no collector is named, or OpenTelemetry is not installed. ConflictError: the
    collector does not take them.
    """
    place = "studio runs trace"
    if loaded.config.collector is None:
        raise ConfigError(
            place,
            "no collector is named.",
            "Give --endpoint http://127.0.0.1:6006, or set PHOENIX_ENDPOINT.",
        )
    if not is_installed():
        raise ConfigError(
            place,
            "it needs OpenTelemetry, which is not installed.",
            f"Run: {install_command('otel')}",
        )
    collector = _open_collector(loaded)
    spans = run_spans(loaded, run)
    sent = 0
    answers = collector.answers()
    try:
        while batch := list(islice(spans, BATCH)):
            if not (answers and collector.send(batch)):
                cause = loaded.mask(collector.reason) or "nobody listens there."
                raise ConflictError(
                    loaded.mask(collector.url),
                    cause,
                    "Start the collector, or give its address with --endpoint.",
                )
            sent += len(batch)
    finally:
        collector.close()
    return sent


def run_spans(loaded: LoadedRun, run: RunDir) -> Iterator[Span]:
    """Yield every span of a run, from its journal and its records."""
    entries = read_journal(run.journal)  # a part of a long one at a time
    return chain.from_iterable(map(_open_mapper(loaded, run).take, entries))


def _open_mapper(loaded: LoadedRun, run: RunDir) -> SpanMapper:
    content = loaded.config.tracing.content
    return SpanMapper(partial(read_record, run.records), content=content)


def _open_collector(loaded: LoadedRun) -> "OTLPCollector":
    address = loaded.config.collector
    assert address is not None
    return OTLPCollector(address.url, address.headers, address.project)


class OTLPCollector:
    """A way for spans. Its methods block; only `close` is called from another thread."""

    def __init__(self, url: str, headers: Mapping[str, str], project: str) -> None:
        self._headers, self._project = dict(headers), project
        self.url, self.reason = url, ""  # why the last request failed
        self._closed = False

    def answers(self) -> bool:
        """Return whether it takes spans now."""
        # Importing the SDK costs 0.2 s of CPU: not for an address at which nobody listens.
        return self._is_listening() and self._export([])

    def send(self, spans: Sequence[Span]) -> bool:
        """Return whether it took them all."""
        return self._export([_readable(span, self._resource) for span in spans])

    def close(self) -> None:
        """Give a request up that is under way."""
        self._closed = True
        if "_exporter" in self.__dict__:
            self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def _is_listening(self) -> bool:
        from urllib.request import getproxies, proxy_bypass

        place = urlsplit(self.url)
        if getproxies().get(place.scheme) and not proxy_bypass(place.hostname or ""):
            return True  # only the proxy can tell
        port = place.port or (443 if place.scheme == "https" else 80)
        with suppress(OSError), socket.create_connection((place.hostname, port), 2):
            return True
        return False

    def _export(self, spans: "Sequence[ReadableSpan]") -> bool:
        from opentelemetry.sdk.trace.export import SpanExportResult

        self.reason = "it does not answer"
        return not self._closed and self._exporter.export(spans) is SpanExportResult.SUCCESS

    @cached_property
    def _exporter(self) -> "OTLPSpanExporter":
        import requests
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        logger = logging.getLogger(OTLPSpanExporter.__module__)
        logger.handlers, logger.propagate = [logging.NullHandler()], False
        session = requests.Session()
        session.hooks["response"].append(self._check)
        return OTLPSpanExporter(self.url, headers=self._headers, session=session)

    def _check(self, response: "Response", **_: object) -> None:
        """What sends elsewhere, or a page for people, is no collector; the SDK takes it for one."""
        self.reason = f"it answers {response.status_code} {response.reason}"
        is_page = "html" in response.headers.get("Content-Type", "")
        if response.ok and (is_page or response.status_code >= 300):
            response.status_code = 400

    @cached_property
    def _resource(self) -> "Resource":
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource

        # Between the two, so that the standard variables may name another service.
        resource = Resource({"service.name": SERVICE}).merge(OTELResourceDetector().detect())
        return resource.merge(Resource({"openinference.project.name": self._project}))


def _readable(span: Span, resource: "Resource") -> "ReadableSpan":
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

    def context(span_id: int) -> SpanContext:
        return SpanContext(span.trace, span_id, False, TraceFlags(TraceFlags.SAMPLED))

    status = Status(StatusCode.OK)
    if span.error is not None:
        status = Status(StatusCode.ERROR, span.error)
    return ReadableSpan(
        name=span.name,
        context=context(span.id),
        parent=None if span.parent is None else context(span.parent),
        resource=resource,
        attributes=span.attributes,
        kind=SpanKind.CLIENT if "gen_ai.request.model" in span.attributes else SpanKind.INTERNAL,
        status=status,
        start_time=int(span.start * 1e9),
        end_time=int(span.end * 1e9),
        instrumentation_scope=InstrumentationScope(SERVICE),
    )


MOST_WAITING = 4_096
"""Events that wait for the collector; of more, the oldest are dropped."""
BATCH = 256
"""Spans of one request at most."""
POLL_S = 0.5
LONGEST_PAUSE_S = 30.0
END_S = 2.0
"""What the end of a run may wait for: a collector that has answered before, or in a run so short
that it could not have yet."""


class SpanSender:
    """Started when it is made. `make_spans` is called in its thread, with each entry in order."""

    def __init__(
        self, collector: OTLPCollector, make_spans: Callable[[Entry], Iterable[Span]]
    ) -> None:
        self._collector, self._make_spans = collector, make_spans
        self._waiting: deque[Entry] = deque()
        self._unsent: list[Span] = []
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
        pause_s, is_ending = 0.0, False
        while True:
            self._has_answered = self._has_answered or self._collector.answers()
            is_sent = self._has_answered and self._send_waiting()
            if is_ending:
                return
            pause_s = POLL_S if is_sent else min(2 * max(pause_s, 0.5), LONGEST_PAUSE_S)
            is_ending = self._ending.wait(pause_s)

    def _send_waiting(self) -> bool:
        """Send what waits; returns whether nothing is left."""
        while self._waiting or self._unsent:
            while self._waiting and len(self._unsent) < BATCH:
                try:
                    self._unsent.extend(self._make_spans(self._waiting.popleft()))
                except StudioError:  # a record is damaged or gone, which whoever reads it tells
                    self.dropped += 1
            if self._unsent and not self._collector.send(self._unsent[:BATCH]):
                return False
            del self._unsent[:BATCH]
        return True
