"""How much of what an endpoint sends is taken at all.

The limits are no settings: nothing that a model writes on purpose comes near them, and memory
stays flat whatever a server sends. What passes one ends the call.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from engines.core.errors import CallFailed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx2

TEXT_CHARS = 1_000_000
"""Of text, reasoning and tool arguments together; about 250,000 tokens."""
TEXT_LINES = 20_000
BODY_BYTES = 40_000_000
"""With its framing, 300 bytes for a token as a rule: 130,000 streamed tokens. The body is
not held, only counted, so a keep-alive that goes on for ever ends here at the latest."""
LINE_BYTES = 2_000_000
"""One event of a stream, or a body that is not streamed. It is held and parsed whole, and
JSON of nothing but brackets grows to thirty times its size."""
TOOL_CALLS = 256
ERROR_BYTES = 65_536
"""An error page is read up to here and believed to end there."""
ERROR_S = 5.0
LISTING_BYTES = 4_000_000


def too_long_failure(what: str) -> CallFailed:
    return CallFailed("too long", f"the reply has more than {what}")


async def read_capped(chunks: AsyncIterator[bytes], limit: int) -> bytes:
    taken = bytearray()
    async for chunk in chunks:
        taken += chunk
        if len(taken) >= limit:
            break
    return bytes(taken[:limit])


async def shorten_errors(response: httpx2.Response) -> None:
    """A hook of the HTTP client: puts the beginning of an error's body in its place.

    The client library reads the body of every status but success whole, decompressed, and
    decodes it with whatever charset it names; a redirect's body is read whole as well.
    """
    import httpx2

    if response.is_success:
        return
    whole = response.stream
    assert isinstance(whole, httpx2.AsyncByteStream)
    reading = httpx2.Response(
        response.status_code, headers=response.headers, stream=whole, request=response.request
    )
    body = b""
    try:
        # What breaks or drips here changes nothing: the status is what counts.
        with suppress(httpx2.HTTPError, TimeoutError):
            async with asyncio.timeout(ERROR_S):
                body = await read_capped(reading.aiter_bytes(), ERROR_BYTES)
    finally:
        await whole.aclose()
    for name in ("content-encoding", "content-length", "transfer-encoding"):
        response.headers.pop(name, None)
    response.headers["content-type"] = "text/plain; charset=utf-8"
    response.stream = httpx2.ByteStream(body)
