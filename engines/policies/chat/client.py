"""The policy for any endpoint that speaks OpenAI's chat-completions protocol.

Owns what one attempt is, what a lost one may have cost, and which of several addresses takes it:
what begins alike goes to the same one, so that its prompt cache has it, unless that one has clearly
more to do than another (the rollouts of a group, and the turns of one, share their first messages).
Does not limit how many calls run at once; `limits.Throttled` does, and is told what was refused.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, cast

import orjson

from engines.core.errors import CallFailed, PolicyError
from engines.core.finish import meaning_of
from engines.core.ids import digest
from engines.core.protocols import OnText, Policy, Reservation
from engines.core.text.tokens import prompt_tokens
from engines.core.types import Completion, Message, Sampling, Usage
from engines.policies.chat.endpoint import (
    CONNECT_S,
    LISTING_BYTES,
    EndpointFailed,
    EndpointSettings,
    LazyClient,
    MakeTransport,
    RedirectRefused,
    failure_of,
    is_transient,
    is_unsent,
    read_capped,
)
from engines.policies.chat.request import Dialect, chat_request
from engines.policies.chat.retry import RetryHooks, RetryPolicy, Sleep, retry_call
from engines.policies.chat.streamed_reply import ReplyError, StreamedReply
from engines.policies.limits import CROWDED, Congestion

PING_S = 30.0
DRAIN_S = 0.5
"""How long to wait for the end of the body after [DONE], so the connection is reused."""


class OpenAICompat:
    """One endpoint and one model, over one HTTP client for the whole run.

    `transport` makes the transport of that client (rehearsal in process).
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
        self.name = name or f"openai:{settings.model}"
        self.dialect = Dialect()
        self._sleep = sleep
        own = [settings] + [
            replace(settings, base_url=url, replicas=()) for url in settings.replicas
        ]
        self._clients = [LazyClient(each, self.name, transport) for each in own]
        self._client = self._clients[0]
        self._replicas = Replicas(len(own)) if len(own) > 1 else None  # None: there is one address
        self.congestion: Congestion | None = None
        self.reservation: Reservation | None = None

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, on_text: OnText | None = None
    ) -> Completion:
        """Answer once, with retries, within `timeout_s`.

        After a reply that was cut, `on_text` goes on where the shown text ended: with a
        seed that the endpoint honours the pieces still add up to the completion. The usage
        of a reply includes what lost tries before it may have cost; where the call is
        cancelled, `lost_to` tells what they and the try under way may have.
        """
        for client in self._clients:
            client.open()  # before the deadline: the first call pays for the import
        own, seen = self.settings, _TextForwarder(on_text)
        call = _Call(self, prompt_tokens(messages, sampling.tools))

        async def try_once() -> Completion:
            call.body = chat_request(own.model, messages, sampling, own.max_tokens, self.dialect)
            began = self.congestion.note_request() if self.congestion else 0
            try:
                if self._replicas is None:
                    made = await self._try(call, seen)
                else:
                    with self._replicas.take(messages) as chosen:
                        made = await self._at(chosen.place)._try(call, seen)
            except EndpointFailed as failed:
                if self.congestion and call.is_crowded(failed):
                    self.congestion.note_refusal(began)
                raise
            if self.congestion:
                self.congestion.note_answer()
            return replace(made, usage=call.usage + made.usage)

        policy = RetryPolicy(
            url=own.url,
            limit_s=own.timeout_s,
            max_retries=own.max_retries,
            seed=sampling.seed or 0,
            about=messages[-1].content if messages else "",
            sleep=self._sleep,
        )
        return await retry_call(try_once, policy, call)

    def with_congestion(self, congestion: Congestion) -> Policy:
        """The same endpoint and connections, as seen from certain slots.

        What the congestion control hears of being refused is no failure of the call, which
        waits its turn and has its deadline.
        """
        view = copy(self)
        view.congestion = congestion
        return view

    def with_reservation(self, reservation: Reservation) -> Policy:
        """The same for one call, whose money is reserved for each try anew."""
        view = copy(self)
        view.reservation = reservation
        return view

    def with_fields(self, fields: Mapping[str, Any]) -> Policy:
        """The same for one call, whose request has further fields."""
        view = copy(self)
        view.settings = replace(self.settings, extra_body={**self.settings.extra_body, **fields})
        return view

    async def ping(self) -> None:
        """One of several addresses that does not answer is left out, and the notes say so."""
        if self._replicas is None:
            return await self._ping()
        pings = (self._at(one.place)._ping() for one in self._replicas.every)
        found = await asyncio.gather(*pings, return_exceptions=True)
        errors = [error for error in found if error is not None]
        for error in errors:
            if len(errors) == len(found) or not isinstance(error, PolicyError):
                raise error
            self.dialect.remarks.add(f"{error.place} is left out until it answers: {error.cause}")
        return None

    async def _ping(self) -> None:
        own = self.settings
        self._client.check_key()
        limit_s, retries = min(own.timeout_s, PING_S), min(own.max_retries, 1)
        view = copy(self)
        view.settings = replace(own, timeout_s=limit_s, max_retries=retries)
        view.congestion = view.reservation = None
        question = (Message("user", "Say OK."),)
        try:
            await view.complete(question, Sampling(temperature=None, max_tokens=1, seed=1))
        except CallFailed as failed:
            if isinstance(failed, EndpointFailed) and "output limit was reached" in failed.body:
                return  # a hosted reasoning model's way to say that one token was too few
            listed = await self.list_models() if getattr(failed, "status", 0) == 404 else Listing()
            raise self._client.policy_error(failed, tuple(listed.contexts)) from None

    async def aclose(self) -> None:
        for client in self._clients:
            await client.aclose()

    def has_other(self) -> bool:
        """Whether a try that failed can be made at another address at once."""
        return self._replicas is not None and self._replicas.has_other()

    def _at(self, place: int) -> OpenAICompat:
        """The same at one of its addresses."""
        view = copy(self)
        view._client, view._replicas = self._clients[place], None
        view.settings = self._client_settings(place)
        return view

    def _client_settings(self, place: int) -> EndpointSettings:
        urls = (self.settings.base_url, *self.settings.replicas)
        return replace(self.settings, base_url=urls[place], replicas=())

    async def _try(self, call: _Call, seen: _TextForwarder) -> Completion:
        """Ask once. The error never chains: its cause may quote the key."""
        import httpx2
        import openai

        own = self.settings
        reply = StreamedReply()
        seen.restart()
        try:
            await self._read_stream(call.body, reply, seen)
            seen(reply.end())
        except asyncio.CancelledError:  # mostly the deadline
            call.add_lost_try(reply)
            raise
        except (openai.APIError, httpx2.HTTPError, RedirectRefused) as error:
            if not isinstance(error, openai.APIStatusError) and not is_unsent(error):
                call.add_lost_try(reply)
            raise failure_of(own, error) from None
        except ReplyError as error:
            if reply.has_begun:  # else it is an error status that came late
                call.add_lost_try(reply)
            raise EndpointFailed(
                "status",
                f"{own.url} reported an error within its reply: {own.redact(str(error))}",
                transient=error.status is None or is_transient(error.status),
                status=error.status,
                body=str(error),
            ) from None
        except CallFailed as failed:  # of the reply's form
            call.add_lost_try(reply)
            text = f"{own.redact(str(failed).partition(': ')[2])} ({own.url})"
            again = failed.kind != "too long"  # a model that rambles does so again
            raise EndpointFailed(failed.kind, text, transient=again) from None
        made, paid = reply.completion(own.model), reply.usage
        if meaning_of(made.finish) == "broken":
            call.add_lost_try(reply)
            text = f"{own.url} ended its reply with {made.finish!r}"
            raise EndpointFailed("cut", text, transient=True)
        self.dialect.note_reply(own.model, made)
        if paid is None or not paid.completion_tokens:
            self.dialect.uncounted += 1
            paid = call.estimate_usage(reply)
        return replace(made, usage=replace(paid, cost_usd=own.cost_usd(paid)))

    async def _read_stream(
        self, body: Mapping[str, Any], reply: StreamedReply, seen: _TextForwarder
    ) -> None:
        import httpx2

        # The overloads of `create` do not describe the raw response of a stream.
        create = cast(Any, self._client.open().chat.completions.with_streaming_response.create)
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

    async def list_models(self) -> Listing:
        """What the endpoint offers; nothing where it does not say."""
        import httpx2
        import openai

        try:
            async with asyncio.timeout(CONNECT_S):
                listing = self._client.open().models.with_streaming_response.list()
                async with listing as response:
                    body = await read_capped(response.iter_bytes(), LISTING_BYTES)
        except (openai.APIError, httpx2.HTTPError, RedirectRefused, TimeoutError):
            return Listing()
        return Listing(parse_listing(body))


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


