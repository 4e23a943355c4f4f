"""The local decoder against transformers' own forward, on trained adapters at T ≠ 1."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from engines.policies.hf_local import decoding
from engines.policies.hf_local.decoding import (
    DecodedReply,
    DecodeHooks,
    DecodeRequest,
    DecodingCancelled,
    FastDecoder,
    PlainDecoder,
    decode,
    pick_tokens,
    uniforms,
)
from engines.policies.hf_local.model import LocalModel, Unmergeable, merge_weights
from engines.policies.hf_local.settings import LoraSettings
from tests.engines.grpo.models import FAMILIES, a_local, a_model, train, with_dropout

PROMPTS = tuple(tuple(range(5, 5 + length)) for length in (30, 7, 18))
"""Longer than the sliding windows of the tiny models, and of three lengths."""
FAST = {"llama", "llama3 rope", "qwen2", "qwen3"}


def some_rows(count: int = 14, **settings: Any) -> list[DecodeRequest]:
    """Rows that share three prompts and end at different lengths."""
    return [
        DecodeRequest(
            PROMPTS[index % 3],
            seed=index,
            **{"max_tokens": 4 + 3 * index, "temperature": 0.7 + 0.1 * (index % 4), **settings},
        )
        for index in range(count)
    ]


def forward_logprobs(local: LocalModel, row: DecodeRequest, drawn: DecodedReply) -> torch.Tensor:
    """Of the drawn tokens, by transformers and peft in one pass without a cache."""
    ids = torch.tensor([[*row.prompt_ids, *drawn.token_ids]])
    with torch.no_grad():
        logits = local.model(input_ids=ids).logits[0, len(row.prompt_ids) - 1 : -1].float()
    scores = torch.log_softmax(logits / (row.temperature or 1.0), -1)
    return scores.gather(1, torch.tensor(drawn.token_ids)[:, None])[:, 0]


def worst_gap(
    local: LocalModel, rows: Sequence[DecodeRequest], drawn: Sequence[DecodedReply]
) -> float:
    return max(
        (forward_logprobs(local, row, one) - torch.tensor(one.logprobs)).abs().max().item()
        for row, one in zip(rows, drawn, strict=True)
    )


def plainly(local: LocalModel, rows: Sequence[DecodeRequest]) -> list[DecodedReply]:
    """Decoded by transformers' forward, whatever the model is."""
    note, local.decoder_note = local.decoder_note, "for this test"
    try:
        return decode(local, rows)
    finally:
        local.decoder_note = note


@pytest.mark.parametrize("family", FAMILIES)
def test_log_probabilities_are_those_of_transformers_on_a_trained_adapter(
    family: str, tmp_path: Path
) -> None:
    local = a_local(tmp_path, family, trained=True)
    assert (local.decoder_note is None) == (family in FAST)
    rows = some_rows()
    drawn = decode(local, rows)
    assert worst_gap(local, rows, drawn) <= 1e-4
    assert max(len(one.token_ids) for one in drawn) > 32  # the cache had to grow
    assert len({len(one.token_ids) for one in drawn}) > 8  # rows were dropped on the way
    # The fallback draws the same, so that it differs in speed alone.
    plain = plainly(local, rows)
    assert [one.token_ids for one in plain] == [one.token_ids for one in drawn]
    assert worst_gap(local, rows, plain) <= 1e-4


def test_prompts_computed_in_parts_give_what_they_give_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = a_local(tmp_path, "qwen3", trained=True)
    whole = decode(local, some_rows())
    monkeypatch.setattr(decoding, "_PREFILL", 31)  # one prompt at a time
    parts = decode(local, some_rows())
    assert [one.token_ids for one in parts] == [one.token_ids for one in whole]
    assert worst_gap(local, some_rows(), parts) <= 1e-4


