"""Log-probabilities of completions, with equal prompts computed once and without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engines.core.types import Message, Sampling
from engines.grpo.loss import loss as forward
from engines.grpo.loss.loss import (
    Sample,
    can_share_prompts,
    collate,
    completion_logps,
    pad_samples,
)
from engines.policies.hf_local.model import LocalModel
from engines.policies.hf_local.settings import LoraSettings
from tests.engines.grpo.models import FAMILIES, a_local, with_dropout
from tests.engines.grpo.trainable import a_batch, a_scored, a_try, a_turn

SHARING = ("llama", "llama3 rope", "qwen2", "qwen3", "gemma")


def samples() -> list[Sample]:
    """Prompts and completions of several lengths, and one trajectory of two turns."""
    shown = tuple(range(20, 31))
    twice = a_try(a_turn(shown, [40, 41]), a_turn((*shown, 40, 41, 50, 51), [60, 61, 62]))
    once = a_try(a_turn(shown, [42]), index=1)
    batch = [*a_batch(3, 4), a_scored([1.0, 0.0], [twice, once], position=3)]
    return list(collate(batch).samples)


def by_hand(local: LocalModel, sample: Sample, temperature: float) -> Tensor:
    """One whole sequence through the model's own forward, as transformers documents it."""
    ids = torch.tensor([[*sample.prompt, *sample.completion]])
    with torch.no_grad():
        logits = local.model(input_ids=ids, use_cache=False).logits.float()
    logps = torch.log_softmax(logits[0, len(sample.prompt) - 1 : -1] / temperature, -1)
    return logps.gather(1, ids[0, len(sample.prompt) :, None])[:, 0]


def gradient(local: LocalModel, chosen: list[Sample], *, share: bool = False) -> Tensor:
    rows = pad_samples(chosen, local.pad_id)
    scored = completion_logps(local, rows, temperature=0.7, share=share)
    weights = torch.linspace(-1, 1, scored.logp.numel()).view_as(scored.logp)
    grads = torch.autograd.grad(
        (scored.logp * weights).sum(), [p for _, p in local.trainable_parameters()]
    )
    return torch.cat([g.flatten() for g in grads])


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_pass_gives_what_the_models_own_forward_gives(family: str, tmp_path: Path) -> None:
    local, chosen = a_local(tmp_path, family, trained=True), samples()
    assert can_share_prompts(local) is (family in SHARING)
    rows = pad_samples(chosen, local.pad_id)
    assert len(rows.prompts) < len(chosen)
    for share in {False, can_share_prompts(local)}:
        with torch.no_grad():
            logp = completion_logps(local, rows, temperature=0.7, share=share).logp
        for n, sample in enumerate(chosen):
            trained = torch.tensor(sample.trainable)
            expected = torch.where(trained, by_hand(local, sample, 0.7), 0.0)
            torch.testing.assert_close(
                logp[n, : len(trained)], expected, atol=2e-5, rtol=0, msg=f"{family} {share} {n}"
            )
            assert not bool(logp[n, len(trained) :].any())


def test_each_prompt_is_computed_once_for_all_completions_of_it(tmp_path: Path) -> None:
    local, chosen = a_local(tmp_path), samples()
    rows = pad_samples(chosen, local.pad_id)
    shapes: list[tuple[int, ...]] = []

    def remember(module: torch.nn.Module, args: Any, kwargs: dict[str, Tensor]) -> None:
        shapes.append(tuple(kwargs["input_ids"].shape))

    local.base.model.register_forward_pre_hook(remember, with_kwargs=True)
    longest = max(len(sample.completion) for sample in chosen)
    whole = max(len(sample.prompt) + len(sample.completion) for sample in chosen)
    prompts = {sample.prompt for sample in chosen}
    completion_logps(local, rows, temperature=0.7, share=True)
    assert shapes == [
        (len(prompts), max(map(len, prompts))),
        (len(chosen), longest - 1),  # nothing is predicted from the last token
    ]
    shapes.clear()
    completion_logps(local, rows, temperature=0.7, share=False)
    assert shapes == [(len(chosen), whole)]


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_gradients_flow_through_a_shared_prompt(family: str, tmp_path: Path) -> None:
    local, chosen = a_local(tmp_path, family, trained=True), samples()
    local.model.double()
    whole = gradient(local, chosen)
    shared = gradient(local, chosen, share=True)
    assert float((shared - whole).norm() / whole.norm()) < 1e-6  # norms stay in float32