class _Call(RetryHooks):
    """One call over all its tries: what lost ones may have cost, what happens in between."""

    def __init__(self, endpoint: OpenAICompat, asked_tokens: int) -> None:
        self.body: Mapping[str, Any] = {}  # of the last request
        self._endpoint, self._asked_tokens = endpoint, asked_tokens

    def add_lost_try(self, reply: StreamedReply) -> None:
        """A request was sent and this much of its reply has come."""
        lost = self.estimate_usage(reply)
        self.usage += replace(lost, cost_usd=self._endpoint.settings.cost_usd(lost))

    def estimate_usage(self, reply: StreamedReply) -> Usage:
        """What a try comes to, as far as the endpoint has counted it and estimated for the rest."""
        counted = reply.usage.prompt_tokens if reply.usage else 0
        return Usage(counted or self._asked_tokens, reply.spent_tokens, 1)

    def is_crowded(self, failed: EndpointFailed) -> bool:
        """Refused for the crowd alone, which is no failure of this call."""
        crowded = failed.transient and failed.status in CROWDED and not self._endpoint.has_other()
        return bool(self._endpoint.congestion and crowded)

    def adapt(self, failed: EndpointFailed) -> bool:
        if failed.transient and self._endpoint.has_other():
            return True
        return failed.status in (400, 422) and self._endpoint.dialect.learn(self.body, failed.body)

    def counts(self, failed: EndpointFailed) -> bool:
        return not self.is_crowded(failed)

    @asynccontextmanager
    async def waiting(self, failed: EndpointFailed) -> AsyncIterator[None]:
        congestion, reservation = self._endpoint.congestion, self._endpoint.reservation
        # Who waits for a slot or for time must not hold money that others wait for.
        if reservation is not None:
            reservation.settle(self.usage)
        if congestion and self.is_crowded(failed):
            async with congestion.lend_slot():
                yield
        else:
            yield
        if reservation is not None:
            await reservation.take()


