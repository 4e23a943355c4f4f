"""The rehearsal endpoint: method, path and body in, status and bytes out.

The transport of the HTTP client, without a socket, shares it with the real server, which speaks
HTTP to this machine only unless it is given another host.
"""

import asyncio
import contextlib
import errno
import socket
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
    MutableMapping,
)
from typing import Any, Literal

import httpx2
import orjson

from engines.core import chat_protocol, errors
from engines.core.frozen import frozen

Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]


@contextlib.asynccontextmanager
async def background_server(
    port: int = 0,
    host: str = "127.0.0.1",
    *,
    application: Any = None,
    option: str = "",
    path: str = "/v1",
    lifespan: Literal["on", "off"] = "off",
) -> AsyncIterator[str]:
    """Yields the base URL; port 0 takes any free one. Raises ConfigError: it cannot be had.

    Without an `application` the rehearsal is served. `option` named the port, if not --port.
    """
    import uvicorn

    class QuietServer(uvicorn.Server):
        """Leaves signals to the process it runs in."""

        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    listener = open_listener(port, host, option)
    config = uvicorn.Config(
        application or app,
        http="h11",
        loop="asyncio",
        ws="none",
        lifespan=lifespan,
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=1,
    )
    server = QuietServer(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        # Early connections wait in the listener's queue, so there is nothing to wait for.
        shown = f"[{host}]" if ":" in host else host
        yield f"http://{shown}:{listener.getsockname()[1]}{path}"
    finally:
        server.should_exit = True
        await task
        listener.close()


async def app(scope: Event, receive: Receive, send: Send) -> None:
    body = b""
    more = True
    while more:
        event = await receive()
        if event["type"] == "http.disconnect":
            return
        body += event.get("body", b"")
        more = event.get("more_body", False)
    reply = answer_request(scope["method"], scope["path"], body)
    headers = [(b"content-type", reply.content_type.encode())]
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    async with contextlib.aclosing(reply.body) as pieces:
        async for piece in pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def open_listener(port: int, host: str, option: str = "") -> socket.socket:
    option = option or f"--port {port}"
    if not 0 <= port <= 65535:
        raise errors.ConfigError(option, "there is no such port.", "Choose one from 0 to 65535.")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        cause = f"{host} cannot be listened on: {error.strerror or error}."
        if error.errno == errno.EADDRINUSE:
            cause = "another program listens there."
        raise errors.ConfigError(
            option, cause, "Choose another port; port 0 takes any free one."
        ) from None


MODEL = "rehearsal"


@frozen
class EndpointReply:
    """`body` may be iterated once; closing it early ends the reply."""

    status: int
    content_type: str
    body: AsyncGenerator[bytes, None]


def answer_request(method: str, path: str, body: bytes) -> EndpointReply:
    from engines.policies.rehearsal.reply import read_request, stream_reply

    if (method, path) == ("GET", "/v1/models"):
        row = {"id": MODEL, "object": "model", "owned_by": "practice studio"}
        return _json_reply(200, {"object": "list", "data": [row]})
    if (method, path) != ("POST", "/v1/chat/completions"):
        return _error_reply(404, f"there is nothing at {method} {path}")
    try:
        request = read_request(orjson.loads(body))
    except (orjson.JSONDecodeError, chat_protocol.BadRequest) as error:
        return _error_reply(400, str(error))
    model = request.body["model"]
    if model.partition(":")[0] != MODEL:
        # Answering for another model would pass scripted numbers off as that model's.
        return _error_reply(404, f"the model {model!r} does not exist; there is {MODEL!r} only")
    kind = "text/event-stream" if request.asked.stream else "application/json"
    return EndpointReply(200, kind, stream_reply(request))


def _error_reply(status: int, message: str) -> EndpointReply:
    return _json_reply(status, chat_protocol.error_body(status, message))


def _json_reply(status: int, value: object) -> EndpointReply:
    async def single_piece() -> AsyncGenerator[bytes, None]:
        yield orjson.dumps(value)

    return EndpointReply(status, "application/json", single_piece())


class RehearsalTransport(httpx2.AsyncBaseTransport):
    """The endpoint without a socket.

    A transport of our own because the client's stock one for ASGI apps keeps the body
    back until it is whole, and nothing would stream.
    """

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        reply = answer_request(request.method, request.url.path, await request.aread())
        headers = {"content-type": reply.content_type}
        return httpx2.Response(reply.status, headers=headers, stream=_Body(reply.body))


class _Body(httpx2.AsyncByteStream):
    """Hands on each piece as it is made; closing it ends the reply."""

    def __init__(self, pieces: AsyncGenerator[bytes, None]) -> None:
        self._pieces = pieces

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._pieces

    async def aclose(self) -> None:
        await self._pieces.aclose()
