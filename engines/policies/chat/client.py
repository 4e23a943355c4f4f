"""The policy for any endpoint that speaks OpenAI's chat-completions protocol.

Owns the connection, the deadline and the retries of each call. The wire format is in
`sse`, the request in `chat_request`, the waits in `backoff`, the settings and failures
in `endpoint`, the limits of a reply in `caps`, what a failed ping means in `diagnosis`.
Does not limit how many calls run at once; `throttle` does, and is told what was refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import orjson

from engines.core.errors import CallFailed
from engines.core.protocols import OnText, Policy, Reservation
from engines.core.text.tokens import prompt_tokens
from engines.core.types import NO_USAGE, Completion, Message, Sampling, Usage
from engines.core.waiting.deadline import deadline
from engines.policies.chat.endpoint import (
    EndpointFailed,
    EndpointSettings,
    is_transient,
    status_failure,
)
from engines.policies.chat.request import Dialect, adapt_dialect, chat_request
from engines.policies.chat.retry import asked_wait_s, backoff_s
from engines.policies.chat.size_limits import LISTING_BYTES, read_capped, shorten_errors
from engines.policies.chat.streamed_reply import ReplyError, StreamedReply
from engines.policies.limits.congestion import CROWDED, Congestion

if TYPE_CHECKING:
    import httpx2
    from openai import AsyncOpenAI

NO_KEY = "none"
"""Sent where no key is set: local servers ignore it, and the client insists on one."""
CONNECT_S = 10.0
PING_S = 30.0
DRAIN_S = 0.5
"""How long to wait for the end of the body after [DONE], so the connection is reused."""

Sleep = Callable[[float], Awaitable[None]]
MakeTransport = Callable[[], "httpx2.AsyncBaseTransport"]


class OpenAICompat:
    """One endpoint and one model, over one HTTP client for the whole run.

    Args:
        settings: of the endpoint.
        name: of the policy; "openai:MODEL" unless given.
        transport: makes the transport of the HTTP client (rehearsal in process).
        sleep: waits between tries; replaced in tests, so that none waits.
    """

    def __init__(
        self,
        settings: EndpointSettings,
        *,
        name: str | None = None,
        transport: MakeTransport | None = None,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self.settings = settings
        self._name = name or f"openai:{settings.model}"
        self._transport = transport
        self._sleep = sleep
        self._client: AsyncOpenAI | None = None
        self._closed = False
        self.dialect = Dialect()

    @property
    def name(self) -> str:
        return self._name

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, on_text: OnText | None = None
    ) -> Completion:
        """Answer once, with retries, within `timeout_s`.

        After a reply that was cut, `on_text` goes on where the shown text ended: with a
        seed that the endpoint honours the pieces still add up to the completion. The usage
        of a reply includes what lost tries before it may have cost; where the call is
        cancelled, `lost_to` tells what they and the try under way may have.
        """
        return await self.ask(messages, sampling, on_text)

    async def ask(
        self,
        messages: Sequence[Message],
        sampling: Sampling,
        on_text: OnText | None = None,
        congestion: Congestion | None = None,
        reservation: Reservation | None = None,
    ) -> Completion:
        """As `complete`, for a caller that limits how many calls run or what they cost.

        Args:
            messages: as in `complete`.
            sampling: as in `complete`.
            on_text: as in `complete`.
            congestion: hears what becomes of each try. What it hears of being refused is no
                failure of the call, which waits its turn and has its deadline.
            reservation: taken for the first try; settled and taken again for each further one.
        """
        own = self.settings
        return await self._call(
            messages, sampling, on_text, own.timeout_s, own.max_retries, congestion, reservation
        )

    def with_congestion(self, congestion: Congestion) -> Policy:
        """The same endpoint and connections, as seen from certain slots."""
        return _EndpointView(self, congestion)

    def with_reservation(self, reservation: Reservation) -> Policy:
        """The same for one call, whose money is reserved."""
        return _EndpointView(self, None, reservation)

    async def ping(self) -> None:
        from engines.policies.chat.diagnosis import missing_key_error, policy_error

        if self.settings.base_url is None and self.settings.api_key is None:
            raise missing_key_error(self.name, self.settings)
        question = (Message("user", "Say OK."),)
        once = Sampling(temperature=None, max_tokens=1, seed=1)
        try:
            limit = min(self.settings.timeout_s, PING_S)
            await self._call(question, once, None, limit, min(self.settings.max_retries, 1))
        except CallFailed as failed:
            if isinstance(failed, EndpointFailed) and "output limit was reached" in failed.body:
                return  # a hosted reasoning model's way to say that one token was too few
            known = await self._list_models() if getattr(failed, "status", 0) == 404 else ()
            raise policy_error(self.name, self.settings, failed, known) from None

    async def aclose(self) -> None:
        self._closed = True
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _call(
        self,
        messages: Sequence[Message],
        sampling: Sampling,
        on_text: OnText | None,
        limit_s: float,
        max_retries: int,
        congestion: Congestion | None = None,
        reservation: Reservation | None = None,
    ) -> Completion:
        self._open_client()  # before the deadline: the first call pays for the import
        seen = _TextForwarder(on_text)
        last = ""
        tries = faults = 0
        asked = messages[-1].content if messages else ""
        spent = _LostUsage(self.settings, prompt_tokens(messages, sampling.tools))
        try:
            async with deadline(limit_s) as until:
                while True:
                    body = chat_request(
                        self.settings.model,
                        messages,
                        sampling,
                        self.settings.max_tokens,
                        self.dialect,
                    )
                    began = congestion.note_request() if congestion else 0
                    try:
                        made = await self._try(body, seen, spent)
                    except EndpointFailed as failed:
                        crowded = failed.transient and failed.status in CROWDED
                        if congestion and crowded:
                            congestion.note_refusal(began)
                        if self._adapt_dialect(failed, body):
                            continue
                        tries += 1
                        faults += not (congestion and crowded)
                        if not failed.transient or faults > max_retries:
                            raise _add_try_count(failed, tries, spent.usage) from None
                        last, wait_s = failed.text, failed.wait_s
                    else:
                        if congestion:
                            congestion.note_answer()
                        return replace(made, usage=spent.usage + made.usage)
                    drawn = (tries - 1, sampling.seed or 0, asked)
                    wait_s = backoff_s(*drawn) if wait_s is None else asked_wait_s(wait_s, *drawn)
                    ends = until.ends_at
                    if ends is not None and asyncio.get_running_loop().time() + wait_s >= ends:
                        raise CallFailed(
                            "timeout",
                            f"the next try would be {_seconds_text(wait_s)} from now, after the "
                            f"deadline of {limit_s:g} s; {last}",
                            spent.usage,
                        )
                    # Who waits for a slot or for time must not hold money that others wait for.
                    if reservation is not None:
                        reservation.settle(spent.usage)
                    if congestion and crowded:
                        async with congestion.lend_slot():
                            await self._sleep(wait_s)
                    else:
                        await self._sleep(wait_s)
                    if reservation is not None:
                        await reservation.take()
        except asyncio.CancelledError:
            raise asyncio.CancelledError(spent.usage) from None
        except TimeoutError:
            if not until.expired:
                raise
            said = f" ({last})" if last else ""
            raise CallFailed(
                "timeout",
                f"no whole reply from {self.settings.url} within {limit_s:g} s{said}",
                spent.usage,
            ) from None

    async def _try(
        self, body: Mapping[str, Any], seen: _TextForwarder, spent: _LostUsage
    ) -> Completion:
        """Ask once. The error never chains: its cause may quote the key."""
        import httpx2
        import openai

        own = self.settings
        reply = StreamedReply()
        seen.restart()
        try:
            await self._read_stream(body, reply, seen)
            seen(reply.end())
        except openai.APIStatusError as error:
            raise status_failure(own, error) from None
        except asyncio.CancelledError:  # mostly the deadline
            spent.add_try(reply)
            raise
        except (openai.APITimeoutError, httpx2.TimeoutException) as error:
            if not _is_unsent(error):
                spent.add_try(reply)
            raise EndpointFailed("timeout", f"{own.url} fell silent", transient=True) from None
        except openai.APIConnectionError as error:
            cause = own.redact(str(error.__cause__ or error))
            if _is_unsent(error):
                text = f"no connection to {own.url}: {cause}"
                raise EndpointFailed("refused", text, transient=True) from None
            spent.add_try(reply)
            text = f"{own.url} closed the connection without a reply: {cause}"
            raise EndpointFailed("cut", text, transient=True) from None
        except httpx2.HTTPError as error:
            spent.add_try(reply)
            text = f"the reply of {own.url} was cut: {own.redact(str(error))}"
            raise EndpointFailed("cut", text, transient=True) from None
        except ReplyError as error:
            if reply.has_begun:  # else it is an error status that came late
                spent.add_try(reply)
            raise EndpointFailed(
                "status",
                f"{own.url} reported an error within its reply: {own.redact(str(error))}",
                transient=error.status is None or is_transient(error.status),
                status=error.status,
                body=str(error),
            ) from None
        except CallFailed as failed:  # of the reply's form
            spent.add_try(reply)
            text = f"{own.redact(str(failed).partition(': ')[2])} ({own.url})"
            again = failed.kind != "too long"  # a model that rambles does so again
            raise EndpointFailed(failed.kind, text, transient=again) from None
        made, paid = reply.completion(own.model), reply.usage
        if paid is None or not paid.tokens:
            paid = spent.estimate_usage(reply)
        return replace(made, usage=replace(paid, cost_usd=own.cost_usd(paid)))

    async def _read_stream(
        self, body: Mapping[str, Any], reply: StreamedReply, seen: _TextForwarder
    ) -> None:
        import httpx2

        # The overloads of `create` do not describe the raw response of a stream.
        create = cast(Any, self._open_client().chat.completions.with_streaming_response.create)
        # All of it goes as further fields, which the library sends as they are: walking the
        # types of every message cost it a quarter of a call's CPU (openai 3.52).
        whole = {**body, **self.settings.extra_body}
        asked = create(model=self.settings.model, messages=(), stream=True, extra_body=whole)
        try:
            async with asked as response:
                chunks = response.iter_bytes()
                async for chunk in chunks:
                    seen(reply.feed(chunk))
                    if reply.done:
                        break
                with suppress(TimeoutError):
                    async with asyncio.timeout(DRAIN_S):
                        async for _ in chunks:
                            pass
        except httpx2.HTTPError:
            if not reply.is_complete:  # what breaks after the last word costs nothing
                raise

    def _open_client(self) -> AsyncOpenAI:
        """The client, made at first use: importing it costs half a second."""
        if self._closed:
            raise RuntimeError(f"{self.name} is used after it was closed")
        if self._client is None:
            self._client = self._new_client()
        return self._client

    def _new_client(self) -> AsyncOpenAI:
        import httpx2
        import openai

        own = self.settings
        limits = httpx2.Limits(
            max_connections=None, max_keepalive_connections=256, keepalive_expiry=30.0
        )
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
                transport=self._transport() if self._transport else None,
                limits=limits,
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

    def _adapt_dialect(self, failed: EndpointFailed, body: Mapping[str, Any]) -> bool:
        if failed.status not in (400, 422):
            return False
        learned = adapt_dialect(self.dialect, body, failed.body)
        self.dialect = learned or self.dialect
        return learned is not None

    async def _list_models(self) -> tuple[str, ...]:
        """What the endpoint offers; empty where it does not say."""
        import httpx2
        import openai

        try:
            async with asyncio.timeout(CONNECT_S):
                listing = self._open_client().models.with_streaming_response.list()
                async with listing as response:
                    body = orjson.loads(await read_capped(response.iter_bytes(), LISTING_BYTES))
        except (openai.APIError, httpx2.HTTPError, orjson.JSONDecodeError, TimeoutError):
            return ()
        rows = body.get("data") if isinstance(body, dict) else None
        named = rows if isinstance(rows, list) else []
        return tuple(str(row["id"]) for row in named if isinstance(row, dict) and "id" in row)


class _TextForwarder:
    """Passes text on once: a repeated reply is silent up to where the last one ended."""

    def __init__(self, on_text: OnText | None) -> None:
        self._on_text = on_text
        self._shown = 0
        self._here = 0

    def restart(self) -> None:
        self._here = 0

    def __call__(self, text: str) -> None:
        if self._on_text is None or not text:
            return
        new = text[max(0, self._shown - self._here) :]
        self._here += len(text)
        if new:
            self._shown = self._here
            self._on_text(new)


class _LostUsage:
    """What the lost tries of one call may have cost."""

    def __init__(self, settings: EndpointSettings, asked_tokens: int) -> None:
        self._settings = settings
        self._asked_tokens = asked_tokens
        self.usage = NO_USAGE

    def add_try(self, reply: StreamedReply) -> None:
        """A request was sent and this much of its reply has come."""
        lost = self.estimate_usage(reply)
        self.usage += replace(lost, cost_usd=self._settings.cost_usd(lost))

    def estimate_usage(self, reply: StreamedReply) -> Usage:
        """What a try comes to, as far as the endpoint has counted it and estimated for the rest."""
        counted = reply.usage.prompt_tokens if reply.usage else 0
        return Usage(counted or self._asked_tokens, reply.spent_tokens, 1)


@dataclass(frozen=True, slots=True)
class _EndpointView:
    """An endpoint whose refusals narrow the slots it is asked from, and whose tries cost."""

    endpoint: OpenAICompat
    congestion: Congestion | None
    reservation: Reservation | None = None

    @property
    def name(self) -> str:
        return self.endpoint.name

    def with_congestion(self, congestion: Congestion) -> Policy:
        return replace(self, congestion=congestion)

    def with_reservation(self, reservation: Reservation) -> Policy:
        return replace(self, reservation=reservation)

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, on_text: OnText | None = None
    ) -> Completion:
        return await self.endpoint.ask(
            messages, sampling, on_text, self.congestion, self.reservation
        )

    async def ping(self) -> None:
        await self.endpoint.ping()

    async def aclose(self) -> None:
        await self.endpoint.aclose()


def _is_unsent(error: Exception) -> bool:
    """Whether there was no connection to send the request on."""
    import httpx2

    cause = error if isinstance(error, httpx2.HTTPError) else error.__cause__
    never = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
    return isinstance(cause, never)


def _seconds_text(wait_s: float) -> str:
    """Endpoints may ask for any number, which would fill a page."""
    return f"{wait_s:.1f} s" if wait_s < 1e6 else f"{wait_s:.3g} s"


def _add_try_count(failed: EndpointFailed, tries: int, spent: Usage) -> EndpointFailed:
    failed.usage = spent
    if tries > 1:
        failed.args = (f"{failed.args[0]} (after {tries} tries)",)
    return failed