def test_a_row_draws_the_same_whoever_shares_its_batch(tmp_path: Path) -> None:
    local = a_local(tmp_path, trained=True)
    rows = some_rows()
    together = decode(local, rows)
    for index in (0, 5, 13):
        (alone,) = decode(local, [rows[index]])
        assert alone.token_ids == together[index].token_ids
        assert alone.logprobs == pytest.approx(together[index].logprobs, abs=1e-4)
    backwards = decode(local, rows[::-1])
    assert [one.token_ids for one in backwards[::-1]] == [one.token_ids for one in together]


def test_another_seed_or_temperature_draws_something_else(tmp_path: Path) -> None:
    local = a_local(tmp_path)
    base, seed, cold = (
        DecodeRequest(PROMPTS[1], seed=1, max_tokens=12),
        DecodeRequest(PROMPTS[1], seed=2, max_tokens=12),
        DecodeRequest(PROMPTS[1], seed=1, max_tokens=12, temperature=0.2),
    )
    drawn = [tuple(one.token_ids) for one in decode(local, [base, seed, cold])]
    assert len(set(drawn)) == 3


def test_temperature_zero_takes_the_likeliest_with_log_probabilities_at_one(
    tmp_path: Path,
) -> None:
    local = a_local(tmp_path, trained=True)
    greedy = DecodeRequest(PROMPTS[0], seed=3, max_tokens=10, temperature=0.0)
    warm = DecodeRequest(PROMPTS[0], seed=3, max_tokens=10, temperature=1.5)
    rows = [greedy, warm]  # both kinds in one batch
    drawn = decode(local, rows)
    assert worst_gap(local, rows, drawn) <= 1e-4
    ids = list(greedy.prompt_ids)
    with torch.no_grad():
        for token in drawn[0].token_ids:
            logits = local.model(input_ids=torch.tensor([ids])).logits[0, -1]
            assert token == int(logits.argmax())
            ids.append(token)


def test_merged_weights_follow_an_optimiser_that_told_nobody(tmp_path: Path) -> None:
    local = a_local(tmp_path, trained=True)
    rows, before = some_rows(4), local.weights_digest()
    decode(local, rows)
    kept = local.decoding_weights()
    assert local.decoding_weights() is kept  # merged once per change
    optimiser = torch.optim.SGD([p for _, p in local.trainable_parameters()], lr=0.5)
    for _, parameter in local.trainable_parameters():
        parameter.grad = torch.ones_like(parameter)
    optimiser.step()
    assert worst_gap(local, rows, decode(local, rows)) <= 1e-4
    assert local.weights_digest() != before
    assert local.decoding_weights() is not kept


def test_the_reference_decodes_as_if_there_were_no_adapter(tmp_path: Path) -> None:
    local = a_local(tmp_path, trained=True)
    fresh = a_local(tmp_path)  # the same files, no adapter
    rows = some_rows(5)
    adapted = decode(local, rows)
    with local.disable_adapter():
        reference = decode(local, rows)
    assert [one.token_ids for one in reference] == [one.token_ids for one in decode(fresh, rows)]
    assert [one.token_ids for one in decode(local, rows)] == [one.token_ids for one in adapted]
    assert [one.token_ids for one in reference] != [one.token_ids for one in adapted]


def test_dropout_of_an_adapter_never_acts(tmp_path: Path) -> None:
    local = with_dropout(a_local(tmp_path, lora=LoraSettings(), trained=True), 0.5)
    rows = some_rows(6)
    # Ratios of first use are 1: in training mode they would be far from it.
    assert worst_gap(local, rows, decode(local, rows)) <= 1e-4


