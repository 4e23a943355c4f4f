"""The policy for any endpoint that speaks OpenAI's chat-completions protocol.

Owns what one try is and what a lost one may have cost. The wire format is in `streamed_reply`
and `request`, the client in `http`, retries and deadline in `retry`, settings and failures in
`endpoint`, limits of a reply in `size_limits`, what a failed ping means in `diagnosis`. Does not
limit how many calls run at once; `limits.throttle` does, and is told what was refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import orjson

from engines.core.errors import CallFailed
from engines.core.protocols import OnText, Policy, Reservation
from engines.core.text.tokens import prompt_tokens
from engines.core.types import NO_USAGE, Completion, Message, Sampling, Usage
from engines.policies.chat.endpoint import EndpointFailed, EndpointSettings, is_transient
from engines.policies.chat.http import CONNECT_S, MakeTransport, failure_of, is_unsent, new_client
from engines.policies.chat.request import Dialect, adapt_dialect, chat_request
from engines.policies.chat.retry import RetryPolicy, Sleep, retry_call
from engines.policies.chat.size_limits import LISTING_BYTES, read_capped
from engines.policies.chat.streamed_reply import ReplyError, StreamedReply
from engines.policies.limits.congestion import CROWDED, Congestion

if TYPE_CHECKING:
    from openai import AsyncOpenAI

PING_S = 30.0
DRAIN_S = 0.5
"""How long to wait for the end of the body after [DONE], so the connection is reused."""


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
            messages,
            sampling,
            on_text=on_text,
            limit_s=own.timeout_s,
            max_retries=own.max_retries,
            congestion=congestion,
            reservation=reservation,
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
            limit_s = min(self.settings.timeout_s, PING_S)
            retries = min(self.settings.max_retries, 1)
            await self._call(question, once, limit_s=limit_s, max_retries=retries)
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
        *,
        on_text: OnText | None = None,
        limit_s: float,
        max_retries: int,
        congestion: Congestion | None = None,
        reservation: Reservation | None = None,
    ) -> Completion:
        self._open_client()  # before the deadline: the first call pays for the import
        own, seen = self.settings, _TextForwarder(on_text)
        spent = _LostUsage(own, prompt_tokens(messages, sampling.tools))
        call = _CallHooks(self, spent, congestion, reservation)

        async def try_once() -> Completion:
            call.body = chat_request(own.model, messages, sampling, own.max_tokens, self.dialect)
            began = congestion.note_request() if congestion else 0
            try:
                made = await self._try(call.body, seen, spent)
            except EndpointFailed as failed:
                if congestion and call.is_crowded(failed):
                    congestion.note_refusal(began)
                raise
            if congestion:
                congestion.note_answer()
            return replace(made, usage=spent.usage + made.usage)

        policy = RetryPolicy(
            url=own.url,
            limit_s=limit_s,
            max_retries=max_retries,
            seed=sampling.seed or 0,
            about=messages[-1].content if messages else "",
            sleep=self._sleep,
        )
        return await retry_call(try_once, policy, call)

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
        except asyncio.CancelledError:  # mostly the deadline
            spent.add_try(reply)
            raise
        except (openai.APIError, httpx2.HTTPError) as error:
            if not isinstance(error, openai.APIStatusError) and not is_unsent(error):
                spent.add_try(reply)
            raise failure_of(own, error) from None
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
            self._client = new_client(self.settings, self._transport)
        return self._client

    def adapt_to(self, failed: EndpointFailed, body: Mapping[str, Any]) -> bool:
        """Learn from a refused request how this endpoint wants it; whether there is news."""
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


class _CallHooks:
    """What happens between the tries of one call: see `retry.RetryHooks`."""

    def __init__(
        self,
        endpoint: OpenAICompat,
        spent: _LostUsage,
        congestion: Congestion | None,
        reservation: Reservation | None,
    ) -> None:
        self.body: Mapping[str, Any] = {}  # of the last request
        self._endpoint, self._spent = endpoint, spent
        self._congestion, self._reservation = congestion, reservation

    @property
    def usage(self) -> Usage:
        return self._spent.usage

    def is_crowded(self, failed: EndpointFailed) -> bool:
        """Refused for the crowd alone, which is no failure of this call."""
        return bool(self._congestion and failed.transient and failed.status in CROWDED)

    def adapt(self, failed: EndpointFailed) -> bool:
        return self._endpoint.adapt_to(failed, self.body)

    def counts(self, failed: EndpointFailed) -> bool:
        return not self.is_crowded(failed)

    @asynccontextmanager
    async def waiting(self, failed: EndpointFailed) -> AsyncIterator[None]:
        # Who waits for a slot or for time must not hold money that others wait for.
        if self._reservation is not None:
            self._reservation.settle(self._spent.usage)
        if self._congestion and self.is_crowded(failed):
            async with self._congestion.lend_slot():
                yield
        else:
            yield
        if self._reservation is not None:
            await self._reservation.take()


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