_WINDOWS = (
    *("max_model_len", "context_length", "context_window", "max_context_length", "n_ctx"),
    "n_ctx_train",
)
"""vLLM and SGLang; OpenRouter and Together; Groq; Mistral and LM Studio; llama.cpp."""


@dataclass(frozen=True, slots=True)
class Listing:
    """Models by name with their context in tokens, None where it is not told."""

    contexts: Mapping[str, int | None] = field(default_factory=dict)


def parse_listing(body: bytes) -> dict[str, int | None]:
    """The models of a reply to `GET /models`; none where it is no list of them."""
    try:
        whole = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    rows = whole.get("data") if isinstance(whole, dict) else None
    named = rows if isinstance(rows, list) else []
    return {str(row["id"]): _window(row) for row in named if isinstance(row, dict) and "id" in row}


def _window(row: Mapping[str, Any]) -> int | None:
    inner = row.get("meta")
    places = [row, inner] if isinstance(inner, dict) else [row]
    told = (place.get(name) for name in _WINDOWS for place in places)
    return next((n for n in told if isinstance(n, int) and n > 0), None)


FIRST_S, LONGEST_S = 2.0, 60.0
"""How long one that failed is left out: at first, and at most after many failures in a row."""
MORE_BUSY = 1.25
"""Calls under way at one, over the fewest, from which a cached beginning is not worth it."""
HEADROOM = 2
"""So many more are no reason yet."""


@dataclass(slots=True)
class Replica:
    """One endpoint. `back_at` is when it is tried again, by the clock; 0: it is in service."""

    place: int
    under_way: int = 0
    failures: int = 0  # in a row
    back_at: float = 0.0


@dataclass(slots=True)
class Replicas:
    """All endpoints of one model. Lives in one event loop."""

    count: int
    clock: Callable[[], float] = time.monotonic
    every: list[Replica] = field(init=False)

    def __post_init__(self) -> None:
        self.every = [Replica(place) for place in range(self.count)]

    @contextmanager
    def take(self, messages: Sequence[Message]) -> Iterator[Replica]:
        """The endpoint for a try of a call; how it ends is what is known of it from then on."""
        chosen = self._choose(messages)
        chosen.under_way += 1
        try:
            yield chosen
        except EndpointFailed as failed:
            if failed.transient:
                self._leave_out(chosen, failed)
            raise
        else:
            chosen.failures, chosen.back_at = 0, 0.0
        finally:
            chosen.under_way -= 1

    def has_other(self) -> bool:
        """Whether any endpoint is in service, so that a try which failed is made there at once."""
        return any(one.back_at <= self.clock() for one in self.every)

    def _choose(self, messages: Sequence[Message]) -> Replica:
        now = self.clock()
        # One whose time is up takes one call again, and no second before that one has ended.
        back = (one for one in self.every if one.back_at <= now)
        ready = [one for one in back if not (one.failures and one.under_way)]
        if not ready:
            return min(self.every, key=lambda one: one.back_at)
        fewest = min(one.under_way for one in ready)
        # Rendezvous hashing: where one is left out, only what it had moves.
        beginning = [message.content for message in messages[:2]]
        liked = max(ready, key=lambda one: digest([one.place, beginning]))
        if liked.under_way <= max(fewest * MORE_BUSY, fewest + HEADROOM):
            return liked
        return next(one for one in ready if one.under_way == fewest)

    def _leave_out(self, failed: Replica, error: EndpointFailed) -> None:
        wait_s = min(LONGEST_S, FIRST_S * 2.0 ** min(failed.failures, 10))
        failed.failures += 1
        failed.back_at = self.clock() + max(wait_s, error.wait_s or 0.0)
