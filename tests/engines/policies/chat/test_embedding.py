"""Embeddings: the call, its failures, and what is kept so that nothing is paid for twice."""

from __future__ import annotations

import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from engines.core.errors import CallFailed, PolicyError, RecordError
from engines.core.types import Usage
from engines.policies.chat.embedding import (
    BATCH,
    EmbeddingClient,
    RehearsalEmbeddings,
    VectorCache,
    open_embedder,
)
from engines.policies.chat.endpoint import EndpointSettings
from tests.support.fake_endpoint import Behaviour, Exchange, answers, fake_endpoint, hangs, refuses


def embeds(*, counts: bool = True) -> Behaviour:
    """Answer with a vector that tells a text's length and first letter, last text first."""
    import orjson

    async def behaviour(exchange: Exchange) -> None:
        rows = [
            {"index": at, "embedding": [float(len(text)), float(ord(text[0])), 0.0]}
            for at, text in enumerate(exchange.request.body["input"])
        ]
        usage = {"usage": {"prompt_tokens": 4 * len(rows), "total_tokens": 4 * len(rows)}}
        body = {"object": "list", "data": rows[::-1], **(usage if counts else {})}
        await exchange.plain(200, orjson.dumps(body))

    return behaviour


async def no_wait(seconds: float) -> None:
    """Time does not pass in tests."""


def opened(base_url: str, folder: Path | None = None, **more: Any) -> EmbeddingClient:
    values: dict[str, Any] = {
        "model": "e",
        "base_url": base_url,
        "api_key": "sk-secret-0123456789",
        "timeout_s": 20.0,
        "price_in_usd_per_mtok": 0.5,
    }
    reserve = more.pop("reserve", None)
    return EmbeddingClient(
        EndpointSettings(**{**values, **more}), folder, sleep=no_wait, reserve=reserve
    )


async def test_texts_get_unit_vectors_in_their_order_and_the_call_is_counted() -> None:
    async with fake_endpoint(embeds()) as fake:
        embedder = opened(fake.base_url)
        found = await embedder.embed(["aa", "b", "aa"])
        await embedder.aclose()
    assert fake.requests[0].path == "/v1/embeddings"
    assert fake.bodies == [{"model": "e", "input": ["aa", "b"], "encoding_format": "float"}]
    assert fake.requests[0].headers["authorization"] == "Bearer sk-secret-0123456789"
    assert found.vectors[0] == found.vectors[2] != found.vectors[1]
    assert sum(n * n for n in found.vectors[0]) == pytest.approx(1.0, abs=1e-6)
    assert found.vectors[0][0] / found.vectors[0][1] == pytest.approx(2 / ord("a"))
    assert found.usage == Usage(8, 0, 1, 8 * 0.5 / 1e6)


async def test_an_endpoint_that_counts_nothing_is_estimated() -> None:
    async with fake_endpoint(embeds(counts=False)) as fake:
        embedder = opened(fake.base_url, price_in_usd_per_mtok=None)
        assert (await embedder.embed(["a" * 40])).usage == Usage(10, 0, 1, None)
        await embedder.aclose()


async def test_no_text_is_paid_for_twice_also_by_a_later_process(tmp_path: Path) -> None:
    async with fake_endpoint(embeds()) as fake:
        for texts in (["a", "b"], ["b", "c"], ["a", "c"]):
            embedder = opened(fake.base_url, tmp_path)
            found = await embedder.embed(texts)
            await embedder.aclose()
    assert [body["input"] for body in fake.bodies] == [["a", "b"], ["c"]]
    assert found.usage == Usage()
    (kept,) = tmp_path.glob("*.jsonl")
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert b"sk-secret" not in kept.read_bytes()


async def test_another_model_or_address_has_vectors_of_its_own(tmp_path: Path) -> None:
    async with fake_endpoint(embeds()) as fake, fake_endpoint(embeds()) as other:
        for url, model in ((fake.base_url, "e"), (fake.base_url, "f"), (other.base_url, "e")):
            embedder = opened(url, tmp_path, model=model)
            await embedder.embed(["a"])
            await embedder.aclose()
    assert (len(fake.requests), len(other.requests)) == (2, 1)


async def test_many_texts_go_in_several_requests() -> None:
    texts = [f"text {n}" for n in range(BATCH + 1)]
    async with fake_endpoint(embeds()) as fake:
        embedder = opened(fake.base_url)
        found = await embedder.embed(texts)
        await embedder.aclose()
    assert [len(body["input"]) for body in fake.bodies] == [BATCH, 1]
    assert (len(found.vectors), found.usage.calls) == (BATCH + 1, 2)


async def test_a_passing_failure_is_tried_again() -> None:
    async with fake_endpoint(refuses(500), refuses(429), embeds()) as fake:
        embedder = opened(fake.base_url)
        assert len((await embedder.embed(["a"])).vectors) == 1
        await embedder.aclose()
    assert len(fake.requests) == 3


