"""A real HTTP server on this machine that does what a test tells it, request by request."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

Behaviour = Callable[["Exchange"], Awaitable[None]]


@dataclass(slots=True)
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: dict[str, Any]


@dataclass(slots=True)
class Exchange:
    """One request and the means to answer it."""

    request: Request
    writer: asyncio.StreamWriter

    async def head(self, status: int, kind: str, headers: Mapping[str, str]) -> None:
        lines = [f"HTTP/1.1 {status} Said", f"content-type: {kind}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        await self.write(("\r\n".join([*lines, "", ""])).encode())

    async def write(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def chunk(self, data: bytes) -> None:
        await self.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    async def end(self) -> None:
        await self.write(b"0\r\n\r\n")

    async def stream(self, pieces: Sequence[bytes], *, cut: bool = False) -> None:
        """Send pieces as chunks of one streamed body; `cut` drops the line in the middle."""
        await self.head(200, "text/event-stream", {"transfer-encoding": "chunked"})
        for piece in pieces:
            await self.chunk(piece)
        if cut:
            self.writer.close()
        else:
            await self.end()

    async def plain(
        self, status: int, body: bytes, headers: Mapping[str, str] | None = None
    ) -> None:
        length = {"content-length": str(len(body))}
        await self.head(status, "application/json", {**length, **(headers or {})})
        await self.write(body)


@dataclass(slots=True)
class FakeEndpoint:
    """The server's script and its memory. The last behaviour repeats for ever."""

    script: list[Behaviour]
    base_url: str = ""
    requests: list[Request] = field(default_factory=list)
    connections: int = 0
    open_now: int = 0
    mark_changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [request.body for request in self.requests]

    async def until(self, holds: Callable[[], bool]) -> None:
        """Return once `holds` is true; looked at whenever something happens here.

        What never comes true fails the test after 20 s instead of hanging it.
        """
        async with asyncio.timeout(20):
            while not holds():
                self.mark_changed.clear()
                await self.mark_changed.wait()

    async def serve_adapter(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.connections += 1
        self.open_now += 1
        self.mark_changed.set()
        try:
            while (request := await read_request(reader)) is not None and not writer.is_closing():
                self.requests.append(request)
                self.mark_changed.set()
                behaviour = self.script[min(len(self.requests), len(self.script)) - 1]
                answering = asyncio.create_task(behaviour(Exchange(request, writer)))
                # A client that leaves ends the behaviour, so that a hang ends with its test.
                leaving = asyncio.create_task(reader.read(1)) if _hangs(behaviour) else None
                waiting = {answering, leaving} if leaving else {answering}
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in waiting:
                    task.cancel()
                done = await asyncio.gather(*waiting, return_exceptions=True)
                for result in done:
                    if isinstance(result, Exception) and not isinstance(result, OSError):
                        raise result
                if leaving:
                    return
        except (OSError, asyncio.CancelledError):
            pass  # the client left, or the test is over
        finally:
            self.open_now -= 1
            self.mark_changed.set()
            writer.close()


async def read_request(reader: asyncio.StreamReader) -> Request | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    except asyncio.IncompleteReadError:
        return None
    method, path, _ = head[0].split(" ")
    pairs = (line.partition(":") for line in head[1:] if line)
    headers = {name.lower(): value.strip() for name, _, value in pairs}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Request(method, path, headers, orjson.loads(body) if body else {})


def _hangs(behaviour: Behaviour) -> bool:
    return getattr(behaviour, "hangs", False)


@contextlib.asynccontextmanager
async def fake_endpoint(*script: Behaviour) -> AsyncIterator[FakeEndpoint]:
    fake = FakeEndpoint(list(script))
    server = await asyncio.start_server(fake.serve_adapter, "127.0.0.1", 0, limit=2**22)
    port = server.sockets[0].getsockname()[1]
    fake.base_url = f"http://127.0.0.1:{port}/v1"
    try:
        yield fake
    finally:
        server.close()


@contextlib.contextmanager
def an_endpoint(*script: Behaviour) -> Iterator[FakeEndpoint]:
    """A fake endpoint in a thread of its own; the first behaviour answers the ping."""
    ready = threading.Event()
    over: list[Any] = []

    async def serve() -> None:
        async with fake_endpoint(*script) as fake:
            stop = asyncio.Event()
            over.extend([fake, asyncio.get_running_loop(), stop])
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(20)
    fake, loop, stop = over
    try:
        yield fake
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(20)


def event(value: object) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"


def delta(finish: str | None = None, **fields: object) -> bytes:
    choice = {"index": 0, "delta": fields, "finish_reason": finish}
    return event({"model": "served", "choices": [choice]})


def usage(prompt: int, completion: int) -> bytes:
    counts = {"prompt_tokens": prompt, "completion_tokens": completion}
    return event({"choices": [], "usage": counts})


DONE = b"data: [DONE]\n\n"


def says(*words: str, counts: tuple[int, int] | None = (7, 3)) -> Behaviour:
    """Stream the words, then the usual end."""

    async def behaviour(exchange: Exchange) -> None:
        end = [delta("stop"), *([usage(*counts)] if counts else []), DONE]
        await exchange.stream([*(delta(content=word) for word in words), *end])

    return behaviour


def sends(*pieces: bytes, cut: bool = False) -> Behaviour:
    async def behaviour(exchange: Exchange) -> None:
        await exchange.stream(pieces, cut=cut)

    return behaviour


def refuses(
    status: int, message: str = "no", headers: Mapping[str, str] | None = None, **fields: object
) -> Behaviour:
    async def behaviour(exchange: Exchange) -> None:
        body = orjson.dumps({"error": {"message": message, **fields}})
        await exchange.plain(status, body, headers)

    return behaviour


def answers(value: object) -> Behaviour:
    """A plain JSON body."""

    async def behaviour(exchange: Exchange) -> None:
        await exchange.plain(200, orjson.dumps(value))

    return behaviour


def hangs(*pieces: bytes) -> Behaviour:
    """Stream the pieces, then nothing more until the client leaves."""

    async def behaviour(exchange: Exchange) -> None:
        if pieces:
            await exchange.head(200, "text/event-stream", {"transfer-encoding": "chunked"})
            for piece in pieces:
                await exchange.chunk(piece)
        await asyncio.get_running_loop().create_future()

    behaviour.hangs = True  # type: ignore[attr-defined]
    return behaviour


def drips(*pieces: bytes) -> Behaviour:
    """Stream the pieces, then a byte now and then, never a whole line, for ever."""

    async def behaviour(exchange: Exchange) -> None:
        await exchange.head(200, "text/event-stream", {"transfer-encoding": "chunked"})
        for piece in pieces:
            await exchange.chunk(piece)
        while True:
            await exchange.chunk(b":")
            await asyncio.sleep(0.02)

    behaviour.hangs = True  # type: ignore[attr-defined]
    return behaviour


def drops(*, reset: bool = False) -> Behaviour:
    """Close the connection without a word, or reset it."""

    async def behaviour(exchange: Exchange) -> None:
        drop(exchange.writer, reset=reset)

    return behaviour


def drop(writer: asyncio.StreamWriter, *, reset: bool) -> None:
    if reset:
        linger = struct.pack("ii", 1, 0)  # closing then drops what waits and sends a reset
        taken = writer.get_extra_info("socket")
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.transport.abort()
