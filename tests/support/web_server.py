"""A web server of a test, byte by byte: it can say what no honest server says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, field
from ssl import SSLContext
from typing import Any
from urllib.parse import parse_qs, urlsplit


@dataclass(frozen=True)
class Asked:
    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def path(self) -> str:
        return urlsplit(self.target).path

    @property
    def query(self) -> dict[str, str]:
        return {name: values[0] for name, values in parse_qs(urlsplit(self.target).query).items()}


Answer = bytes | AsyncIterator[bytes]


@dataclass
class WebServer:
    answer: Callable[[Asked], Answer]
    host: str
    port: int = 0
    scheme: str = "http"
    asked: list[Asked] = field(default_factory=list)
    sent: int = 0
    under_way: set[asyncio.Task[None] | None] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.host}:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.under_way.add(asyncio.current_task())
        with closing(writer), suppress(ConnectionError, asyncio.IncompleteReadError):
            first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").splitlines()
            pairs = (line.split(": ", 1) for line in lines if line)
            headers = {name.lower(): value for name, value in pairs}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            method, target, _ = first.split(" ")
            self.asked.append(Asked(method, target, headers, body))
            answer = self.answer(self.asked[-1])
            async for piece in _pieces(answer):
                writer.write(piece)
                self.sent += len(piece)
                await writer.drain()


@asynccontextmanager
async def serving(
    answer: Callable[[Asked], Answer] | Mapping[str, Answer],
    host: str = "127.0.0.1",
    tls: SSLContext | None = None,
) -> AsyncIterator[WebServer]:
    """Answers by a function, or by the path: what is not there is a 404."""
    pages = answer if isinstance(answer, Mapping) else {}
    chosen = answer if callable(answer) else lambda a: pages.get(a.path, reply(b"none", 404))
    web = WebServer(chosen, host, scheme="https" if tls else "http")
    server = await asyncio.start_server(web.serve, host, 0, ssl=tls, limit=2**20)
    web.port = server.sockets[0].getsockname()[1]
    try:
        yield web
    finally:
        server.close()
        tasks = [task for task in web.under_way if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()


def reply(
    body: bytes | str = b"", status: int = 200, kind: str = "text/html", **headers: str
) -> bytes:
    raw = body.encode() if isinstance(body, str) else body
    named = {"content-type": kind, "content-length": str(len(raw)), **headers}
    lines = (f"{name.replace('_', '-')}: {value}\r\n" for name, value in named.items() if value)
    return f"HTTP/1.1 {status} Said\r\n{''.join(lines)}\r\n".encode() + raw


def json_reply(value: Any, status: int = 200) -> bytes:
    return reply(json.dumps(value), status, "application/json; charset=utf-8")


def redirect(to: str, status: int = 302) -> bytes:
    return reply(b"", status, location=to, set_cookie="seen=1")


async def _pieces(answer: Answer) -> AsyncIterator[bytes]:
    if isinstance(answer, bytes):
        yield answer
    else:
        async for piece in answer:
            yield piece
