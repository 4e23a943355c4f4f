"""Endpoints that are somewhere else, someone else, or end a reply in their own words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engines.core.errors import CallFailed, PolicyError
from engines.core.types import Message, Sampling
from engines.policies.chat.client import OpenAICompat
from engines.policies.chat.endpoint import EndpointSettings
from engines.policies.chat.exchange import is_other_model
from tests.support.fake_endpoint import (
    DONE,
    Behaviour,
    Exchange,
    delta,
    event,
    fake_endpoint,
    says,
    sends,
)

QUESTION = (Message("user", "What is 2 + 2?"),)
SECRET = {"X-Team": "hush-hush"}

# Of nobody, for localhost: made with openssl for these tests alone.
CERTIFICATE = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgqDQi1FNThdi3U2gc
1Am9tp7+JVftkA1lJtJk/6jxquGhRANCAARu4Y7u4NzCYhTwvG2gzM00L3JrE0Yn
D3W/aWHtbAAcOlG/1N0eWf4cVBR36rHQ/sIQZWUViy8hleBuWpawPPsq
-----END PRIVATE KEY-----
-----BEGIN CERTIFICATE-----
MIIBfzCCASWgAwIBAgIUewF/KcmlruC324LBE4u8aZuHlwAwCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJbG9jYWxob3N0MCAXDTI2MTEyMjIxNDg0NVoYDzIxMjYxMDI5
MjE0ODQ1WjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAARu4Y7u4NzCYhTwvG2gzM00L3JrE0YnD3W/aWHtbAAcOlG/1N0eWf4c
VBR36rHQ/sIQZWUViy8hleBuWpawPPsqo1MwUTAdBgNVHQ4EFgQUqz1uqB4N+i/1
nzl2ui0NZgwkxIEwHwYDVR0jBBgwFoAUqz1uqB4N+i/1nzl2ui0NZgwkxIEwDwYD
VR0TAQH/BAUwAwEB/zAKBggqhkjOPQQDAgNIADBFAiBVq8qeQqpm2Hx/thxAYAlF
drDGLHT0v3S91kh+JwsZxgIhAOXLPGCpJQ9MHVaTV72+ELVY6tS7POC+TQCDZ/LK
z/1M
-----END CERTIFICATE-----
"""


async def no_wait(seconds: float) -> None:
    pass


def a_policy(url: str, **changes: object) -> OpenAICompat:
    settings = EndpointSettings("m", url, headers=SECRET)
    return OpenAICompat(replace(settings, **changes), sleep=no_wait)  # type: ignore[arg-type]


def redirects(to: str, status: int = 307) -> Behaviour:
    async def behaviour(exchange: Exchange) -> None:
        await exchange.plain(status, b"", {"location": to})

    return behaviour


async def failure(policy: OpenAICompat) -> CallFailed:
    with pytest.raises(CallFailed) as caught:
        await policy.complete(QUESTION, Sampling(seed=1))
    await policy.aclose()
    return caught.value


# Redirects


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_nothing_is_sent_to_another_host(status: int) -> None:
    async with fake_endpoint(says("caught")) as other:
        elsewhere = other.base_url.replace("127.0.0.1", "localhost")
        moved = redirects(f"{elsewhere}/chat/completions", status)
        async with fake_endpoint(moved) as fake:
            failed = await failure(a_policy(fake.base_url))
            policy = a_policy(fake.base_url)
            with pytest.raises(PolicyError) as told:
                await policy.ping()
            await policy.aclose()
        assert not other.connections
    assert failed.kind == "refused" and len(fake.requests) == 2  # neither was tried again
    assert failed.usage.calls == 0
    for text in (str(failed), str(told.value)):
        assert fake.base_url.removesuffix("/v1") in text and f"set base_url to {elsewhere}" in text
    assert "hush" not in str(failed)


async def test_a_port_of_the_same_host_is_another_server() -> None:
    async with fake_endpoint(says("caught")) as other, fake_endpoint() as fake:
        fake.script = [redirects(f"{other.base_url}/chat/completions")]
        failed = await failure(a_policy(fake.base_url))
        assert failed.kind == "refused" and not other.connections


async def test_no_redirect_is_followed_on_the_same_server_either() -> None:
    async with fake_endpoint(redirects("/v2/chat/completions", 308), says("4")) as fake:
        failed = await failure(a_policy(fake.base_url))
    assert failed.kind == "refused" and len(fake.requests) == 1
    assert "set base_url to /v2 if" in str(failed)


# Names


