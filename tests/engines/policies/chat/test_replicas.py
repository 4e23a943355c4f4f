"""Several endpoints behind one model: caches hit, load is shared, one that fails is left out."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

import pytest

from engines.core.errors import CallFailed, PolicyError
from engines.core.types import Message, Sampling, Usage
from engines.policies.chat.client import LEFT_OUT_S, OpenAICompat, Replicas
from engines.policies.chat.endpoint import EndpointFailed, EndpointSettings
from tests.support.fake_endpoint import (
    FakeEndpoint,
    delta,
    event,
    fake_endpoint,
    hangs,
    refuses,
    says,
    sends,
)


def asks(*words: str) -> tuple[Message, ...]:
    return tuple(Message("user", word) for word in words)


def client(*endpoints: FakeEndpoint, **more: object) -> OpenAICompat:
    first, *rest = (endpoint.base_url for endpoint in endpoints)
    settings = EndpointSettings("m", base_url=first, api_key="k", replicas=tuple(rest))
    return OpenAICompat(replace(settings, **more))


def busy(replicas: Replicas, *counts: int) -> None:
    for one, count in zip(replicas.every, counts, strict=True):
        one.under_way = count


def test_what_begins_alike_goes_to_the_same_endpoint_and_the_rest_is_spread() -> None:
    replicas = Replicas(4)
    taken = Counter[int]()
    for number in range(200):
        places = set()
        for turn in range(3):  # later turns of a try begin as its first one does
            with replicas.take(asks("rules", f"problem {number}", *"abc"[:turn])) as chosen:
                places.add(chosen.place)
        assert len(places) == 1
        taken[places.pop()] += 1
    assert all(30 <= taken[place] <= 70 for place in range(4)), taken


def test_a_clearly_busier_endpoint_gives_way_to_the_least_busy_one() -> None:
    replicas = Replicas(3)
    with replicas.take(asks("a")) as liked:
        pass
    others = [one.place for one in replicas.every if one is not liked]
    counts = [8, 8, 8]
    counts[liked.place] = 10
    busy(replicas, *counts)
    with replicas.take(asks("a")) as chosen:
        assert chosen is liked  # a quarter more is worth what its cache has
    counts[liked.place], counts[others[1]] = 11, 7
    busy(replicas, *counts)
    with replicas.take(asks("a")) as chosen:
        assert chosen.place == others[1]


def fail(replicas: Replicas, wait_s: float | None = None) -> int:
    with pytest.raises(EndpointFailed), replicas.take(asks("a")) as chosen:
        raise EndpointFailed("refused", "gone", transient=True, wait_s=wait_s)
    return chosen.place


def test_one_that_fails_is_left_out_and_then_tried_again_by_one_call() -> None:
    now = 0.0
    replicas = Replicas(2, lambda: now)
    bad = fail(replicas)
    for _ in range(5):
        with replicas.take(asks("a")) as chosen:
            assert chosen.place != bad
    now += LEFT_OUT_S
    with replicas.take(asks("a")) as trying, replicas.take(asks("a")) as beside:
        assert (trying.place, beside.place) == (bad, 1 - bad)
    assert replicas.every[bad].back_at == 0.0
    assert fail(replicas, wait_s=60.0) == bad
    assert replicas.every[bad].back_at == now + 60.0


def test_where_all_fail_the_one_that_is_back_first_is_asked() -> None:
    replicas = Replicas(2, lambda: 0.0)
    first = fail(replicas, wait_s=9.0)
    assert replicas.has_other()
    assert fail(replicas, wait_s=5.0) == 1 - first
    assert not replicas.has_other()
    with replicas.take(asks("a")) as chosen:
        assert chosen.place == 1 - first


async def test_a_call_goes_on_at_another_endpoint_at_once_and_that_is_no_retry() -> None:
    async def never(seconds: float) -> None:
        raise AssertionError(f"it waited for {seconds} s")

    async with fake_endpoint(refuses(503)) as down, fake_endpoint(says("5")) as up:
        for first, second in ((down, up), (up, down)):
            asked = client(first, second, max_retries=0)
            asked._sleep = never
            replies = [await asked.complete(asks(f"q{n}"), Sampling()) for n in range(6)]
            await asked.aclose()
            assert {reply.text for reply in replies} == {"5"}
        assert len(down.requests) <= 2


async def test_where_every_endpoint_fails_the_call_does_and_says_why() -> None:
    async with fake_endpoint(refuses(500)) as one, fake_endpoint(refuses(500)) as other:
        asked = client(one, other, max_retries=0)
        with pytest.raises(CallFailed, match="500"):
            await asked.complete(asks("q"), Sampling())
        assert (len(one.requests), len(other.requests)) == (1, 1)
        await asked.aclose()


async def test_a_mistake_of_ours_is_not_tried_at_every_endpoint() -> None:
    async with fake_endpoint(refuses(400)) as one, fake_endpoint(refuses(400)) as other:
        asked = client(one, other)
        with pytest.raises(CallFailed, match="400"):
            await asked.complete(asks("q"), Sampling())
        assert len(one.requests) + len(other.requests) == 1
        await asked.aclose()


async def test_load_is_shared_while_replies_take_their_time() -> None:
    async with fake_endpoint(hangs()) as one, fake_endpoint(hangs()) as other:
        asked = client(one, other, timeout_s=60.0)
        calls = [asyncio.ensure_future(asked.complete(asks("same"), Sampling())) for _ in range(20)]
        while len(one.requests) + len(other.requests) < 20:
            await asyncio.sleep(0)
        assert abs(len(one.requests) - len(other.requests)) <= 4
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await asked.aclose()


async def test_at_the_start_one_that_is_down_is_left_out_and_all_down_is_refused() -> None:
    async with fake_endpoint(says("OK")) as up, fake_endpoint(refuses(401)) as down:
        asked = client(up, down)
        await asked.ping()
        said = f"{down.base_url} is left out until it answers: the key was refused"
        assert any(said in note for note in asked.dialect.notes), asked.dialect.notes
        await asked.aclose()
        asked = client(down, down)
        with pytest.raises(PolicyError, match="the key was refused"):
            await asked.ping()
        await asked.aclose()


@pytest.mark.parametrize(
    "reported",
    [
        {"prompt_tokens_details": {"cached_tokens": 60}},
        {"prompt_cache_hit_tokens": 60, "prompt_cache_miss_tokens": 40},
        {"cache_read_input_tokens": 60},
    ],
)
async def test_prompt_tokens_from_a_cache_are_counted_and_priced(
    reported: dict[str, object],
) -> None:
    counted = {"prompt_tokens": 100, "completion_tokens": 10, **reported}
    last = event({"choices": [], "usage": counted})
    reply = sends(delta(content="5"), delta("stop"), last, b"data: [DONE]\n\n")
    async with fake_endpoint(reply) as endpoint:
        prices = {"price_in_usd_per_mtok": 10.0, "price_out_usd_per_mtok": 20.0}
        for cached_price, cost in ((None, 1200.0), (1.0, 660.0)):  # 40·10 + 60·1 + 10·20
            asked = client(endpoint, **prices, price_cached_usd_per_mtok=cached_price)
            made = await asked.complete(asks("q"), Sampling())
            assert made.usage == Usage(100, 10, 1, pytest.approx(cost / 1e6), 60)
            await asked.aclose()


@pytest.mark.parametrize("wrong", [None, -1, True, "60", 1e3, [60], 2**60])
async def test_a_count_of_the_cache_that_cannot_be_one_is_none(wrong: object) -> None:
    details = {"prompt_tokens_details": {"cached_tokens": wrong}}
    counted = {"prompt_tokens": 100, "completion_tokens": 10, **details}
    last = event({"choices": [], "usage": counted})
    reply = sends(delta(content="5"), delta("stop"), last, b"data: [DONE]\n\n")
    async with fake_endpoint(reply) as endpoint:
        asked = client(endpoint)
        made = await asked.complete(asks("q"), Sampling())
        assert (made.usage.prompt_tokens, made.usage.cached_tokens) == (100, 0)
        await asked.aclose()
