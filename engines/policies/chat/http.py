"""The HTTP client that chat and embedding share, and what its failures mean.

Imports the libraries when a client is built: that costs half a second, and a run with scripted
replies never needs them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from difflib import get_close_matches
from functools import cache
from typing import TYPE_CHECKING, Any

from engines.core.errors import CallFailed, PolicyError
from engines.policies.chat.address import REDIRECTS, RedirectRefused, refuse_redirect
from engines.policies.chat.endpoint import EndpointFailed, EndpointSettings, is_transient
from engines.policies.chat.retry import retry_after_s
from engines.policies.chat.size_limits import shorten_errors

if TYPE_CHECKING:
    from ssl import SSLContext

    import httpx2
    from openai import APIStatusError, AsyncOpenAI

CONNECT_S = 10.0
_TLS = "[SSL"
_PLAIN_PORT = ("WRONG_VERSION_NUMBER", "RECORD_LAYER", "HTTP_REQUEST")
SHOWN_MODELS = 8
SET_KEY = "Export OPENAI_API_KEY, or set api_key in the run file"
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

    @property
    def _place(self) -> str:
        return f"policy {self._name} at {self._settings.url}"

    def check_key(self) -> None:
        """Raises PolicyError: the hosted service is to be asked without a key."""
        if self._settings.base_url is None and self._settings.api_key is None:
            cause = "no key is given, and the hosted service wants one."
            move = f"{SET_KEY}, or base_url for an endpoint of your own."
            raise PolicyError(self._place, cause, move)

    def policy_error(self, failed: CallFailed, known: Sequence[str] = ()) -> PolicyError:
        """What a failed ping means to the person; `known` are the models on offer."""
        settings = self._settings
        kind, _, text = str(failed).partition(": ")
        status = getattr(failed, "status", None)
        text = text.rstrip(".")
        cause = f"{text}."
        move = "Check that base_url leads to an OpenAI-compatible endpoint; it mostly ends in /v1."
        match kind, status:
            case "status", 401 | 403:
                what = "the key was refused" if settings.api_key else "no key is given"
                cause, move = f"{what} ({text}).", f"{SET_KEY}."
            case "status", 404 if known and settings.model not in known:
                cause = f"the model {settings.model!r} is not there ({text})."
                move = f"Choose one of {_models_text(settings.model, known)}."
            case "status", 404:
                move = "Check the model's name and base_url, which mostly ends in /v1."
            case "status", 400 | 422:
                move = "Change the setting it names."
            case "status", _:
                move = "Try again later, or ask its provider."
            case "refused", _ if _TLS in text:
                move = "Correct base_url: a certificate has to fit it, and one of http needs http."
                if any(sign in text for sign in _PLAIN_PORT):
                    move = "The port speaks no TLS: write http:// instead of https:// in base_url."
            case "refused", _ if REDIRECTS in text:
                move = "Nothing was sent there."
            case "refused", _:
                move = "Start the server, or correct base_url."
            case "timeout", _:
                move = "See whether the server is overloaded or still loads the model; try again."
                if settings.is_local and settings.url.startswith("https:"):
                    move = "See whether the port speaks TLS: one that does not needs http://."
        return PolicyError(self._place, cause, move)


def _new_client(own: EndpointSettings, transport: MakeTransport | None) -> AsyncOpenAI:
    """A client with many connections and no retries of its own."""
    import httpx2
    import openai

    # Over before the call is: what never connected must not count as spent.
    connect_s = min(CONNECT_S, 0.9 * own.timeout_s)
    timeout = httpx2.Timeout(own.idle_s or own.timeout_s, connect=connect_s, pool=None)
    client = openai.AsyncOpenAI(
        api_key=own.api_key or "none",  # local servers ignore it, and the client insists on one
        base_url=own.address,
        max_retries=0,
        timeout=timeout,
        http_client=http_client(
            own,
            timeout,
            transport=transport() if transport else None,
            follow_redirects=True,
            event_hooks={"response": [refuse_redirect, shorten_errors]},
        ),
    )
    # The constructor reads OPENAI_ORG_ID, OPENAI_PROJECT_ID and OPENAI_CUSTOM_HEADERS
    # from the environment and offers no way to decline (openai 3.52).
    client.organization = client.project = None
    client._custom_headers = dict(own.headers)
    return client


def http_client(
    own: EndpointSettings, timeout: httpx2.Timeout, **options: Any
) -> httpx2.AsyncClient:
    """Many connections to one endpoint."""
    import httpx2

    trust_env = not own.is_local  # no proxy stands between a machine and itself
    limits = httpx2.Limits(
        max_connections=None, max_keepalive_connections=256, keepalive_expiry=30.0
    )
    verify = True if options.get("transport") else _ssl_context(trust_env)
    return httpx2.AsyncClient(
        limits=limits, timeout=timeout, trust_env=trust_env, verify=verify, **options
    )


@cache
def _ssl_context(trust_env: bool) -> SSLContext:
    """That of all clients of this process: reading the machine's certificates takes 20 ms."""
    import httpx2

    return httpx2.create_ssl_context(trust_env=trust_env)


