"""An endpoint: where a model answers, on what terms, over which client, and how a call can fail.

Owns the HTTP client that chat, embedding and vLLM share, and how much of what an endpoint sends is
taken at all: those limits are no settings, since nothing that a model writes on purpose comes near
them, and memory stays flat whatever a server sends. Imports the HTTP library when a client is
built: a run with scripted replies never needs it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import field
from datetime import UTC, datetime
from difflib import get_close_matches
from email.utils import parsedate_to_datetime
from functools import cache
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import orjson

from engines.core.codec import JsonMapping, dumps
from engines.core.errors import CallFailed, PolicyError
from engines.core.frozen import frozen
from engines.core.types import Usage
from engines.secrets.mask import MASK, Mask

if TYPE_CHECKING:
    from ssl import SSLContext

    import httpx2


HOSTED = "https://api.openai.com/v1"
EXCERPT = 500
"""Characters of what an endpoint said that are worth showing."""


@frozen
class EndpointSettings:
    """Where a model answers, and on what terms.

    Prices are US dollars for a million tokens; without both of them the cost of a call
    is unknown. `max_tokens` holds where a call sets no limit of its own.
    """

    model: str = ""
    base_url: str | None = None  # None: the hosted service
    api_key: str | None = field(default=None, repr=False)  # None: the endpoint wants none
    timeout_s: float = 120.0  # of a call, its retries included
    idle_s: float | None = None  # longest silence before a retry; None: only timeout_s
    max_retries: int = 4  # of a call that failed for a passing reason
    max_tokens: int | None = 4096
    extra_body: JsonMapping = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    price_in_usd_per_mtok: float | None = None
    price_out_usd_per_mtok: float | None = None
    price_cached_usd_per_mtok: float | None = None  # of prompt tokens in a cache; None: as others
    replicas: tuple[str, ...] = ()  # further addresses of the same model

    @property
    def address(self) -> str:
        return self.base_url or HOSTED

    @property
    def url(self) -> str:
        """The address as it may be shown: without user, password and query."""
        parts = urlsplit(self.address)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}".rstrip("/")

    @property
    def is_local(self) -> bool:
        return urlsplit(self.address).hostname in ("localhost", "127.0.0.1", "::1")

    def redact(self, text: str) -> str:
        """Take out secrets, since some endpoints quote the key they refuse, and shorten."""
        text = text.encode("utf-8", "replace").decode()  # no journal takes lone surrogates
        parts = urlsplit(self.address)
        user, _, password = parts.netloc.rpartition("@")[0].partition(":")
        given = (self.api_key, *self.headers.values(), password or user, parts.query)
        text = Mask(secret for secret in given if secret)(text)
        for secret in given:
            if secret and len(secret) > 3:  # in what an endpoint says of a key, also short ones
                text = text.replace(secret, MASK)
        return text[:EXCERPT]

    def cost_usd(self, usage: Usage) -> float | None:
        price_in, price_out = self.price_in_usd_per_mtok, self.price_out_usd_per_mtok
        if price_in is None or price_out is None:
            return None
        cached = usage.cached_tokens if self.price_cached_usd_per_mtok is not None else 0
        paid = (usage.prompt_tokens - cached) * price_in + usage.completion_tokens * price_out
        return (paid + cached * (self.price_cached_usd_per_mtok or 0.0)) / 1e6


class EndpointFailed(CallFailed):
    """A failed call with what decides whether another try makes sense."""

    def __init__(
        self,
        kind: str,
        text: str,
        *,
        transient: bool,
        billable: bool = False,
        status: int | None = None,
        wait_s: float | None = None,
        body: str = "",
    ) -> None:
        super().__init__(kind, text)
        self.text = text
        self.transient = transient
        self.billable = billable  # a request was taken and worked on, so that it may be charged
        self.status = status
        self.wait_s = wait_s  # what the endpoint asked for; None: it named none
        self.body = body  # all it said


def is_transient(status: int) -> bool:
    """True for a status that another try may cure."""
    return status in (408, 409, 429) or status >= 500


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


CONNECT_S = 10.0
_TLS = "[SSL"
SHOWN_MODELS = 8
SET_KEY = "Export OPENAI_API_KEY, or set api_key in the run file"
MakeTransport = Callable[[], "httpx2.AsyncBaseTransport"]


class EndpointClient:
    """The HTTP client of one address, made at first use."""

    def __init__(
        self, settings: EndpointSettings, name: str, transport: MakeTransport | None = None
    ) -> None:
        self.settings = settings
        self._name, self._transport = name, transport
        self._client: httpx2.AsyncClient | None = None

    def open(self) -> httpx2.AsyncClient:
        """Many connections, no retries, no redirects."""
        if self._client is None:
            import httpx2

            own = self.settings
            headers = {"content-type": "application/json"}
            if own.api_key:
                headers["authorization"] = f"Bearer {own.api_key}"
            trust_env = not own.is_local  # no proxy stands between a machine and itself
            self._client = httpx2.AsyncClient(
                headers={**headers, **own.headers},
                timeout=httpx2.Timeout(
                    own.idle_s or own.timeout_s,
                    # Over before the call is: what never connected must not count as spent.
                    connect=min(CONNECT_S, 0.9 * own.timeout_s),
                    pool=None,
                ),
                limits=httpx2.Limits(
                    max_connections=None, max_keepalive_connections=256, keepalive_expiry=30.0
                ),
                trust_env=trust_env,
                transport=self._transport() if self._transport else None,
                verify=True if self._transport else _ssl_context(trust_env),
            )
        return self._client

    async def aclose(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    @asynccontextmanager
    async def stream(
        self, path: str, body: JsonMapping | None = None
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Send a request, one without a body as GET, and give the bytes of the reply as they come.

        Raises EndpointFailed, also for what breaks inside the block. It never chains: the error
        that it stands for may quote the key.
        """
        import httpx2

        own, client = self.settings, self.open()
        url = f"{own.address.rstrip('/')}/{path}"
        method, content = ("GET", None) if body is None else ("POST", dumps(body))
        try:
            async with client.stream(method, url, content=content) as response:
                if not response.is_success:
                    raise await _status_failure(own, response)
                yield response.aiter_bytes()
        except httpx2.HTTPError as error:
            raise _connection_failure(own, error) from None

    async def fetch(
        self, path: str, body: JsonMapping | None = None, *, limit: int = LINE_BYTES
    ) -> bytes:
        """Return the first `limit` bytes of a reply. Raises EndpointFailed."""
        async with self.stream(path, body) as chunks:
            return await read_capped(chunks, limit)

    @property
    def place(self) -> str:
        return f"policy {self._name} at {self.settings.url}"

    def check_key(self) -> None:
        """Raises PolicyError: the hosted service is to be asked without a key."""
        if self.settings.base_url is None and self.settings.api_key is None:
            raise PolicyError(
                self.place,
                "no key is given, and the hosted service wants one.",
                f"{SET_KEY}, or base_url for an endpoint of your own.",
            )

    def policy_error(self, failed: CallFailed, known: Sequence[str] = ()) -> PolicyError:
        """What a failed ping means to the person; `known` are the models on offer."""
        settings = self.settings
        kind, _, text = str(failed).partition(": ")
        status = getattr(failed, "status", None)
        text = text.rstrip(".")
        cause = f"{text}."
        move = (
            "Check base_url: a server must run there, which speaks OpenAI's protocol (it mostly "
            "ends in /v1) and TLS only where it begins with https."
        )
        match kind, status:
            case "status", 401 | 403:
                what = "the key was refused" if settings.api_key else "no key is given"
                cause, move = f"{what} ({text}).", f"{SET_KEY}."
            case "status", 404 if known and settings.model not in known:
                near = get_close_matches(settings.model, known, n=SHOWN_MODELS, cutoff=0.4)
                models = list(dict.fromkeys([*near, *sorted(known)]))[:SHOWN_MODELS]
                cause = f"the model {settings.model!r} is not there ({text})."
                move = f"Choose one of {', '.join(models)}."
            case "status", 400 | 422:
                move = "Change the setting it names."
            case "status", code if code != 404:
                move = "Try again later, or ask its provider."
            case "timeout", _:
                move = "See whether the server is overloaded or still loads the model; try again."
        return PolicyError(self.place, cause, move)


