"""An HTTP server in a thread, for commands that run in the process of the test."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import orjson

Reply = tuple[int, str, bytes]
"""(status, content type, body)."""


@contextmanager
def serving(reply: Callable[[BaseHTTPRequestHandler, bytes], Reply]) -> Iterator[int]:
    """Answer every POST with `reply`, and every GET with the model `rehearsal`; yields the port."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            self._send(*reply(self, body))

        def do_GET(self) -> None:
            self._send(200, "application/json", orjson.dumps({"data": [{"id": "rehearsal"}]}))

        def _send(self, status: int, kind: str, data: bytes) -> None:
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def streamed(deltas: Sequence[object]) -> Reply:
    """A whole reply as server-sent events."""

    def line(delta: object, finish: str | None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return b"data: " + orjson.dumps({"model": "rehearsal", "choices": [choice]}) + b"\n\n"

    lines = [*(line(delta, None) for delta in deltas), line({}, "stop"), b"data: [DONE]\n\n"]
    return 200, "text/event-stream", b"".join(lines)
