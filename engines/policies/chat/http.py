"""The HTTP client that chat and embedding share, and what its failures mean.

Imports the libraries when a client is built: that costs half a second, and a run with scripted
replies never needs them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from engines.policies.chat.endpoint import EndpointFailed, EndpointSettings, status_failure
from engines.policies.chat.size_limits import shorten_errors

if TYPE_CHECKING:
    import httpx2
    from openai import AsyncOpenAI

NO_KEY = "none"
"""Sent where no key is set: local servers ignore it, and the client insists on one."""
CONNECT_S = 10.0
MakeTransport = Callable[[], "httpx2.AsyncBaseTransport"]


class LazyClient:
    """The client of one policy, made at first use."""

    def __init__(
        self, settings: EndpointSettings, name: str, transport: MakeTransport | None = None
    ) -> None:
        self._settings, self._name, self._transport = settings, name, transport
        self._client: AsyncOpenAI | None = None
        self._closed = False

    def open(self) -> AsyncOpenAI:
        if self._closed:
            raise RuntimeError(f"{self._name} is used after it was closed")
        if self._client is None:
            self._client = _new_client(self._settings, self._transport)
        return self._client

    async def aclose(self) -> None:
        self._closed = True
        if self._client is not None:
            client, self._client = self._client, None
            await client.close()


def _new_client(own: EndpointSettings, transport: MakeTransport | None) -> AsyncOpenAI:
    """A client with many connections and no retries of its own."""
    import httpx2
    import openai

    timeout = httpx2.Timeout(
        own.idle_s or own.timeout_s,
        # Over before the call is: what never connected must not count as spent.
        connect=min(CONNECT_S, 0.9 * own.timeout_s),
        pool=None,
    )
    client = openai.AsyncOpenAI(
        api_key=own.api_key or NO_KEY,
        base_url=own.address,
        max_retries=0,
        timeout=timeout,
        http_client=httpx2.AsyncClient(
            transport=transport() if transport else None,
            limits=httpx2.Limits(
                max_connections=None, max_keepalive_connections=256, keepalive_expiry=30.0
            ),
            timeout=timeout,
            follow_redirects=True,
            trust_env=not own.is_local,  # no proxy stands between a machine and itself
            event_hooks={"response": [shorten_errors]},
        ),
    )
    # The constructor reads OPENAI_ORG_ID, OPENAI_PROJECT_ID and OPENAI_CUSTOM_HEADERS
    # from the environment and offers no way to decline (openai 3.52).
    client.organization = client.project = None
    client._custom_headers = dict(own.headers)
    return client


def failure_of(own: EndpointSettings, error: Exception) -> EndpointFailed:
    """An error of the HTTP library or of openai's as a failed try.

    Raise it `from None`: the error that it stands for may quote the key.
    """
    import httpx2
    import openai

    if isinstance(error, openai.APIStatusError):
        return status_failure(own, error)
    if isinstance(error, openai.APITimeoutError | httpx2.TimeoutException):
        return EndpointFailed("timeout", f"{own.url} fell silent", transient=True)
    cause = own.redact(str(error.__cause__ or error))
    if isinstance(error, httpx2.HTTPError):
        text = f"the reply of {own.url} was cut: {own.redact(str(error))}"
        return EndpointFailed("cut", text, transient=True)
    if is_unsent(error):
        return EndpointFailed("refused", f"no connection to {own.url}: {cause}", transient=True)
    text = f"{own.url} closed the connection without a reply: {cause}"
    return EndpointFailed("cut", text, transient=True)


def is_unsent(error: Exception) -> bool:
    """Whether there was no connection to send the request on."""
    import httpx2

    cause = error if isinstance(error, httpx2.HTTPError) else error.__cause__
    never = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
    return isinstance(cause, never)