def failure_of(own: EndpointSettings, error: Exception) -> EndpointFailed:
    """An error of the HTTP library or of openai's as a failed try.

    Raise it `from None`: the error that it stands for may quote the key.
    """
    import httpx2
    import openai

    if isinstance(error, openai.APIStatusError):
        return _openai_failure(own, error)
    if isinstance(error, RedirectRefused):
        return EndpointFailed("refused", own.redact(str(error)), transient=False)
    connecting = isinstance(error, httpx2.HTTPError) and is_unsent(error)
    silent = isinstance(error, openai.APITimeoutError | httpx2.TimeoutException)
    if silent and not connecting:
        return EndpointFailed("timeout", f"{own.url} fell silent", transient=True)
    cause = own.redact(str(error.__cause__ or error))
    if isinstance(error, httpx2.HTTPError) and not connecting:
        text = f"the reply of {own.url} was cut: {own.redact(str(error))}"
        return EndpointFailed("cut", text, transient=True)
    if is_unsent(error):
        text, again = f"no connection to {own.url}: {cause}", _TLS not in cause
        return EndpointFailed("refused", text, transient=again)
    text = f"{own.url} closed the connection without a reply: {cause}"
    return EndpointFailed("cut", text, transient=True)


def _openai_failure(own: EndpointSettings, error: APIStatusError) -> EndpointFailed:
    said, whole = error.body, error.response.text
    message = said.get("message") or said.get("detail") if isinstance(said, dict) else said
    if not isinstance(message, str):
        message = ""
    shown = message or whole or error.message
    failed = status_failure(own, error.response, shown, f"{whole} {error.message}")
    if error.code == "insufficient_quota":  # a 429 that no waiting cures
        failed.transient = False
    return failed


def status_failure(
    own: EndpointSettings, response: httpx2.Response, message: str, body: str
) -> EndpointFailed:
    """An error status; `message` is the part of its `body` that people are shown."""
    return EndpointFailed(
        "status",
        f"{response.status_code} from {own.url}: {own.redact(message)}",
        transient=is_transient(response.status_code),
        status=response.status_code,
        wait_s=retry_after_s(response.headers, datetime.now(UTC)),
        body=body,
    )


def is_unsent(error: Exception) -> bool:
    """Whether there was nowhere to send the request, so that nothing can be charged for it."""
    import httpx2

    cause = error if isinstance(error, httpx2.HTTPError | RedirectRefused) else error.__cause__
    never = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, RedirectRefused)
    return isinstance(cause, never)


def _models_text(model: str, known: Sequence[str]) -> str:
    near = get_close_matches(model, known, n=SHOWN_MODELS, cutoff=0.4)
    first = list(dict.fromkeys([*near, *sorted(known)]))
    more = f" and {len(first) - SHOWN_MODELS} more" if len(first) > SHOWN_MODELS else ""
    return ", ".join(first[:SHOWN_MODELS]) + more
