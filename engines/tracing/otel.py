"""A collector that takes OTLP over HTTP, such as Phoenix; the only file that knows OpenTelemetry.

What the SDK has to say of failed requests is left out: the end of a run says it once.
"""

import logging
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from importlib.util import find_spec
from threading import Event, Thread
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

from engines.core.errors import StudioError
from engines.core.events import DurableEvent
from engines.tracing.spans import Span

if TYPE_CHECKING:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from requests import Response


SERVICE = "practice-studio"


def is_installed() -> bool:
    """Whether the extra `otel` is there; nothing is imported."""
    with suppress(ImportError):
        return find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    return False


class OTLPCollector:
    """Implements `engines.tracing.otel.Collector`."""

    def __init__(self, url: str, headers: Mapping[str, str], project: str) -> None:
        self._headers, self._project = dict(headers), project
        self.url, self.reason = url, ""  # why the last request failed
        self._closed = False

    def answers(self) -> bool:
        # Importing the SDK costs 0.2 s of CPU: not for an address at which nobody listens.
        return self._is_listening() and self._export([])

    def send(self, spans: Sequence[Span]) -> bool:
        return self._export([_readable(span, self._resource) for span in spans])

    def close(self) -> None:
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
