"""What models and embedding models say, on its way to a cassette and back.

A call that failed, and one that its try's deadline ended, comes back as it ended. What is played
costs nothing.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Protocol

from engines.core.codec import from_dict, to_dict
from engines.core.errors import CallFailed, lost_usage
from engines.core.protocols import Embedder, EmbeddingResult, OnText
from engines.core.types import NO_USAGE, Completion, Message, Sampling, Usage
from engines.core.waiting import expire_deadline, expired_deadline, is_replayed
from engines.policies.chat.embedding import Reserve
from engines.policies.limits import WrappedPolicy
from engines.record.cassette.file import Cassette, Entry, plain_request


def model_request(
    policy: str, messages: Sequence[Message], sampling: Sampling
) -> Mapping[str, Any]:
    return plain_request(policy=policy, messages=messages, sampling=sampling)


def keep_failure(cassette: Cassette, begun: Entry, error: BaseException) -> None:
    """Record how a call failed, where that was the call's own fault or its time was over.

    One that a person or the end of the process cut short will be made again.
    """
    if isinstance(error, CallFailed):
        text = str(error).removeprefix(f"{error.kind}: ")
        failed = plain_request(kind=error.kind, reason=text, usage=error.usage)
    elif isinstance(error, asyncio.CancelledError) and (at := expired_deadline()) is not None:
        failed = plain_request(kind="deadline", at=at, usage=lost_usage(error))
    else:
        return
    cassette.queue(replace(begun, failed=failed))


async def raise_failure(entry: Entry) -> None:
    """Fail as the recorded call did; returns where it did not."""
    if not entry.failed:
        return
    usage = free_usage(from_dict(Usage, entry.failed["usage"]))
    if entry.failed["kind"] == "deadline":
        await expire_deadline(entry.failed["at"], usage)
    raise CallFailed(entry.failed["kind"], entry.failed["reason"], usage)


def free_usage(usage: Usage) -> Usage:
    """What is played costs nothing; a cost that was not known is not known still."""
    return usage if usage.cost_usd is None else replace(usage, cost_usd=0.0)


@dataclass(frozen=True, slots=True)
class RecordingPolicy(WrappedPolicy):
    """A model whose replies go to a cassette; it gives them without secrets, as they are there."""

    cassette: Cassette

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, on_text: OnText | None = None
    ) -> Completion:
        if is_replayed():  # known already, and asked for its company alone
            return await self.inner.complete(messages, sampling, on_text)
        begun = self.cassette.begin("model", model_request(self.name, messages, sampling))
        try:
            reply = await self.inner.complete(messages, sampling, on_text)
        except BaseException as error:
            keep_failure(self.cassette, begun, error)
            raise
        written = await self.cassette.write(replace(begun, reply=to_dict(reply)))
        return from_dict(Completion, written.reply)


@dataclass(frozen=True, slots=True)
class PlayedPolicy:
    """Answers from a cassette; no model is opened."""

    name: str
    cassette: Cassette

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, on_text: OnText | None = None
    ) -> Completion:
        await asyncio.sleep(0)  # let other jobs run, as every real call does
        entry = self.cassette.take("model", model_request(self.name, messages, sampling))
        await raise_failure(entry)
        reply = from_dict(Completion, entry.reply)
        if on_text is not None and reply.text:
            on_text(reply.text)
        return replace(reply, usage=free_usage(reply.usage))

    async def ping(self) -> None:
        """Nothing is asked."""

    async def aclose(self) -> None:
        """Nothing was opened."""


class OpenEmbedder(Embedder, Protocol):
    """An embedding model that somebody has to close."""

    async def aclose(self) -> None: ...


_PAID: ContextVar[list[Usage]] = ContextVar("paid")


class TapedEmbedder:
    """An embedding model on its way to a cassette, or in its place (`open_inner` is not called)."""

    def __init__(
        self,
        name: str,
        cassette: Cassette,
        reserve: Reserve | None,
        open_inner: Callable[[Reserve], OpenEmbedder],
    ) -> None:
        self.name, self._cassette, self._reserve = name, cassette, reserve
        self._inner = None if cassette.plays else open_inner(self._note_paid)

    async def embed(self, texts: Sequence[str]) -> EmbeddingResult:
        asked = plain_request(model=self.name, texts=texts)
        if self._inner is None:
            entry = self._cassette.take("vectors", asked)
            return await self._play(entry, texts)
        begun, paid = self._cassette.begin("vectors", asked), list[Usage]()
        token = _PAID.set(paid)
        try:
            result = await self._inner.embed(texts)
        except BaseException as error:
            keep_failure(self._cassette, begun, error)
            raise
        finally:
            _PAID.reset(token)
        # As numbers: what a secret looks like is a text.
        vectors = [list(vector) for vector in result.vectors]
        reply = plain_request(vectors=vectors, paid=paid)
        await self._cassette.write(replace(begun, reply=reply))
        return result

    async def ping(self) -> None:
        if self._inner is not None:
            await self._inner.ping()

    async def aclose(self) -> None:
        if self._inner is not None:
            await self._inner.aclose()

    async def _play(self, entry: Entry, texts: Sequence[str]) -> EmbeddingResult:
        await raise_failure(entry)
        usage = NO_USAGE
        for one in entry.reply["paid"]:
            paid = free_usage(from_dict(Usage, one))
            if self._reserve is not None:
                (await self._reserve(texts))(paid)
            usage += paid
        vectors = tuple(array("f", numbers) for numbers in entry.reply["vectors"])
        return EmbeddingResult(vectors, usage)

    async def _note_paid(self, texts: Sequence[str]) -> Callable[[Usage], None]:
        settle = await self._reserve(texts) if self._reserve is not None else None
        paid = _PAID.get([])

        def note(usage: Usage) -> None:
            paid.append(usage)
            if settle is not None:
                settle(usage)

        return note
