"""The policy for any endpoint that speaks OpenAI's chat-completions protocol.

Owns what one attempt is, what a lost one may have cost, and which of several addresses takes it:
what begins alike goes to the same one, so that its prompt cache has it, unless that one has clearly
more to do than another (the rollouts of a group, and the turns of one, share their first messages).
Does not limit how many calls run at once; `limits.Throttled` does, and is told what was refused.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from copy import copy
from dataclasses import dataclass, replace

import orjson

from engines.core.codec import JsonMapping, digest
from engines.core.errors import CallFailed, PolicyError
from engines.core.protocols import OnText, Policy, Reservation
from engines.core.text.tokens import prompt_tokens
from engines.core.types import Completion, Message, Sampling, Usage, meaning_of
from engines.policies.chat import exchange, retry
from engines.policies.chat.endpoint import (
    CONNECT_S,
    LISTING_BYTES,
    EndpointClient,
    EndpointFailed,
    EndpointSettings,
    MakeTransport,
    is_transient,
)
from engines.policies.limits import CROWDED, Slots

PING_S = 30.0
DRAIN_S = 0.5
"""How long to wait for the end of the body after [DONE], so the connection is reused."""


class OpenAICompat:
    """One endpoint and one model, over one HTTP client an address for the whole run.

    `transport` makes the transport of those clients (rehearsal in process). Each caller has a view
    of its own; connections, the dialect and what is known of the addresses are those of all.
    """

    def __init__(
        self,
        settings: EndpointSettings,
        *,
        name: str | None = None,
        transport: MakeTransport | None = None,
        sleep: retry.Sleep = asyncio.sleep,
    ) -> None:
        self.settings = settings
        self.name = name or f"openai:{settings.model}"
        self.dialect = exchange.Dialect()
        # What differs between its views: the slots from which it is called, the money reserved
        # for one call, and further fields of its request.
        self.slots: Slots | None = None
        self.reservation: Reservation | None = None
        self.fields: JsonMapping = {}
        self.sleep = sleep
        self.clients = [
            EndpointClient(replace(settings, base_url=url), self.name, transport)
            for url in (settings.base_url, *settings.replicas)
        ]
        self.replicas = Replicas(len(self.clients))

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, on_text: OnText | None = None
    ) -> Completion:
        """Answer once, with retries, within `timeout_s`.

        After a reply that was cut, `on_text` goes on where the shown text ended: with a
        seed that the endpoint honours the pieces still add up to the completion. The usage
        of a reply includes what lost attempts before it may have cost; where the call is
        cancelled, `lost_to` tells what they and the one under way may have.
        """
        call = _Call(self, messages, sampling, on_text)
        return await call.complete(self.settings)

    def with_slots(self, slots: Slots) -> Policy:
        """The same endpoint and connections, as seen from certain slots.

        What the slots hear of being refused is no failure of the call, which waits its turn and
        has its deadline.
        """
        view = copy(self)
        view.slots = slots
        return view

    def with_reservation(self, reservation: Reservation) -> Policy:
        """The same for one call, whose money is reserved for each attempt anew."""
        view = copy(self)
        view.reservation = reservation
        return view

    def with_fields(self, fields: JsonMapping) -> Policy:
        """The same for one call, whose request has further fields."""
        view = copy(self)
        view.fields = fields
        return view

    async def ping(self) -> None:
        """One of several addresses that does not answer is left out, and the notes say so."""
        pings = (self._ping(client) for client in self.clients)
        results = await asyncio.gather(*pings, return_exceptions=True)
        errors = [error for error in results if error is not None]
        for error in errors:
            if len(errors) == len(results) or not isinstance(error, PolicyError):
                raise error
            self.dialect.remarks.add(f"{error.place} is left out until it answers: {error.cause}")

    async def _ping(self, client: EndpointClient) -> None:
        client.check_key()
        own = self.settings
        limits = replace(
            own, timeout_s=min(own.timeout_s, PING_S), max_retries=min(own.max_retries, 1)
        )
        question = (Message("user", "Say OK."),)
        sampling = Sampling(temperature=None, max_tokens=1, seed=1)
        try:
            await _Call(self, question, sampling, client=client).complete(limits)
        except CallFailed as failed:
            if isinstance(failed, EndpointFailed) and "output limit was reached" in failed.body:
                return  # a hosted reasoning model's way to say that one token was too few
            is_missing = getattr(failed, "status", 0) == 404
            listing = await _list_models(client) if is_missing else {}
            raise client.policy_error(failed, tuple(listing)) from None

    async def aclose(self) -> None:
        for client in self.clients:
            await client.aclose()

    async def list_models(self) -> Mapping[str, int | None]:
        """Models by name with their context in tokens; nothing where the endpoint does not say."""
        return await _list_models(self.clients[0])


async def _list_models(client: EndpointClient) -> Mapping[str, int | None]:
    try:
        async with asyncio.timeout(CONNECT_S):
            return parse_listing(await client.fetch("models", limit=LISTING_BYTES))
    except (EndpointFailed, TimeoutError):
        return {}


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


class _Call(retry.RetryHooks):
    """One call over all its attempts: what lost ones may have cost, what happens in between."""

    def __init__(
        self,
        policy: OpenAICompat,
        messages: Sequence[Message],
        sampling: Sampling,
        on_text: OnText | None = None,
        client: EndpointClient | None = None,  # the only address that is asked; None: any
    ) -> None:
        self._policy, self._messages, self._sampling = policy, messages, sampling
        self._client = client
        self._forward = _TextForwarder(on_text)
        self._prompt_tokens = prompt_tokens(messages, sampling.tools)
        self._body: JsonMapping = {}  # of the last request

    async def complete(self, limits: EndpointSettings) -> Completion:
        for client in self._policy.clients:
            client.open()  # before the deadline: the first call pays for the import
        return await retry.retry_call(
            self._ask,
            limits,
            seed=self._sampling.seed or 0,
            about=self._messages[-1].content if self._messages else "",
            sleep=self._policy.sleep,
            hooks=self,
        )

    async def _ask(self) -> Completion:
        """Ask once, where the endpoint has room for it."""
        policy = self._policy
        own, slots = policy.settings, policy.slots
        self._body = exchange.chat_request(
            own.model, self._messages, self._sampling, own.max_tokens, policy.dialect
        )
        began = slots.note_request() if slots else 0
        try:
            if self._client is not None:
                completion = await self._ask_at(self._client)
            else:
                with policy.replicas.take(self._messages) as replica:
                    completion = await self._ask_at(policy.clients[replica.place])
        except EndpointFailed as failed:
            if slots and self._is_crowded(failed):
                slots.note_refusal(began)
            raise
        if slots:
            slots.note_answer()
        return replace(completion, usage=self.usage + completion.usage)

    async def _ask_at(self, client: EndpointClient) -> Completion:
        own, dialect = client.settings, self._policy.dialect
        reply = exchange.StreamedReply()
        self._forward.restart()
        try:
            await self._read_stream(client, reply)
            self._forward(reply.end())
        except asyncio.CancelledError:  # mostly the deadline
            self._add_lost(reply)
            raise
        except EndpointFailed as failed:
            if failed.billable:
                self._add_lost(reply)
            raise
        except exchange.ReplyError as error:
            if reply.has_begun:  # else it is an error status that came late
                self._add_lost(reply)
            raise EndpointFailed(
                "status",
                f"{own.url} reported an error within its reply: {own.redact(str(error))}",
                transient=error.status is None or is_transient(error.status),
                status=error.status,
                body=str(error),
            ) from None
        except CallFailed as failed:  # of the reply's form
            self._add_lost(reply)
            text = f"{own.redact(str(failed).partition(': ')[2])} ({own.url})"
            again = failed.kind != "too long"  # a model that rambles does so again
            raise EndpointFailed(failed.kind, text, transient=again) from None
        completion, paid = reply.completion(own.model), reply.usage
        if meaning_of(completion.finish) == "broken":
            self._add_lost(reply)
            text = f"{own.url} ended its reply with {completion.finish!r}"
            raise EndpointFailed("cut", text, transient=True)
        dialect.note_reply(own.model, completion)
        if paid is None or not paid.completion_tokens:
            dialect.uncounted += 1
            paid = self._estimate_usage(reply)
        return replace(completion, usage=replace(paid, cost_usd=own.cost_usd(paid)))

    async def _read_stream(self, client: EndpointClient, reply: exchange.StreamedReply) -> None:
        body = {**self._body, **client.settings.extra_body, **self._policy.fields}
        try:
            async with client.stream("chat/completions", body) as chunks:
                async for chunk in chunks:
                    self._forward(reply.feed(chunk))
                    if reply.done:
                        break
                with suppress(TimeoutError):
                    async with asyncio.timeout(DRAIN_S):
                        async for _ in chunks:
                            pass
        except EndpointFailed:
            if not reply.is_complete:  # what breaks after the last word costs nothing
                raise

    def _add_lost(self, reply: exchange.StreamedReply) -> None:
        """A request was sent and this much of its reply has come."""
        lost = self._estimate_usage(reply)
        self.usage += replace(lost, cost_usd=self._policy.settings.cost_usd(lost))

    def _estimate_usage(self, reply: exchange.StreamedReply) -> Usage:
        """What an attempt comes to, as the endpoint has counted it, and else estimated."""
        counted = reply.usage.prompt_tokens if reply.usage else 0
        return Usage(counted or self._prompt_tokens, reply.spent_tokens, 1)

    def _is_crowded(self, failed: EndpointFailed) -> bool:
        """Refused for the crowd alone, which is no failure of this call."""
        crowded = failed.transient and failed.status in CROWDED and not self._has_other()
        return bool(self._policy.slots and crowded)

    def _has_other(self) -> bool:
        """Whether an attempt that failed can be made at another address at once."""
        return self._client is None and self._policy.replicas.has_other()

    def adapt(self, failed: EndpointFailed) -> bool:
        if failed.transient and self._has_other():
            return True
        return failed.status in (400, 422) and self._policy.dialect.learn(self._body, failed.body)

    def counts(self, failed: EndpointFailed) -> bool:
        return not self._is_crowded(failed)

    @asynccontextmanager
    async def waiting(self, failed: EndpointFailed) -> AsyncIterator[None]:
        slots, reservation = self._policy.slots, self._policy.reservation
        # Who waits for a slot or for time must not hold money that others wait for.
        if reservation is not None:
            reservation.settle(self.usage)
        if slots and self._is_crowded(failed):
            async with slots.lend():
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


def parse_listing(body: bytes) -> dict[str, int | None]:
    """The models of a reply to `GET /models`; none where it is no list of them."""
    try:
        whole = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    rows = whole.get("data") if isinstance(whole, dict) else None
    named = rows if isinstance(rows, list) else []
    return {str(row["id"]): _window(row) for row in named if isinstance(row, dict) and "id" in row}


def _window(row: JsonMapping) -> int | None:
    inner = row.get("meta")
    places = [row, inner] if isinstance(inner, dict) else [row]
    told = (place.get(name) for name in _WINDOWS for place in places)
    return next((n for n in told if isinstance(n, int) and n > 0), None)


LEFT_OUT_S = 10.0
"""How long one that failed is left out, where it does not ask for longer."""
MORE_BUSY = 1.25
"""Calls under way at one, over the fewest, from which a cached beginning is not worth it."""
HEADROOM = 2
"""So many more are no reason yet."""


@dataclass(slots=True)
class Replica:
    """One endpoint. `back_at` is when it is tried again, by the clock; 0: it is in service."""

    place: int
    under_way: int = 0
    back_at: float = 0.0


class Replicas:
    """All endpoints of one model. Lives in one event loop."""

    def __init__(self, count: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.every = [Replica(place) for place in range(count)]
        self._clock = clock

    @contextmanager
    def take(self, messages: Sequence[Message]) -> Iterator[Replica]:
        """The endpoint for a try of a call; how it ends is what is known of it from then on."""
        chosen = self._choose(messages)
        chosen.under_way += 1
        try:
            yield chosen
        except EndpointFailed as failed:
            if failed.transient:
                chosen.back_at = self._clock() + max(LEFT_OUT_S, failed.wait_s or 0.0)
            raise
        else:
            chosen.back_at = 0.0
        finally:
            chosen.under_way -= 1

    def has_other(self) -> bool:
        """Whether any endpoint is in service, so that a try which failed is made there at once."""
        now = self._clock()
        return len(self.every) > 1 and any(replica.back_at <= now for replica in self.every)

    def _choose(self, messages: Sequence[Message]) -> Replica:
        now = self._clock()
        ready = []
        for replica in self.every:
            # One whose time is up takes one call again, and no second before that one has ended.
            is_tried = replica.back_at > 0 and replica.under_way > 0
            if replica.back_at <= now and not is_tried:
                ready.append(replica)
        if not ready:
            return min(self.every, key=lambda replica: replica.back_at)
        # Rendezvous hashing: where one is left out, only what it had moves.
        beginning = [message.content for message in messages[:2]]
        liked = max(ready, key=lambda replica: digest([replica.place, beginning]))
        idlest = min(ready, key=lambda replica: replica.under_way)
        most = max(idlest.under_way * MORE_BUSY, idlest.under_way + HEADROOM)
        return liked if liked.under_way <= most else idlest
