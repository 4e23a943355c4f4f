"""An engine and a fake vLLM server that is given each new adapter."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from engines.core.errors import PolicyError
from engines.core.library import Library
from engines.core.types import Message, Sampling
from engines.grpo.engine.grpo import GRPOEngine
from engines.grpo.engine.weight_engine import VLLMSyncedEngine
from engines.grpo.settings import GRPOSettings
from engines.policies.chat.endpoint import EndpointSettings
from engines.policies.hf_local.model import LocalModel
from engines.policies.hf_local.policy import encode_prompt
from engines.policies.hf_local.settings import LocalSettings, LoraSettings
from engines.policies.open import load_local
from engines.policies.vllm import RolloutServer, VLLMRollouts
from tests.engines.grpo.models import a_folder, train
from tests.engines.grpo.trainable import a_batch
from tests.support.vllm_server import FakeVLLM, fake_vllm

LIBRARY = Library("tiny")
ASK = (Message("user", "What is 4?"),)


def a_local(folder: Path) -> LocalModel:
    a_folder(folder)
    lora = LoraSettings(rank=4, alpha=8)
    local = load_local(LocalSettings(str(folder), lora=lora, threads=1), lambda line: None)
    train(local)
    return local


def served(
    server: FakeVLLM, local: LocalModel, folder: Path, *others: FakeVLLM
) -> VLLMSyncedEngine:
    rollouts = VLLMRollouts(
        RolloutServer(
            EndpointSettings(base_url=server.url, replicas=tuple(one.url for one in others)),
            lambda messages, tools: encode_prompt(local, messages, tools),
            local.window,
        ),
        name=local.name,
        tell=lambda line: None,
    )
    settings = GRPOSettings(learning_rate=1e-2)
    engine = GRPOEngine(settings, local, total_steps=4, seed=5, tell=lambda line: None)
    return VLLMSyncedEngine(engine, local, rollouts, folder / "served")


async def step(engine: VLLMSyncedEngine, number: int) -> int:
    lesson = await engine.consolidate(a_batch(2, step=number), (), LIBRARY)
    assert lesson.update is not None
    return await engine.apply(lesson.update)


async def test_the_server_has_each_adapter_as_soon_as_it_is_applied_and_only_that(
    tmp_path: Path,
) -> None:
    local = a_local(tmp_path / "model")
    async with fake_vllm() as server:
        engine = served(server, local, tmp_path)
        await engine.publish()
        begun = dict(server.adapters)
        version = await step(engine, 1)
        (name, folder), *others = server.adapters.items()
        reply = await engine._rollouts.complete(ASK, Sampling(1.0, max_tokens=8, seed=1))
        await engine._rollouts.aclose()
    assert not others and len(begun) == 1 and name not in begun
    assert reply.model == name and version == 1
    assert reply.prompt_ids == tuple(encode_prompt(local, ASK))
    assert [path.name for path in (tmp_path / "served").iterdir()] == [name]
    saved = load_file(Path(folder) / "adapter_model.safetensors")
    own = {n.replace(".default", ""): value for n, value in local.adapter_state().items()}
    assert own.keys() == saved.keys() and all(torch.equal(own[n], saved[n]) for n in own)


async def test_going_back_to_a_checkpoint_gives_the_server_its_adapter_again(
    tmp_path: Path,
) -> None:
    async with fake_vllm() as server:
        engine = served(server, a_local(tmp_path / "model"), tmp_path)
        await engine.publish()
        begun = set(server.adapters)
        await engine.save(tmp_path / "global_step_0")
        await step(engine, 1)
        assert set(server.adapters) != begun
        await engine.restore(tmp_path / "global_step_0")
        await engine._rollouts.aclose()
        assert set(server.adapters) == begun


async def test_a_server_that_refuses_an_adapter_stops_the_run(tmp_path: Path) -> None:
    async with fake_vllm() as server:
        engine = served(server, a_local(tmp_path / "model"), tmp_path)
        await engine.publish()
        server.runtime_loading = False
        with pytest.raises(PolicyError, match="did not take the adapter"):
            await step(engine, 1)
        await engine._rollouts.aclose()


async def test_each_of_several_servers_has_each_adapter_and_one_prompt_stays_at_one(
    tmp_path: Path,
) -> None:
    async with fake_vllm() as first, fake_vllm() as second:
        engine = served(first, a_local(tmp_path / "model"), tmp_path, second)
        await engine.publish()
        await step(engine, 1)
        for number in range(16):
            ask = (Message("user", f"What is {number % 8}?"),)
            await engine._rollouts.complete(ask, Sampling(1.0, max_tokens=8, seed=number))
        await engine._rollouts.aclose()
    assert first.adapters == second.adapters and len(first.adapters) == 1
    prompts = [
        {tuple(body["prompt"]) for body in server.asked("completions")}
        for server in (first, second)
    ]
    assert all(prompts) and not prompts[0] & prompts[1]