def test_entropy_is_that_of_the_tempered_distribution(tmp_path: Path) -> None:
    local, chosen = a_local(tmp_path, trained=True), samples()[:1]
    rows = pad_samples(chosen, 0)
    found = completion_logps(local, rows, temperature=0.7).entropy[0]
    ids = torch.tensor([[*chosen[0].prompt, *chosen[0].completion]])
    logits = local.model(input_ids=ids).logits[0, len(chosen[0].prompt) - 1 : -1] / 0.7
    expected = torch.distributions.Categorical(logits=logits).entropy()
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    assert not found.requires_grad


def test_a_large_vocabulary_is_scored_in_pieces_to_the_same_gradient(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local, chosen = a_local(tmp_path, trained=True), samples()
    at_once = gradient(local, chosen, share=True)
    monkeypatch.setattr(forward, "LOGITS_AT_ONCE", 5 * 320)
    torch.testing.assert_close(gradient(local, chosen, share=True), at_once, atol=1e-5, rtol=1e-4)


def test_gradient_checkpointing_changes_no_number(tmp_path: Path) -> None:
    chosen = samples()
    plain = a_local(tmp_path / "a", trained=True)
    frugal = a_local(tmp_path / "b", trained=True, settings={"gradient_checkpointing": True})
    torch.testing.assert_close(
        gradient(frugal, chosen), gradient(plain, chosen), atol=1e-5, rtol=1e-4
    )


def test_dropout_never_acts_in_a_training_pass(tmp_path: Path) -> None:
    lora = LoraSettings(rank=4)
    local = a_local(tmp_path, lora=lora, trained=True)
    frugal = a_local(
        tmp_path / "b", lora=lora, trained=True, settings={"gradient_checkpointing": True}
    )
    for each in (local, frugal):
        with_dropout(each, 0.5)
        first, second = gradient(each, samples()), gradient(each, samples())
        assert torch.equal(first, second)


@pytest.mark.parametrize("family", ["llama", "gemma2"])
async def test_first_use_ratios_are_one_on_a_trained_adapter_at_another_temperature(
    family: str, tmp_path: Path
) -> None:
    from engines.policies.hf_local.policy import HFLocal

    local = a_local(tmp_path, family, lora=LoraSettings(rank=4), trained=True)
    with_dropout(local, 0.2)
    policy = HFLocal(local, tell=lambda line: None)
    said: Any = [Message("user", "What is 4 + 4?")]
    tries = []
    for index in range(4):
        reply = await policy.complete(said, Sampling(temperature=0.7, max_tokens=12, seed=index))
        tries.append(a_try(a_turn(reply.prompt_ids, reply.token_ids), index=index))
        turn = tries[-1].attempt.turns[0]
        object.__setattr__(turn, "logprobs", reply.logprobs)
    await policy.aclose()
    rows = pad_samples(collate([a_scored([1, 0, 0.5, 0.25], tries)]).samples, local.pad_id)
    with torch.no_grad():
        found = completion_logps(local, rows, temperature=0.7).logp
        other = completion_logps(local, rows, temperature=1.0).logp
    ratio = torch.exp(found - rows.sampled)[rows.trainable]
    torch.testing.assert_close(ratio, torch.ones_like(ratio), atol=1e-4, rtol=0)
    assert float((other - rows.sampled).abs().max()) > 1e-2
