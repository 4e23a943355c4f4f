"""Rehearsal as a real server that speaks HTTP, to this machine only unless told another host."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping
from typing import Any, Literal

from engines.core.errors import ConfigError
from engines.policies.rehearsal.endpoint import answer_request

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
    if scope["type"] != "http":
        raise ValueError(f"{scope['type']} is not served")
    body = await _read_body(receive)
    if body is None:
        return
    made = answer_request(scope["method"], scope["path"], body)
    headers = [(b"content-type", made.content_type.encode())]
    await send({"type": "http.response.start", "status": made.status, "headers": headers})
    try:
        async for piece in made.body:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
    finally:
        await made.body.aclose()
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _read_body(receive: Receive) -> bytes | None:
    """The request's body; None when the client left before it was whole."""
    parts: list[bytes] = []
    while True:
        event = await receive()
        if event["type"] == "http.disconnect":
            return None
        parts.append(event.get("body", b""))
        if not event.get("more_body"):
            return b"".join(parts)


def open_listener(port: int, host: str, option: str = "") -> socket.socket:
    option = option or f"--port {port}"
    if not 0 <= port <= 65535:
        raise ConfigError(option, "there is no such port.", "Choose one from 0 to 65535.")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        cause = f"{host} cannot be listened on: {error.strerror or error}."
        if error.errno == errno.EADDRINUSE:
            cause = "another program listens there."
        move = "Choose another port; port 0 takes any free one."
        raise ConfigError(option, cause, move) from None