@pytest.mark.parametrize(
    ("behaviour", "kind", "calls"),
    [
        (refuses(400, "no such input"), "status", 1),
        (refuses(503), "status", 3),
        (answers({"data": []}), "shape", 1),
        (answers({"data": [{"index": 0, "embedding": []}]}), "shape", 1),
        (answers({"data": [{"index": 0, "embedding": [0.0, 0.0]}]}), "shape", 1),
        (answers({"data": [{"index": 0, "embedding": "AAAA"}]}), "shape", 1),
        (answers({"data": None}), "shape", 1),
        (answers(["x"]), "shape", 1),
        (hangs(), "timeout", 1),
    ],
)
async def test_what_fails_for_good_is_a_failed_call(
    behaviour: Behaviour, kind: str, calls: int
) -> None:
    async with fake_endpoint(behaviour) as fake:
        limit = 0.3 if kind == "timeout" else 20.0
        embedder = opened(fake.base_url, max_retries=2, timeout_s=limit)
        with pytest.raises(CallFailed) as failed:
            await embedder.embed(["a"])
        await embedder.aclose()
    assert failed.value.kind == kind
    assert "sk-secret" not in str(failed.value)
    assert len(fake.requests) == calls


async def test_what_came_before_a_failure_is_kept_and_counted(tmp_path: Path) -> None:
    texts = [f"text {n}" for n in range(BATCH + 1)]
    async with fake_endpoint(embeds(), refuses(400), embeds()) as fake:
        embedder = opened(fake.base_url, tmp_path)
        with pytest.raises(CallFailed) as failed:
            await embedder.embed(texts)
        assert failed.value.usage.calls == 1
        await embedder.embed(texts)
        await embedder.aclose()
    assert [len(body["input"]) for body in fake.bodies] == [BATCH, 1, 1]


async def test_each_request_is_reserved_and_settled_with_what_it_cost(tmp_path: Path) -> None:
    told: list[object] = []

    async def reserve(texts: Sequence[str]) -> Callable[[Usage], None]:
        told.append(list(texts))
        return lambda usage: told.append(usage.tokens)

    async with fake_endpoint(embeds(), refuses(400)) as fake:
        embedder = opened(fake.base_url, tmp_path, reserve=reserve)
        await embedder.embed(["a"])
        await embedder.embed(["a"])  # known: nothing to reserve
        with pytest.raises(CallFailed):
            await embedder.embed(["b"])
        await embedder.aclose()
    assert told == [["a"], 4, ["b"], 0]


async def test_a_model_that_does_not_answer_is_told_at_the_start() -> None:
    async with fake_endpoint(refuses(401, "bad key")) as fake:
        embedder = opened(fake.base_url)
        with pytest.raises(PolicyError, match="the key was refused"):
            await embedder.ping()
        await embedder.aclose()
    keyless = EmbeddingClient(EndpointSettings(model="e"), None)
    with pytest.raises(PolicyError, match="no key is given"):
        await keyless.ping()


def test_a_name_of_no_known_form_is_refused() -> None:
    with pytest.raises(PolicyError, match="Write openai:MODEL, or rehearsal"):
        open_embedder("word2vec", EndpointSettings(), None)


async def test_rehearsal_needs_nothing_and_says_the_same_every_time() -> None:
    first, again = [await RehearsalEmbeddings().embed(["carry one", "", "进位"]) for _ in range(2)]
    assert first == again
    assert first.usage == Usage()
    assert all(sum(n * n for n in v) == pytest.approx(1.0, abs=1e-5) for v in first.vectors)


def test_a_cut_or_damaged_line_is_skipped_and_spoils_no_other(tmp_path: Path) -> None:
    from array import array

    book = VectorCache(tmp_path, "m")
    for text in "abc":
        book.add(text, array("f", [1.0]))
    assert book.path is not None
    whole = book.path.read_bytes()
    for cut in range(len(whole)):
        book.path.write_bytes(whole[:cut])
        again = VectorCache(tmp_path, "m")
        found = [text for text in "abc" if again.find(text) is not None]
        assert found == list("abc")[: len(found)]
        if cut % 17 == 0:
            again.add("d", array("f", [1.0]))
            assert VectorCache(tmp_path, "m").find("d") is not None
    flipped = whole.replace(b"CAP", b"CAQ", 1)
    assert flipped != whole
    book.path.write_bytes(flipped)
    again = VectorCache(tmp_path, "m")
    assert sum(again.find(text) is not None for text in "abc") == 2


def test_a_file_that_cannot_be_read_is_a_user_error(tmp_path: Path) -> None:
    book = VectorCache(tmp_path, "m")
    assert book.path is not None
    book.path.mkdir(parents=True)
    with pytest.raises(RecordError, match="cannot be read"):
        VectorCache(tmp_path, "m")
