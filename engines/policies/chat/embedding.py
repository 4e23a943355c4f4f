"""Embeddings of texts: through an OpenAI-compatible endpoint, or a rehearsal's offline.

Every vector is kept in `embeddings/ID.jsonl` by the hash of its text, so that no text is paid
for twice; ID is the hash of model and address. Several processes may add to a file.
"""

from __future__ import annotations

import asyncio
import math
import os
from array import array
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path

import orjson

from engines.core.codec import digest, digest_bytes, fix_surrogates
from engines.core.errors import CallFailed, PolicyError, RecordError
from engines.core.protocols import Embedder, EmbeddingResult
from engines.core.text.similarity import list_features
from engines.core.types import NO_USAGE, Usage
from engines.policies.chat import client, exchange, retry
from engines.policies.chat.endpoint import EndpointClient, EndpointFailed, EndpointSettings

BATCH = 64
"""Texts a request: hosted services take 2,048, small local servers fewer."""
REHEARSAL_DIMENSIONS = 256
MAX_BODY = 16 * 2**20
"""Bytes of one reply: 64 vectors of 4,096 numbers of 20 characters are a third of it."""

Reserve = Callable[[Sequence[str]], Awaitable[Callable[[Usage], None]]]
"""Called before texts are paid for; returns what is to be called with their cost."""


def open_embedder(
    spec: str, endpoint: EndpointSettings, folder: Path | None, reserve: Reserve | None = None
) -> Embedder:
    """Open `openai:MODEL` or `rehearsal`; the model of `endpoint` is replaced by that one.

    Vectors are kept below `folder`; None keeps them in memory only. PolicyError: the name has
    no known form; RecordError: what is kept cannot be read.
    """
    prefix, _, model = spec.partition(":")
    if prefix == "rehearsal":
        return RehearsalEmbeddings()
    if prefix == "openai" and model:
        return EmbeddingClient(replace(endpoint, model=model), folder, reserve=reserve)
    raise PolicyError(
        f"embedding model {spec!r}", "it has no known form.", "Write openai:MODEL, or rehearsal."
    )


class RehearsalEmbeddings(Embedder):
    """Hashed words and trigrams, offline: to try the setting, not to find meanings."""

    name = "rehearsal"

    async def embed(self, texts: Sequence[str]) -> EmbeddingResult:
        return EmbeddingResult(tuple(_hash_vector(text) for text in texts))


class EmbeddingClient:
    """One model behind one endpoint, over one HTTP client."""

    def __init__(
        self,
        settings: EndpointSettings,
        folder: Path | None,
        *,
        reserve: Reserve | None = None,
        sleep: retry.Sleep = asyncio.sleep,
    ) -> None:
        self.settings = settings
        self._reserve = reserve
        self._sleep = sleep
        self.name = f"openai:{settings.model}"
        self._client = EndpointClient(settings, self.name)
        self._cache = VectorCache(folder, f"{self.name} {settings.url}")

    async def embed(self, texts: Sequence[str]) -> EmbeddingResult:
        """See `engines.core.protocols.Embedder`; batches that succeeded before one failed are kept.

        RecordError: a vector cannot be kept.
        """
        wanted = list(dict.fromkeys(fix_surrogates(text) for text in texts))
        missing = [text for text in wanted if self._cache.find(text) is None]
        usage = NO_USAGE
        for start in range(0, len(missing), BATCH):
            batch = missing[start : start + BATCH]
            settle = await self._reserve(batch) if self._reserve else lambda paid: None
            paid = NO_USAGE
            try:
                vectors, paid = await self._call(batch, self.settings)
            except CallFailed as failed:
                paid = failed.usage
                failed.usage = usage + paid
                raise
            finally:
                settle(paid)
            usage += paid
            for text, vector in zip(batch, vectors, strict=True):
                self._cache.add(text, vector)
        found = tuple(self._cache.find(fix_surrogates(text)) for text in texts)
        whole = tuple(vector for vector in found if vector is not None)
        if len({len(vector) for vector in whole}) > 1:
            raise CallFailed("shape", f"{self.name} gives vectors of different lengths", usage)
        return EmbeddingResult(whole, usage)

    async def ping(self) -> None:
        """Return when the model answers; PolicyError where it does not."""
        self._client.check_key()
        limits = replace(self.settings, timeout_s=min(self.settings.timeout_s, client.PING_S))
        try:
            await self._call(["ping"], limits)
        except CallFailed as failed:
            raise self._client.policy_error(failed) from None

    async def aclose(self) -> None:
        await self._client.aclose()

    async def _call(
        self, texts: list[str], limits: EndpointSettings
    ) -> tuple[list[array[float]], Usage]:
        self._client.open()  # before the deadline: the first call pays for the import
        return await retry.retry_call(
            lambda: self._try(texts), limits, about=texts[0], sleep=self._sleep
        )

    async def _try(self, texts: list[str]) -> tuple[list[array[float]], Usage]:
        own = self.settings
        body = {"model": own.model, "input": texts, "encoding_format": "float"}
        raw = await self._client.fetch("embeddings", {**body, **own.extra_body}, limit=MAX_BODY + 1)
        if len(raw) > MAX_BODY:
            text = f"the reply of {own.url} is longer than {MAX_BODY >> 20} MB"
            raise EndpointFailed("too long", text, transient=False)
        try:
            return self._parse_vectors(raw, texts)
        except (ValueError, KeyError, TypeError, IndexError, OverflowError):
            text = f"the reply of {own.url} holds no {len(texts)} vectors"
            raise EndpointFailed("shape", text, transient=False) from None

    def _parse_vectors(self, raw: bytes, texts: list[str]) -> tuple[list[array[float]], Usage]:
        data = orjson.loads(raw)
        rows = data["data"]
        placed = {
            row.get("index", at): _unit_vector(row["embedding"]) for at, row in enumerate(rows)
        }
        vectors = [placed[at] for at in range(len(texts))]
        usage = data.get("usage") or {}
        counted = usage.get("prompt_tokens", usage.get("total_tokens"))
        if not exchange.is_token_count(counted):
            counted = sum(len(text.encode()) for text in texts) // 4
        price = self.settings.price_in_usd_per_mtok
        cost_usd = None if price is None else counted * price / 1e6
        return vectors, Usage(counted, 0, 1, cost_usd)