@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        ("gpt-4o-mini", "gpt-4o-mini-2024-07-18"),
        ("gpt-4", "gpt-4-0613"),
        ("gpt-3.5-turbo", "gpt-3.5-turbo-0125"),
        ("Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-7B-Instruct"),
        ("Qwen3-8B", "Qwen/Qwen3-8B-FP8"),
        ("claude-3-5-sonnet-latest", "claude-3-5-sonnet-20241022"),
        ("claude-3-5-sonnet@20240620", "claude-3-5-sonnet-20240620"),
        ("gemini-flash-latest", "models/gemini-2.5-flash"),
        ("gemini-2.5-pro", "gemini-2.5-pro-preview-05-20"),
        ("llama3", "llama3:latest"),
        ("deepseek/deepseek-r1:free", "deepseek/deepseek-r1"),
        ("llama-3-8b-instruct", "/models/Llama-3-8B-Instruct.Q4_K_M.gguf"),
        ("m", ""),
        ("12", "13"),
    ],
)
def test_an_alias_is_the_same_model(asked: str, answered: str) -> None:
    assert not is_other_model(asked, answered)


@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        ("gpt-4o", "gpt-4o-mini-2024-07-18"),
        ("gpt-4", "gpt-4.1-2025-04-14"),
        ("gpt-4.1", "gpt-4"),
        ("gpt-4", "gpt-3.5-turbo"),
        ("llama-3-8b", "llama-3-70b"),
        ("llama3:8b", "llama3:70b"),
        ("qwen2.5-7b", "gpt-3.5-turbo"),
    ],
)
def test_another_model_is_another(asked: str, answered: str) -> None:
    assert is_other_model(asked, answered)


async def test_another_model_is_remarked_on_once() -> None:
    async with fake_endpoint(says("4")) as fake:  # which calls itself "served"
        policy = a_policy(fake.base_url)
        for _ in range(3):
            await policy.complete(QUESTION, Sampling(seed=1))
        await policy.aclose()
    assert policy.dialect.notes == ("replies come from the model 'served', not from 'm'",)


# Ends


@pytest.mark.parametrize("finish", ["error", "abort", "insufficient_system_resource"])
async def test_a_reply_that_the_server_broke_off_is_asked_for_again(finish: str) -> None:
    broken = sends(delta(content="4"), delta(finish), DONE)
    async with fake_endpoint(broken, says("42")) as fake:
        policy = a_policy(fake.base_url)
        made = await policy.complete(QUESTION, Sampling(seed=1))
        await policy.aclose()
    assert (made.text, made.usage.calls) == ("42", 2)
    async with fake_endpoint(broken) as fake:
        failed = await failure(a_policy(fake.base_url, max_retries=1))
    assert failed.kind == "cut" and f"ended its reply with '{finish}'" in str(failed)


@pytest.mark.parametrize(
    ("words", "finish"),
    [(("length", "stop"), "length"), (("stop", "length"), "length"), (("odd", "stop"), "stop")],
)
async def test_a_second_word_takes_no_cut_back(words: tuple[str, str], finish: str) -> None:
    pieces = delta(words[0], content="4"), delta(words[1]), DONE
    async with fake_endpoint(sends(*pieces)) as fake:
        policy = a_policy(fake.base_url)
        made = await policy.complete(QUESTION, Sampling(seed=1))
        await policy.aclose()
    assert (made.text, made.finish) == ("4", finish)


async def test_an_unknown_word_is_taken_as_whole_and_remarked_on() -> None:
    async with fake_endpoint(sends(delta(content="4"), delta("because"), DONE)) as fake:
        policy = a_policy(fake.base_url)
        made = await policy.complete(QUESTION, Sampling(seed=1))
        await policy.aclose()
    assert (made.text, made.finish) == ("4", "because")
    assert any("'because', which is unknown here" in note for note in policy.dialect.notes)


@pytest.mark.parametrize(
    "said",
    [
        {"choices": [{"error": {"code": 502, "message": "upstream is down"}, "delta": {}}]},
        {"choices": [], "error": {"code": 502, "message": "upstream is down"}},
        {"object": "error", "code": 502, "message": "upstream is down"},
        {"error": "upstream is down", "error_type": "generation"},
    ],
)
async def test_an_error_in_a_stream_that_began_well_is_a_failed_call(said: object) -> None:
    async with fake_endpoint(sends(delta(content="4"), event(said), DONE)) as fake:
        failed = await failure(a_policy(fake.base_url, max_retries=1))
    assert "upstream is down" in str(failed) and len(fake.requests) == 2


async def test_a_stream_that_says_null_in_words_is_not_over() -> None:
    pieces = delta("null", content="4"), delta("null", content="2"), delta("stop"), DONE
    async with fake_endpoint(sends(*pieces)) as fake:
        policy = a_policy(fake.base_url)
        made = await policy.complete(QUESTION, Sampling(seed=1))
        await policy.aclose()
    assert (made.text, made.finish) == ("42", "stop")
