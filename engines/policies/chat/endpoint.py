"""An endpoint: where a model answers, on what terms, over which client, and how a call can fail.

Owns the one loop of attempts that every client of an endpoint uses: when a call is tried again, how
long it waits (the jitter follows from a seed, so that two runs with one seed wait alike), and its
deadline. How an attempt is made is the client's.

Owns the HTTP client that chat and embedding share, and how much of what an endpoint sends is taken
at all: those limits are no settings, since nothing that a model writes on purpose comes near them,
and memory stays flat whatever a server sends. Imports the HTTP libraries when a client is built:
that costs half a second, and a run with scripted replies never needs them.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from difflib import get_close_matches
from email.utils import parsedate_to_datetime
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from engines.core.codec import seed_for
from engines.core.errors import CallFailed, PolicyError
from engines.core.types import NO_USAGE, Usage
from engines.core.waiting import Deadline, deadline
from engines.secrets.mask import MASK, Mask

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from ssl import SSLContext

    import httpx2
    from openai import APIStatusError, AsyncOpenAI


HOSTED = "https://api.openai.com/v1"
EXCERPT = 500
"""Characters of what an endpoint said that are worth showing."""


@dataclass(frozen=True, slots=True)
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
    extra_body: Mapping[str, Any] = field(default_factory=dict)
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
        status: int | None = None,
        wait_s: float | None = None,
        body: str = "",
    ) -> None:
        super().__init__(kind, text)
        self.text = text
        self.transient = transient
        self.status = status
        self.wait_s = wait_s  # what the endpoint asked for; None: it named none
        self.body = body  # all it said


def is_transient(status: int) -> bool:
    """True for a status that another try may cure."""
    return status in (408, 409, 429) or status >= 500


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
        f"{asked.scheme}://{asked.netloc.decode()} redirects to {shown}, and prompts and keys do "
        f"not follow; set base_url to {base} if that server is meant"
    )


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


CONNECT_S = 10.0
_TLS = "[SSL"
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
        move = (
            "Check base_url: a server must run there, which speaks OpenAI's protocol (it mostly "
            "ends in /v1) and TLS only where it begins with https."
        )
        match kind, status:
            case "status", 401 | 403:
                what = "the key was refused" if settings.api_key else "no key is given"
                cause, move = f"{what} ({text}).", f"{SET_KEY}."
            case "status", 404 if known and settings.model not in known:
                cause = f"the model {settings.model!r} is not there ({text})."
                move = f"Choose one of {_models_text(settings.model, known)}."
            case "status", 400 | 422:
                move = "Change the setting it names."
            case "status", code if code != 404:
                move = "Try again later, or ask its provider."
            case "timeout", _:
                move = "See whether the server is overloaded or still loads the model; try again."
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
    return ", ".join(first[:SHOWN_MODELS]) + ", …" * (len(first) > SHOWN_MODELS)


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


Sleep = Callable[[float], Awaitable[None]]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often and how long one call is tried. `seed` and `about` fix the jitter of its waits."""

    url: str  # as it may be shown
    limit_s: float  # of the whole call, waits included
    max_retries: int
    seed: int = 0
    about: str = ""
    sleep: Sleep = asyncio.sleep


class RetryHooks:
    """What a client does between the tries of one call: here nothing, and lost tries are free."""

    usage: Usage = NO_USAGE
    """What the lost tries may have cost so far."""

    def adapt(self, failed: EndpointFailed) -> bool:
        """Whether the next request is another one, so that it is made at once and is no retry."""
        return False

    def counts(self, failed: EndpointFailed) -> bool:
        """Whether the failure uses up one of the retries."""
        return True

    def waiting(self, failed: EndpointFailed) -> AbstractAsyncContextManager[None]:
        """Entered for the wait before the next try."""
        return nullcontext()


async def retry_call(
    try_once: Callable[[], Awaitable[T]], policy: RetryPolicy, hooks: RetryHooks | None = None
) -> T:
    """Try until one try succeeds, no other makes sense, or the time is up.

    CallFailed has the cause of the last try; its usage is that of the lost ones. A cancelled
    call carries the same usage.
    """
    hooks = hooks or RetryHooks()
    causes: list[str] = []

    async def try_again_and_again(until: Deadline) -> T:
        faults = 0
        while True:
            try:
                return await try_once()
            except EndpointFailed as failed:
                if hooks.adapt(failed):
                    continue
                causes.append(failed.text)
                faults += hooks.counts(failed)
                if not failed.transient or faults > policy.max_retries:
                    failed.usage = hooks.usage
                    if len(causes) > 1:
                        failed.args = (f"{failed.args[0]} (after {len(causes)} tries)",)
                    raise failed from None
                lost = failed
            drawn = (len(causes) - 1, policy.seed, policy.about)
            wait_s = backoff_s(*drawn) if lost.wait_s is None else asked_wait_s(lost.wait_s, *drawn)
            ends = until.ends_at
            if ends is not None and asyncio.get_running_loop().time() + wait_s >= ends:
                # Endpoints may ask for any number, which would fill a page.
                wait = f"{wait_s:.1f} s" if wait_s < 1e6 else f"{wait_s:.3g} s"
                text = f"the next try would be {wait} from now, after the deadline of "
                text += f"{policy.limit_s:g} s; {lost.text}"
                raise CallFailed("timeout", text, hooks.usage)
            async with hooks.waiting(lost):
                await policy.sleep(wait_s)

    try:
        async with deadline(policy.limit_s) as until:
            return await try_again_and_again(until)
    except asyncio.CancelledError:
        raise asyncio.CancelledError(hooks.usage) from None
    except TimeoutError:
        if not until.expired:
            raise
        last = f" ({causes[-1]})" if causes else ""
        text = f"no whole reply from {policy.url} within {policy.limit_s:g} s{last}"
        raise CallFailed("timeout", text, hooks.usage) from None


FIRST_S = 0.5
LONGEST_S = 30.0


def backoff_s(attempt: int, seed: int, *parts: str) -> float:
    """Exponential from half a second, times a jitter in [0.5, 1) that `seed` and `parts` fix.

    `attempt` counts the tries that have failed before this wait, from 0.
    """
    whole = min(LONGEST_S, FIRST_S * 2.0 ** min(attempt, 16))
    jitter = seed_for(seed, "backoff", attempt, *parts) / 2**31
    return whole * (0.5 + jitter / 2)


def asked_wait_s(asked_s: float, attempt: int, seed: int, *parts: str) -> float:
    """What an endpoint asked for and up to a quarter more, so that not all come back at once.

    A wait of nothing grows as well, if from less: it would be tried again at once for ever.
    """
    jitter = seed_for(seed, "retry-after", attempt, *parts) / 2**31
    wait_s = asked_s * (1 + jitter / 4)
    return max(wait_s, backoff_s(attempt, seed, *parts) / 16)
