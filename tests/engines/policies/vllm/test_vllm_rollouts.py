"""Rollouts from a vLLM server, over real HTTP against a fake one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from engines.core.errors import CallFailed, PolicyError
from engines.core.types import Completion, Message, Sampling
from engines.policies.chat.endpoint import EndpointSettings
from engines.policies.vllm import RolloutServer, VLLMRollouts, parse_reply
from tests.support.fake_endpoint import drops, fake_endpoint, hangs, refuses
from tests.support.vllm_server import BASE, END, FakeVLLM, fake_vllm, logprob

ASK = (Message("user", "Count."),)
AT_ONE = Sampling(1.0, max_tokens=8, seed=3)


def encode(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[int]:
    return [1, *(len(message.content) for message in messages), 7]


def rollouts(url: str, *, told: list[str] | None = None, **changes: Any) -> VLLMRollouts:
    waits: list[float] = []

    async def sleep(wait_s: float) -> None:
        waits.append(wait_s)

    server = {"window": 64, "temperature": 1.0} | {
        name: changes.pop(name) for name in ("window", "temperature") if name in changes
    }
    endpoint = EndpointSettings(base_url=url, **{"timeout_s": 20.0, "max_retries": 2} | changes)
    return VLLMRollouts(
        RolloutServer(endpoint, encode, **server),
        name="hf:tiny",
        tell=([] if told is None else told).append,
        sleep=sleep,
    )


async def said(policy: VLLMRollouts, sampling: Sampling = AT_ONE) -> Completion:
    try:
        return await policy.complete(ASK, sampling)
    finally:
        await policy.aclose()


def an_adapter(folder: Path) -> Path:
    folder.mkdir()
    (folder / "adapter_config.json").write_text("{}")
    return folder


async def test_a_reply_carries_the_prompt_ids_the_sampled_ids_and_their_log_probabilities() -> None:
    heard: list[str] = []
    async with fake_vllm() as server:
        policy = rollouts(server.url)
        reply = await policy.complete(ASK, AT_ONE, heard.append)
        await policy.aclose()
    assert reply.prompt_ids == (1, 6, 7)
    assert len(reply.token_ids) == 4 and reply.token_ids[-1] == END
    assert reply.logprobs == tuple(logprob(token, 1.0) for token in reply.token_ids)
    assert (reply.finish, reply.model) == ("stop", BASE)
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (3, 4)
    assert heard == [reply.text] and reply.text
    assert reply.as_message().token_ids == reply.token_ids


async def test_nothing_of_sampling_is_left_to_the_servers_defaults() -> None:
    async with fake_vllm() as server:
        await said(rollouts(server.url), Sampling(1.0, stop=("\n",), max_tokens=8, seed=3))
        (body,) = server.asked("completions")
    assert body["prompt"] == [1, 6, 7]
    assert (body["temperature"], body["seed"], body["stop"]) == (1.0, 3, ["\n"])
    uncut = {"top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
    assert uncut.items() <= body.items()
    assert body["return_token_ids"] is True and body["logprobs"] == 1


async def test_a_reply_is_never_longer_than_the_window_has_room_for() -> None:
    async with fake_vllm() as server:
        cut = await said(rollouts(server.url, window=5))
        with pytest.raises(CallFailed, match="fills the window"):
            await said(rollouts(server.url, window=3))
    assert (len(cut.token_ids), cut.finish) == (2, "length")


async def test_a_server_that_gives_no_ids_is_refused_before_practice() -> None:
    async with fake_vllm(gives="text") as server:
        policy = rollouts(server.url)
        with pytest.raises(PolicyError, match=r"token_ids.* vLLM 0\.10\.2"):
            await policy.ping()
        with pytest.raises(CallFailed, match="token_ids"):
            await said(policy)
        assert len(server.asked("completions")) == 2  # such a reply is not asked for again


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"logprobs": None}, "logprobs: "),
        ({"token_ids": [10, 11]}, "2 token ids with 3 scores"),
        ({"logprobs": {"token_logprobs": [None, -1.0, -1.0]}}, "token_logprobs.0: "),
        ({"prompt_token_ids": [1, 2]}, "other ids than it was sent"),
        ({"text": None}, "text: "),
        ({"token_ids": [], "logprobs": {"token_logprobs": []}}, "token_ids: "),
    ],
)
def test_a_reply_that_training_cannot_use_says_what_is_wrong(
    change: dict[str, Any], cause: str
) -> None:
    whole = {
        "text": "one",
        "token_ids": [10, 11, 2],
        "prompt_token_ids": [5],
        "logprobs": {"token_logprobs": [-1.0, -1.0, -1.0]},
    }

    def parse(choice: dict[str, Any]) -> list[int]:
        body = json.dumps({"choices": [choice]}).encode()
        return parse_reply(body, [5]).choices[0].token_ids

    assert parse(whole) == [10, 11, 2]
    with pytest.raises(CallFailed, match=cause):
        parse(whole | change)


async def test_log_probabilities_of_another_temperature_are_left_out_not_passed_off() -> None:
    cool = Sampling(0.7, max_tokens=8, seed=3)
    async with fake_vllm(processed=False) as raw, fake_vllm(processed=True) as processed:
        assert (await said(rollouts(raw.url), cool)).logprobs == ()
        policy = rollouts(processed.url, temperature=0.7)
        await policy.ping()
        reply = await said(policy, cool)
    assert reply.logprobs == tuple(logprob(token, 0.7) for token in reply.token_ids)


async def test_a_cut_distribution_has_no_log_probabilities() -> None:
    async with fake_vllm(processed=True) as server:
        assert (await said(rollouts(server.url), Sampling(1.0, top_p=0.9))).logprobs == ()


async def test_practice_at_another_temperature_than_1_is_refused_by_a_raw_server() -> None:
    async with fake_vllm(processed=False) as raw, fake_vllm(processed=True) as processed:
        policy = rollouts(raw.url, temperature=0.7)
        with pytest.raises(PolicyError, match="--logprobs-mode processed_logprobs"):
            await policy.ping()
        await policy.aclose()
        for url, temperature in ((raw.url, 1.0), (processed.url, 0.7)):
            policy = rollouts(url, temperature=temperature)
            await policy.ping()
            await policy.aclose()


async def test_requests_name_the_newest_adapter_and_the_one_before_is_unloaded(
    tmp_path: Path,
) -> None:
    first, second = an_adapter(tmp_path / "a"), an_adapter(tmp_path / "b")
    async with fake_vllm() as server:
        policy = rollouts(server.url)
        await policy.complete(ASK, AT_ONE)
        await policy.serve_adapter("studio-1", first)
        before = await policy.complete(ASK, AT_ONE)
        await policy.serve_adapter("studio-2", second)
        after = await said(policy)
        assert server.adapters == {"studio-2": str(second)}
        assert [b["model"] for b in server.asked("completions")] == [BASE, "studio-1", "studio-2"]
    assert before.token_ids != after.token_ids


async def test_no_name_is_ever_loaded_again_since_the_old_prefix_cache_would_answer(
    tmp_path: Path,
) -> None:
    async with fake_vllm() as server:
        policy = rollouts(server.url)
        for name in ("a", "b", "b"):
            folder = tmp_path / name
            await policy.serve_adapter(
                f"studio-{name}", folder if folder.exists() else an_adapter(folder)
            )
        await policy.aclose()
        loaded = [body["lora_name"] for body in server.asked("load_lora_adapter")]
    assert loaded == ["studio-a", "studio-b"]


async def test_a_resumed_run_takes_up_the_adapter_that_the_server_still_has(
    tmp_path: Path,
) -> None:
    folder = an_adapter(tmp_path / "a")
    async with fake_vllm(adapters={"studio-1": str(folder)}) as server:
        policy = rollouts(server.url)
        await policy.serve_adapter("studio-1", folder)
        assert (await said(policy)).model == "studio-1"


async def _refusal(server: FakeVLLM, folder: Path) -> PolicyError:
    policy = rollouts(server.url)
    with pytest.raises(PolicyError) as refused:
        await policy.serve_adapter("studio-1", folder)
    assert policy.adapter is None  # requests still name what the server has
    await policy.aclose()
    return refused.value


async def test_a_server_that_loads_no_adapters_is_told_how_to_be_started(tmp_path: Path) -> None:
    async with fake_vllm(runtime_loading=False) as server:
        refused = await _refusal(server, an_adapter(tmp_path / "a"))
    assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True" in refused.move


async def test_an_adapter_folder_that_the_server_does_not_see_is_named(tmp_path: Path) -> None:
    async with fake_vllm() as server:
        refused = await _refusal(server, tmp_path / "elsewhere")
    assert "No adapter found" in refused.cause and "elsewhere" in refused.cause


async def test_an_adapter_that_cannot_be_unloaded_is_told_of_and_harms_nothing(
    tmp_path: Path,
) -> None:
    told: list[str] = []
    async with fake_vllm() as server:
        policy = rollouts(server.url, told=told)
        await policy.serve_adapter("studio-1", an_adapter(tmp_path / "a"))
        server.endpoint.script = [server.answer, server.answer, refuses(404, "not loaded")]
        await policy.serve_adapter("studio-2", an_adapter(tmp_path / "b"))
        await policy.aclose()
    assert policy.adapter == "studio-2"
    assert len(told) == 1 and "studio-1 stays on the server" in told[0]


async def test_a_passing_failure_is_tried_again_and_a_lasting_one_is_not() -> None:
    server = FakeVLLM()
    async with fake_endpoint(drops(), refuses(503, "loading"), server.answer) as endpoint:
        policy = rollouts(endpoint.base_url, model=BASE)
        assert (await said(policy)).token_ids
        assert len(endpoint.requests) == 3
    async with fake_endpoint(refuses(400, "bad request")) as endpoint:
        with pytest.raises(CallFailed, match="bad request"):
            await said(rollouts(endpoint.base_url, model=BASE))
        assert len(endpoint.requests) == 1


async def test_a_server_that_never_answers_costs_a_call_its_deadline_and_no_more() -> None:
    async with fake_endpoint(hangs()) as endpoint:
        with pytest.raises(CallFailed, match=r"timeout: no whole reply .* within 0\.2 s"):
            await said(rollouts(endpoint.base_url, model=BASE, timeout_s=0.2))


async def test_a_server_that_is_not_there_is_named_before_practice() -> None:
    policy = rollouts("http://127.0.0.1:9/v1")
    with pytest.raises(PolicyError, match="no connection to http://127"):
        await policy.ping()
    await policy.aclose()
