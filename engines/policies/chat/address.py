"""What may be followed where an address sends its callers elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import httpx2

REDIRECTS = " redirects to "


class RedirectRefused(Exception):
    """An endpoint named another place, to which nothing was sent."""


async def refuse_redirect(response: httpx2.Response) -> None:
    """A hook of the HTTP client: prompts and secret headers go to the address in the run file.

    Followed are redirects that keep method and body (307, 308) on the same host and port, and
    those of them that only change http to https.
    """
    if not response.has_redirect_location:
        return
    asked = response.request.url
    named = asked.join(response.headers["location"])
    safe = named.scheme in (asked.scheme, "https")
    same = (named.host, named.port) == (asked.host, asked.port)  # None: the scheme's own port
    keeps_body = response.status_code in (307, 308) or response.request.method == "GET"
    if same and safe and keeps_body:
        return
    shown = f"{named.scheme}://{named.netloc.decode()}"
    base = f"{shown}{named.path.removesuffix('/chat/completions').rstrip('/')}"
    raise RedirectRefused(
        f"{asked.scheme}://{asked.netloc.decode()}{REDIRECTS}{shown}, and prompts and keys do "
        f"not follow; set base_url to {base} if that server is meant"
    )