@cache
def _ssl_context(trust_env: bool) -> SSLContext:
    """That of all clients of this process: reading the machine's certificates takes 20 ms."""
    import httpx2

    return httpx2.create_ssl_context(trust_env=trust_env)


def _connection_failure(own: EndpointSettings, error: Exception) -> EndpointFailed:
    """An error of the HTTP library as a failed try."""
    import httpx2

    cause = own.redact(str(error))
    if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout):
        text = f"no connection to {own.url}: {cause}"
        return EndpointFailed("refused", text, transient=_TLS not in cause)
    if isinstance(error, httpx2.TimeoutException):
        kind, text = "timeout", f"{own.url} fell silent"
    else:
        kind, text = "cut", f"the reply of {own.url} was cut: {cause}"
    return EndpointFailed(kind, text, transient=True, billable=True)


async def _status_failure(own: EndpointSettings, response: httpx2.Response) -> EndpointFailed:
    """An error status with the beginning of its page, or a redirect.

    No redirect is followed: prompts and keys go to the address in the run file and nowhere else.
    """
    import httpx2

    if response.has_redirect_location:
        location = own.redact(response.headers["location"])
        text = (
            f"{own.url} redirects to {location}, and prompts and keys do not follow; set base_url "
            f"to {location.removesuffix('/chat/completions')} if that server is meant"
        )
        return EndpointFailed("refused", text, transient=False)
    page = b""
    # What breaks or drips here changes nothing: the status is what counts.
    with suppress(httpx2.HTTPError, TimeoutError):
        async with asyncio.timeout(ERROR_S):
            page = await read_capped(response.aiter_bytes(), ERROR_BYTES)
    text = page.decode("utf-8", "replace")
    status = response.status_code
    message = _error_message(text) or response.reason_phrase
    return EndpointFailed(
        "status",
        f"{status} from {own.url}: {own.redact(message)}",
        # No waiting cures a spent quota, whose status is 429.
        transient=is_transient(status) and "insufficient_quota" not in text,
        status=status,
        wait_s=retry_after_s(response.headers, datetime.now(UTC)),
        body=text,
    )


def _error_message(page: str) -> str:
    """The part of an error page that people are shown: all of it, where it has no message."""
    try:
        error = orjson.loads(page)
    except orjson.JSONDecodeError:
        return page
    if isinstance(error, dict):
        error = error.get("error") or error
    if isinstance(error, dict):
        error = error.get("message") or error.get("detail")
    return error if isinstance(error, str) else page


def retry_after_s(headers: Mapping[str, str], now: datetime) -> float | None:
    """Return the wait an endpoint asks for, as seconds or a date; None where it names none."""
    value = headers.get("retry-after", "")
    try:
        wait_s = float(value)
    except ValueError:
        try:
            wait_s = parsedate_to_datetime(value).timestamp() - now.timestamp()
        except (ValueError, TypeError, OverflowError):  # years and zones that no calendar has
            return None
    return max(0.0, wait_s) if math.isfinite(wait_s) else None
