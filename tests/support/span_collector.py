"""A collector of spans on this machine: it reads the real protobuf, and answers as it is told."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.support.threaded_server import Reply, serving


@dataclass(frozen=True)
class SentSpan:
    name: str
    trace: str
    id: str
    parent: str
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Any]
    error: str | None
    resource: Mapping[str, Any]

    @property
    def what(self) -> str:
        """The first word of its name."""
        return self.name.split()[0]


@dataclass
class SpanCollector:
    """`status` is what it answers with, and `content` of what kind.

    While it is `held`, no request is answered at all.
    """

    status: int = 200
    content: str = "application/x-protobuf"
    port: int = 0
    bodies: list[bytes] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    held: threading.Event | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def reply(self, request: BaseHTTPRequestHandler, body: bytes) -> Reply:
        if self.held is not None:
            self.held.wait()
        self.headers.append(dict(request.headers))
        self.paths.append(request.path)
        if self.status == 200 and "html" not in self.content:
            self.bodies.append(body)
        return self.status, self.content, b""

    @property
    def spans(self) -> list[SentSpan]:
        return [span for body in self.bodies for span in _spans(body)]

    def by_id(self) -> dict[str, SentSpan]:
        """Every span, none of which was sent twice."""
        assert not [i for i, n in Counter(span.id for span in self.spans).items() if n > 1]
        return {span.id: span for span in self.spans}

    def tree(self) -> Counter[tuple[str, str]]:
        """How many spans of each kind hang below which: (first word, its parent's)."""
        found = self.by_id()
        return Counter(
            (span.what, found[span.parent].what if span.parent else "") for span in found.values()
        )


def _spans(body: bytes) -> Iterator[SentSpan]:
    for of in ExportTraceServiceRequest.FromString(body).resource_spans:
        resource = _values(of.resource.attributes)
        for scope in of.scope_spans:
            for span in scope.spans:
                yield SentSpan(
                    span.name,
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    span.start_time_unix_nano,
                    span.end_time_unix_nano,
                    _values(span.attributes),
                    span.status.message if span.status.code == 2 else None,
                    resource,
                )


def _values(attributes: Any) -> dict[str, Any]:
    return {one.key: _value(one.value) for one in attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(one) for one in value.array_value.values]
    return getattr(value, kind)


@contextmanager
def collecting(
    status: int = 200, content: str = SpanCollector.content, *, held: bool = False
) -> Iterator[SpanCollector]:
    collector = SpanCollector(status, content, held=threading.Event() if held else None)
    with serving(collector.reply) as port:
        collector.port = port
        try:
            yield collector
        finally:
            if collector.held is not None:
                collector.held.set()
