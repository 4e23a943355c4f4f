"""Fetches from the network, within limits of time, size and of what may be reached.

No cookies, no proxies, no credentials in addresses, nothing that is kept between two requests. A
name is looked up once; each address that it has is judged, and it is such an address that is then
connected to: no name can mean one thing when it is judged and another when it is reached. What was
found is kept in the workspace (`WebCache`): who asks again sees the same.
"""

import asyncio
import json
import os
import socket
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import field
from datetime import UTC, datetime
from functools import cache
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from engines.core.codec import digest
from engines.core.frozen import frozen
from engines.core.text.sanitize import one_line

if TYPE_CHECKING:
    from ssl import SSLContext

    import httpx2


MAX_BYTES = 5_000_000
"""Of one reply, packed as well as unpacked; what is behind it is not read."""
PAGE_S, SERVICE_S, CONNECT_S = 10.0, 25.0, 4.0
MAX_REDIRECTS = 5
_PORTS = {"http": 80, "https": 443}


Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""The addresses of a host; raises OSError."""
_NOT_PUBLIC = (
    *map(ip_network, ("168.63.129.16/32", "192.0.0.0/24", "192.88.99.0/24")),  # Azure's metadata
    *map(ip_network, ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")),  # Teredo, 6to4
)
_GLOBAL, _NAT64 = IPv6Network("2000::/3"), IPv6Network("64:ff9b::/96")


class FetchFailed(Exception):
    """Why nothing from outside can be read, in words for the model; `status` is an answer's."""

    def __init__(self, text: str, status: int | None = None) -> None:
        super().__init__(text)
        self.status = status


async def resolve_name(host: str, port: int) -> Sequence[str]:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Whether it lies in the internet."""
    if address.version == 6 and address in _NAT64:  # how IPv4 is reached where there is none
        return is_public(IPv4Address(int(address) & 0xFFFF_FFFF))
    if address.version == 6:
        usable = address in _GLOBAL  # not ::1, ::ffff:127.0.0.1, local and multicast ones
    else:
        usable = address.is_global and not address.is_multicast
    return usable and not any(address in network for network in _NOT_PUBLIC)


@frozen
class AddressGuard:
    """Lets public addresses pass, and those that a person has listed as `host` or `host:port`."""

    allow_hosts: tuple[str, ...] = ()
    resolve: Resolve = resolve_name

    async def find_addresses(self, host: str, port: int) -> Sequence[str]:
        """The addresses that `host` has now; FetchFailed where one of them may not be reached."""
        try:
            found = await self.resolve(host, port)
        except (OSError, OverflowError, UnicodeError) as error:
            raise FetchFailed(f"the name {host} leads to no address ({error}).") from None
        listed = {entry.lower() for entry in self.allow_hosts}
        for address in found:
            names = (host.lower(), f"[{host}]", address, f"[{address}]")
            is_listed = not listed.isdisjoint((*names, *(f"{name}:{port}" for name in names)))
            if not is_listed and not is_public(ip_address(address)):
                cause = f"{host} is at {address}, which is no public address: nothing was sent."
                raise FetchFailed(f"{cause} A person can list it in allow_hosts.")
        return found


@frozen
class Fetched:
    url: str  # where it was in the end
    status: int
    content_type: str  # as the server says it
    body: bytes
    is_cut: bool = False  # at `MAX_BYTES`, or what is packed in it breaks off


@frozen
class Fetcher:
    """A connection for each request, so that any number of them may run at once."""

    user_agent: str
    guard: AddressGuard = field(default_factory=AddressGuard)
    tls: "SSLContext | None" = None  # None: the machine's certificates

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
            text = one_line(found.body[:300].decode("utf-8", "replace"))
            quoted = json.dumps(text, ensure_ascii=False)
            raise FetchFailed(f"{host} answered {found.status} and says {quoted}.", found.status)
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
        self, url: "httpx2.URL", headers: Mapping[str, str], body: bytes | None
    ) -> "AsyncIterator[httpx2.Response]":
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


def read_url(text: str) -> "httpx2.URL":
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


async def _read_body(response: "httpx2.Response") -> tuple[bytes, bool]:
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


@cache
def _machine_tls() -> "SSLContext":
    """For all requests of this process: reading the machine's certificates takes 20 ms."""
    import httpx2

    return httpx2.create_ssl_context()


class WebCache:
    """A small JSON file for each question; None keeps nothing. Processes may share a folder.

    Failures are not kept, and a damaged file counts as none.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        # Tries of one group ask the same at the same time: only the first one is sent.
        self._asking: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def get(self, kind: str, about: str, look_up: Callable[[], Awaitable[Any]]) -> Any:
        """What is kept about something, else what `look_up` gives: a JSON value.

        What that raises is passed on; OSError where it cannot be written.
        """
        if self._folder is None:
            return await look_up()
        name = digest([kind, about])
        path = self._folder / f"{name}.json"
        async with self._asking.setdefault(name, asyncio.Lock()):
            try:
                return json.loads(path.read_bytes())["found"]
            except (OSError, ValueError, KeyError, TypeError):
                found = await look_up()
            at = datetime.now(UTC).isoformat(timespec="seconds")
            kept = {"kind": kind, "about": about, "at": at, "found": found}
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
            temporary.write_text(json.dumps(kept), "utf-8")
            temporary.replace(path)
            return found
