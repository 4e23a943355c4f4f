"""Rehearsal as a transport of the HTTP client: the same bytes, without a socket.

A transport of our own because the client's stock one for ASGI apps keeps the body
back until it is whole, and nothing would stream.
"""

from collections.abc import AsyncIterator

import httpx2

from engines.policies.rehearsal.server import EndpointReply, answer_request


class RehearsalTransport(httpx2.AsyncBaseTransport):
    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        made = answer_request(request.method, request.url.path, await request.aread())
        headers = {"content-type": made.content_type}
        return httpx2.Response(made.status, headers=headers, stream=_Body(made))


class _Body(httpx2.AsyncByteStream):
    """Hands on each piece as it is made; closing it ends the reply."""

    def __init__(self, made: EndpointReply) -> None:
        self._pieces = made.body

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._pieces

    async def aclose(self) -> None:
        await self._pieces.aclose()
