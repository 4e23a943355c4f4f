"""What an address turns out to be: one that sends its callers elsewhere, a port of another kind."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from engines.policies.chat.endpoint import EndpointSettings

if TYPE_CHECKING:
    import httpx2

PROBE_S = 3.0
"""How long a port may take to show what it speaks."""
REDIRECTS = " redirects to "
_PROBE = b"GET / HTTP/1.1\r\nHost: probe\r\nConnection: close\r\n\r\n"


class RedirectRefused(Exception):
    """An endpoint named another place, to which nothing was sent."""


async def refuse_redirect(response: httpx2.Response) -> None:
    """A hook of the HTTP client: prompts and secret headers go to the address in the run file.

    Followed are redirects that keep method and body (307, 308) on the same host, and those of
    them that only change http to https.
    """
    if not response.has_redirect_location:
        return
    asked = response.request.url
    named = asked.join(response.headers["location"])
    upgrade = (asked.scheme, named.scheme) == ("http", "https")
    same_port = named.scheme == asked.scheme and named.port == asked.port
    keeps_body = response.status_code in (307, 308) or response.request.method == "GET"
    if named.host == asked.host and (same_port or upgrade) and keeps_body:
        return
    shown = f"{named.scheme}://{named.netloc.decode()}"
    base = f"{shown}{named.path.removesuffix('/chat/completions').rstrip('/')}"
    raise RedirectRefused(
        f"{asked.scheme}://{asked.netloc.decode()}{REDIRECTS}{shown}, and prompts and keys do "
        f"not follow; set base_url to {base} if that server is meant"
    )


async def find_other_scheme(own: EndpointSettings) -> str:
    """The other of http and https where the port speaks that one, "" where nothing shows it.

    Nothing of the run is sent, and no certificate is looked at.
    """
    parts = urlsplit(own.address)
    secure = parts.scheme == "https"
    port = parts.port or (443 if secure else 80)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(PROBE_S):
            reader, writer = await asyncio.open_connection(
                parts.hostname, port, ssl=None if secure else context
            )
            try:
                if not secure:
                    return "https"
                writer.write(_PROBE)
                said = await reader.read(1000)
                # A port of TLS may say in plain words that it is one.
                return "http" if said.startswith(b"HTTP/") and b"HTTPS" not in said else ""
            finally:
                writer.close()
    return ""