def test_checkpointed_gradients_are_the_plain_ones_also_with_dropout(tmp_path: Path) -> None:
    lora = LoraSettings()
    gradients, recomputed = [], []
    for checkpointing in (False, True):
        local = a_local(
            tmp_path,
            lora=lora,
            trained=True,
            settings={"gradient_checkpointing": checkpointing},
        )
        with_dropout(local, 0.5)
        passes: list[int] = []
        local.base.model.layers[0].mlp.register_forward_pre_hook(
            lambda *_, passes=passes: passes.append(1)
        )
        local.model(input_ids=torch.tensor([PROMPTS[0]]), use_cache=False).logits.sum().backward()
        gradients.append({n: p.grad for n, p in local.trainable_parameters() if p.grad is not None})
        recomputed.append(len(passes))
    assert recomputed == [1, 2]
    assert gradients[0].keys() == gradients[1].keys() != set()
    for name, plain in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], plain)
    rows = some_rows(3)  # transformers keeps no cache while it checkpoints
    drawn, plainly_drawn = decode(local, rows), plainly(local, rows)
    assert [one.token_ids for one in plainly_drawn] == [one.token_ids for one in drawn]


def test_half_precision_decodes_near_its_own_forward(tmp_path: Path) -> None:
    local = a_local(tmp_path, "qwen3", trained=True, settings={"dtype": "bfloat16"})
    rows = some_rows(6)
    assert worst_gap(local, rows, decode(local, rows)) < 0.5  # bfloat16 has 3 digits
    assert local.facts()["dtype"] == "bfloat16"


def test_the_end_of_a_turn_is_part_of_what_was_sampled(tmp_path: Path) -> None:
    local = a_local(tmp_path)
    rows = some_rows(12, max_tokens=200, temperature=1.5)
    ended = [one for one in decode(local, rows) if one.finish == "stop"]
    assert ended
    for one in ended:
        assert one.token_ids[-1] in local.eos_ids
        assert not local.eos_ids & set(one.token_ids[:-1])
        assert len(one.token_ids) == len(one.logprobs)


def test_a_batch_ends_when_it_is_told_to_and_a_dropped_row_alone(tmp_path: Path) -> None:
    local = a_local(tmp_path)
    rows, asked = some_rows(4, max_tokens=20), []

    def enough() -> bool:
        asked.append(1)
        return len(asked) == 3

    with pytest.raises(DecodingCancelled):
        decode(local, rows, DecodeHooks(stop=enough))
    assert len(asked) == 3
    left = decode(local, rows, DecodeHooks(dropped=lambda index: index == 2))
    whole = decode(local, rows)
    assert left[2].finish == ""
    assert len(left[2].token_ids) < len(whole[2].token_ids)
    for index in (0, 1, 3):
        assert left[index].token_ids == whole[index].token_ids


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (
            {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
            "dynamic",
        ),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding windows"),
    ],
)
def test_what_the_fast_decoder_does_not_know_is_named(changes: dict[str, Any], named: str) -> None:
    family = "qwen2" if "layer_types" in changes else "llama"
    with pytest.raises(Unmergeable, match=named):
        merge_weights(a_model(family, **changes), torch.float32)


def test_mistral_without_a_window_is_merged() -> None:
    assert merge_weights(a_model("mistral", sliding_window=None), torch.float32).layers
    with pytest.raises(Unmergeable, match="sliding windows"):
        merge_weights(a_model("mistral"), torch.float32)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # peft 0.21 asks transformers' old names
def test_a_variant_of_lora_is_left_to_transformers_and_still_exact(tmp_path: Path) -> None:
    import peft

    local = a_local(tmp_path)
    config = peft.LoraConfig(use_dora=True, target_modules=["q_proj"], task_type="CAUSAL_LM")
    model = peft.get_peft_model(local.model, config)
    odd = LocalModel(
        model,
        local.tokenizer,
        local.settings,
        device=local.device,
        dtype=local.dtype,
        threads=1,
        base_digest=local.base_digest,
    )
    train(odd)
    assert "variant of LoRA" in str(odd.decoder_note)
    rows = some_rows(6)
    assert worst_gap(odd, rows, decode(odd, rows)) <= 1e-4