class VectorCache:
    """Vectors by text, in a file that is only added to. Used from one event loop."""

    def __init__(self, folder: Path | None, about: str) -> None:
        """Raises RecordError: what is kept cannot be read."""
        self.path = folder / f"{digest(about, 8)}.jsonl" if folder else None
        self._known: dict[str, array[float]] = {}
        self._load()

    def find(self, text: str) -> array[float] | None:
        return self._known.get(_text_key(text))

    def add(self, text: str, vector: array[float]) -> None:
        """Raises RecordError: it cannot be written."""
        name = _text_key(text)
        self._known[name] = vector
        if self.path is None:
            return
        packed = b64encode(vector.tobytes()).decode()
        # The line break in front ends a line that was cut, so that it spoils no other.
        line = b"\n" + orjson.dumps([name, packed, _checksum(name, packed)])
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            with os.fdopen(descriptor, "ab") as file:
                file.write(line)
        except OSError as error:
            raise RecordError(
                str(self.path),
                f"cannot be written ({error.strerror}).",
                "Make room or mend its permissions, then give the same command again.",
            ) from error

    def _load(self) -> None:
        try:
            raw = self.path.read_bytes() if self.path else b""
        except FileNotFoundError:
            return
        except OSError as error:
            raise RecordError(
                str(self.path),
                f"cannot be read ({error.strerror}).",
                "Mend its permissions, or take it away: its texts are paid for anew then.",
            ) from error
        for line in raw.splitlines():
            try:
                name, packed, check = orjson.loads(line)
                if check == _checksum(name, packed):
                    self._known[name] = array("f", b64decode(packed))
            except (ValueError, TypeError):  # cut, or not ours
                continue


def _text_key(text: str) -> str:
    return digest_bytes(text.encode(), 16)


def _checksum(name: str, packed: str) -> str:
    return digest_bytes(f"{name} {packed}".encode(), 4)


def _unit_vector(numbers: Sequence[float]) -> array[float]:
    """Of length 1, in single precision as it is kept; ValueError where it has no direction."""
    length = math.sqrt(math.fsum(n * n for n in numbers))
    if not length or not math.isfinite(length):
        raise ValueError("a vector has no direction")
    return array("f", (n / length for n in numbers))


def _hash_vector(text: str) -> array[float]:
    counts = [0.0] * REHEARSAL_DIMENSIONS
    for feature in list_features(text):
        gram, _, _ = feature.partition("\0")
        place = int(digest_bytes(gram.encode("utf-8", "replace"), 4), 16)
        counts[place % REHEARSAL_DIMENSIONS] += 1.0
    if not any(counts):
        counts[0] = 1.0
    return _unit_vector(counts)
