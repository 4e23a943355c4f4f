"""Fetches from the network, within limits of time, size and of what may be reached.

No cookies, no proxies, no credentials in addresses, nothing that is kept between two requests.
"""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from engines.core.text.sanitize import one_line
from engines.tools.web.address import AddressGuard, FetchFailed

if TYPE_CHECKING:
    from ssl import SSLContext

    import httpx2

MAX_BYTES = 5_000_000
"""Of one reply, packed as well as unpacked; what is behind it is not read."""
PAGE_S, SERVICE_S, CONNECT_S = 10.0, 25.0, 4.0
MAX_REDIRECTS = 5
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Fetched:
    url: str  # where it was in the end
    status: int
    content_type: str  # as the server says it
    body: bytes
    is_cut: bool = False  # at `MAX_BYTES`, or what is packed in it breaks off


@dataclass(frozen=True, slots=True)
class Fetcher:
    """A connection for each request, so that any number of them may run at once."""

    user_agent: str
    guard: AddressGuard = field(default_factory=AddressGuard)
    tls: SSLContext | None = None  # None: the machine's certificates

    async def fetch(self, url: str, limit_s: float = PAGE_S) -> Fetched:
        """A page, wherever it redirects to; FetchFailed where nothing of it can be read."""
        found = await self._follow(url, limit_s, {}, None, MAX_REDIRECTS)
        if not 200 <= found.status < 300:
            raise FetchFailed(f"{found.url} answered {found.status}.", found.status)
        return found

    async def ask_service(
        self, url: str, headers: Mapping[str, str] | None = None, body: object = None
    ) -> dict[str, Any]:
        """The JSON object that a service replies; FetchFailed, with its words, where it refuses.

        What carries a header or a body is never sent on to where a redirect leads.
        """
        content = None if body is None else json.dumps(body).encode()
        sent = {"Accept": "application/json", **(headers or {})}
        if content is not None:
            sent["Content-Type"] = "application/json"
        redirects = MAX_REDIRECTS if content is None and not headers else 0
        found = await self._follow(url, SERVICE_S, sent, content, redirects)
        try:
            value = json.loads(found.body)
        except (ValueError, RecursionError):
            value = None
        host = found.url.split("/")[2]
        if not 200 <= found.status < 300:
            said = json.dumps(one_line(_error_text(value))[:300], ensure_ascii=False)
            raise FetchFailed(f"{host} answered {found.status} and says {said}.", found.status)
        if not isinstance(value, dict):
            raise FetchFailed(f"{host} replied with something that is no JSON object.")
        return value

    async def _follow(
        self, url: str, limit_s: float, headers: Mapping[str, str], body: bytes | None, hops: int
    ) -> Fetched:
        import httpx2

        shown = one_line(url)[:200]
        try:
            async with asyncio.timeout(limit_s):
                for _ in range(hops + 1):
                    place = read_url(url)
                    async with self._open(place, headers, body) as response:
                        if not response.has_redirect_location:
                            taken, is_cut = await _read_body(response)
                            kind = response.headers.get("content-type", "")
                            return Fetched(str(place), response.status_code, kind, taken, is_cut)
                        url = str(place.join(response.headers["location"]))
        except TimeoutError:
            raise FetchFailed(f"{shown} took longer than {limit_s:g} s.") from None
        except (httpx2.HTTPError, httpx2.InvalidURL, zlib.error) as error:
            said = one_line(str(error) or type(error).__name__)[:300]
            raise FetchFailed(f"{shown} cannot be read ({said}).") from None
        more = f"after {hops} redirects it redirects again" if hops else "it redirects, unfollowed"
        raise FetchFailed(f"{more}, to {one_line(url)[:200]}.")

    @asynccontextmanager
    async def _open(
        self, url: httpx2.URL, headers: Mapping[str, str], body: bytes | None
    ) -> AsyncIterator[httpx2.Response]:
        """The response of an address that was judged, its body yet to be read."""
        import httpx2

        addresses = await self.guard.find_addresses(url.host, url.port or _PORTS[url.scheme])
        own = {"Host": url.netloc.decode(), "User-Agent": self.user_agent}
        sent = {**own, "Accept-Encoding": "gzip", "Connection": "close", **headers}
        # Certificates are those of the name, although it is an address that is connected to.
        extensions = {
            "timeout": {"connect": CONNECT_S},
            "sni_hostname": url.raw_host.decode().strip("[]"),
        }
        async with httpx2.AsyncHTTPTransport(self.tls or _machine_tls()) as transport:
            for address in addresses:
                there, method = url.copy_with(host=address), "POST" if body else "GET"
                asked = httpx2.Request(
                    method, there, headers=sent, content=body, extensions=extensions
                )
                try:
                    response = await transport.handle_async_request(asked)
                except (httpx2.ConnectError, httpx2.ConnectTimeout):
                    if address == addresses[-1]:
                        raise
                    continue
                try:
                    yield response
                finally:
                    await response.aclose()
                break


def read_url(text: str) -> httpx2.URL:
    """An address as it is reached; FetchFailed where it is none that is read here."""
    import httpx2

    shown = one_line(text)[:200]
    try:
        url = httpx2.URL(text.strip())
    except (httpx2.InvalidURL, ValueError) as error:
        raise FetchFailed(f"{shown} is no address ({one_line(str(error))[:200]}).") from None
    if url.scheme not in _PORTS or not url.host:
        raise FetchFailed(f"{shown} is no address that begins with http:// or https://.")
    if url.userinfo:
        raise FetchFailed("an address with a name or password in it is not fetched.")
    return url


async def _read_body(response: httpx2.Response) -> tuple[bytes, bool]:
    """The body, unpacked piece by piece, so that a small one cannot fill the memory."""
    packed = response.headers.get("content-encoding", "identity").strip().lower()
    if packed not in ("identity", "gzip", "deflate"):
        raise FetchFailed(f"its encoding {one_line(packed)[:40]} was not asked for.")
    unpack = None if packed == "identity" else zlib.decompressobj(47)
    taken, received = bytearray(), 0
    async for chunk in response.aiter_raw():
        received += len(chunk)
        taken += unpack.decompress(chunk, MAX_BYTES + 1 - len(taken)) if unpack else chunk
        if max(len(taken), received) > MAX_BYTES:
            return bytes(taken[:MAX_BYTES]), True
    return bytes(taken), unpack is not None and (not unpack.eof or bool(unpack.unused_data))


def _error_text(value: Any) -> str:
    """What a service says went wrong, in whichever of the usual fields it says so."""
    inner = value if isinstance(value, dict) else {}
    found = (inner.get(name) for name in ("readableMessage", "message", "error", "info"))
    said = next((part for part in found if part), "")
    return said if isinstance(said, str) else _error_text(said)


@cache
def _machine_tls() -> SSLContext:
    """For all requests of this process: reading the machine's certificates takes 20 ms."""
    import httpx2

    return httpx2.create_ssl_context()