def test_both_decoders_share_a_prompt_and_drop_rows(tmp_path: Path) -> None:
    local = a_local(tmp_path)
    for decoder in (FastDecoder(local.decoding_weights(), local.device), PlainDecoder(local)):
        with torch.inference_mode():
            first = decoder.start(PROMPTS, [0, 0, 0, 1, 2, 2], 60)
            assert first.shape[0] == 6
            assert torch.equal(first[0], first[2])
            step = decoder.step(torch.tensor([7, 8, 9, 10, 11, 12]))
            decoder.keep(torch.tensor([1, 4]))
            after = decoder.step(torch.tensor([20, 21]))
        for row, (prompt, said) in enumerate([(PROMPTS[0], (8, 20)), (PROMPTS[2], (11, 21))]):
            with torch.no_grad():
                logits = local.model(input_ids=torch.tensor([[*prompt, *said]])).logits[0]
            torch.testing.assert_close(after[row], logits[-1], atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(step[(1, 4)[row]], logits[-2], atol=1e-4, rtol=1e-4)


def test_a_token_is_drawn_as_often_as_it_is_likely() -> None:
    weights = torch.tensor([0.5, 0.0, 0.3, 0.2])
    grid = (torch.arange(1000) + 0.5) / 1000
    tokens, logp = pick_tokens(weights.log().expand(1000, -1), grid)
    assert tokens.bincount(minlength=4).tolist() == [500, 0, 300, 200]
    assert logp.exp().tolist() == pytest.approx(weights[tokens].tolist())
    # T = 2 takes the square root: 0.707, 0, 0.548, 0.447 of 1.702 together.
    tokens, logp = pick_tokens(
        weights.log().expand(1000, -1), grid, temperature=torch.full((1000,), 2.0)
    )
    assert tokens.bincount(minlength=4).tolist() == [415, 0, 322, 263]
    assert logp[0].exp().item() == pytest.approx(math.sqrt(0.5) / 1.70208, abs=1e-4)


def test_the_largest_number_never_draws_an_impossible_token() -> None:
    logits = torch.full((1, 4096), -30.0)
    logits[0, -1] = -math.inf
    token, logp = pick_tokens(logits, torch.tensor([1 - 2**-24]))
    assert token.item() < 4095
    assert math.isfinite(logp.item())


def test_top_p_draws_from_the_likeliest_alone() -> None:
    weights = torch.tensor([0.1, 0.5, 0.15, 0.25]).log().expand(1000, -1)
    grid = (torch.arange(1000) + 0.5) / 1000
    tokens, _ = pick_tokens(weights, grid, top_p=torch.full((1000,), 0.7))
    assert tokens.bincount(minlength=4).tolist() == [0, 667, 0, 333]  # 0.5 and 0.25 of 0.75


def test_uniforms_are_splitmix_of_seed_and_count_and_look_random() -> None:
    seeds = torch.arange(2000)
    made = torch.stack([uniforms(seeds, number) for number in range(20)])
    assert made.min() >= 0 and made.max() < 1
    assert made.mean().item() == pytest.approx(0.5, abs=0.01)  # σ of the mean: 0.0014
    assert made.var().item() == pytest.approx(1 / 12, abs=0.002)
    for other in (torch.roll(made, 1, 0), torch.roll(made, 1, 1)):  # next token, next seed
        both = torch.corrcoef(torch.stack((made.flatten(), other.flatten())))[0, 1]
        assert abs(both.item()) < 0.02
    assert uniforms(torch.tensor([-5, 3]), 7).tolist() == [_by_hand(-5, 7), _by_hand(3, 7)]


def _by_hand(seed: int, number: int) -> float:
    """The same in Python's whole numbers."""
    word = 2**64 - 1

    def mixed(x: int) -> int:
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & word
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & word
        return x ^ (x >> 31)

    start = mixed(((seed + 1) * 0x9E3779B97F4A7C15) & word)
    return (mixed((start + (number + 1) * 0x632BE59BD9B4E019) & word) >> 40) / 2**24
