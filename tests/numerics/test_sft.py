"""Supervised fine-tuning: packing that changes nothing, and a loop that can be taken up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from engines.core.errors import ConfigError, DataError
from engines.core.types import Message
from engines.grpo.checkpoint import EngineState, read_checkpoint, write_checkpoint
from engines.grpo.packing import forwards_of, pack, rows_of
from engines.grpo.sft import SFTSettings, Tuned, keeps_apart, token_losses, train_sft
from engines.grpo.sft_data import Demonstration, Example, as_examples
from engines.policies.hf_local.model import LocalModel
from engines.policies.hf_local.settings import LoraSettings
from tests.numerics.checkpoints import adapted, trained
from tests.numerics.models import a_folder

WORDS = ("ab", "What is", "doggy 12", "an elephant on the inn", "fly", "ox 7", "q", "there in")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return a_folder(tmp_path_factory.mktemp("models") / "base")


def example(prompt: Sequence[int], reply: Sequence[int]) -> Example:
    return Example(tuple(prompt), tuple(reply))


def the_examples(local: LocalModel) -> tuple[Example, ...]:
    shown = [Demonstration((Message("user", f"say {w} twice"),), f"{w} {w}") for w in WORDS]
    return as_examples(local, shown)


def tune(local: LocalModel, settings: SFTSettings | None = None, **more: Any) -> Tuned:
    more = {"seed": 1, "tell": lambda _: None, "examples": the_examples(local), **more}
    settings = settings or SFTSettings(learning_rate=0.01, epochs=2, batch_size=3)
    return train_sft(local, more.pop("examples"), settings, **more)


def test_a_row_is_laid_out_so_that_each_position_predicts_the_next_token() -> None:
    packed = pack([[example([5, 6], [7, 8, 9]), example([3], [4])], [example([], [1, 2])]], 0)
    assert packed.ids.tolist() == [[5, 6, 7, 8, 9, 3, 4], [1, 2, 0, 0, 0, 0, 0]]
    assert packed.positions.tolist() == [[0, 1, 2, 3, 4, 0, 1], [0, 1, 0, 1, 2, 3, 4]]
    # 6 predicts 7, 7 predicts 8, 8 predicts 9; 3 predicts 4; nothing predicts a first token.
    assert packed.targets.tolist() == [[0, 7, 8, 9, 0, 4, 0], [2, 0, 0, 0, 0, 0, 0]]
    assert packed.learnt.tolist() == [[bool(t) for t in row] for row in packed.targets.tolist()]
    assert packed.tokens == 5


def test_rows_are_filled_first_fit_and_an_example_that_is_too_long_stands_alone() -> None:
    sizes = [3, 9, 4, 6, 2]
    rows = rows_of([example(range(n - 1), [0]) for n in sizes], 8)
    assert [[len(one) for one in row] for row in rows] == [[9], [6, 2], [4, 3]]
    assert len(rows_of([example([1], [2])] * 3, 0)) == 3


def test_rows_share_a_pass_while_their_padded_size_fits() -> None:
    rows = rows_of([example(range(n - 1), [0]) for n in (8, 8, 5, 5)], 8)
    passes = forwards_of(rows, 16)
    assert [[sum(map(len, row)) for row in rows] for rows in passes] == [[8, 8], [5, 5]]
    assert len(forwards_of(rows, 1)) == 4


@pytest.mark.parametrize("family", ["llama", "qwen3", "mistral", "gemma2", "gemma3"])
def test_packed_examples_lose_what_plain_transformers_says_of_each_alone(
    family: str, tmp_path: Path
) -> None:
    local = trained(a_folder(tmp_path / "m", family))
    examples = the_examples(local)
    rows = rows_of(examples, 60)
    assert 1 < len(rows) < len(examples)
    alone = []
    with torch.no_grad():
        packed = token_losses(local, pack(rows, local.pad_id))
        for one in (one for row in rows for one in row):
            ids = torch.tensor([[*one.prompt_ids, *one.token_ids]])
            logp = torch.log_softmax(local.model(ids).logits[0].float(), -1)
            n = len(one.prompt_ids)
            alone.append(-logp[n - 1 : -1].gather(1, ids[0, n:, None])[:, 0])
    assert (packed - torch.cat(alone)).abs().max() < 1e-5
    assert packed.std() > 0.1  # so it is no constant that is compared
    assert keeps_apart(local, *examples[:2])


def test_packing_and_passes_do_not_change_the_gradient(base: Path) -> None:
    ends = []
    for tokens in (40, 100, 8192):
        local = adapted(base)
        tuned = tune(local, forward_tokens=tokens)
        ends.append((local.adapter_state(), tuned.losses))
    for state, losses in ends[1:]:
        assert losses == pytest.approx(ends[0][1], abs=1e-6)
        for name, tensor in state.items():
            assert (tensor - ends[0][0][name]).abs().max() < 1e-5


def test_the_loss_of_a_step_is_the_mean_over_its_learnt_tokens(base: Path) -> None:
    local = adapted(base)
    examples = the_examples(local)
    with torch.no_grad():
        every = token_losses(local, pack([[one] for one in examples], local.pad_id))
    seen: list[dict[str, float]] = []
    settings = SFTSettings(epochs=1, batch_size=len(examples))
    tuned = tune(local, settings, on_step=lambda n, of, figures: seen.append(dict(figures)))
    assert seen[0]["loss"] == pytest.approx(every.mean().item(), abs=1e-5)
    assert seen[0]["tokens"] == len(every) == tuned.tokens
    assert tuned.losses == pytest.approx((seen[0]["loss"],))


def test_it_learns_what_it_is_shown_and_counts(base: Path) -> None:
    local = adapted(base)
    tuned = tune(local, SFTSettings(learning_rate=0.02, epochs=12, batch_size=4))
    assert tuned.losses[-1] < 0.6 * tuned.losses[0]
    assert len(tuned.losses) == 12
    assert tuned.metrics == {
        "loss": tuned.losses[-1],
        "first_loss": tuned.losses[0],
        "tokens": tuned.tokens,
        "examples": 8,
        "left_out": 0,
        "optimiser_steps": 24,
    }


def test_the_same_seed_gives_the_same_weights_and_another_seed_others(base: Path) -> None:
    digests = []
    for seed in (1, 1, 2):
        local = adapted(base)
        tune(local, seed=seed)
        digests.append(local.weights_digest())
    assert digests[0] == digests[1] != digests[2]


def test_taken_up_after_any_epoch_it_ends_bitwise_the_same(base: Path, tmp_path: Path) -> None:
    settings = SFTSettings(learning_rate=0.01, epochs=3, batch_size=3, warmup=0.2)
    whole = adapted(base)

    def save(epoch: int, state: EngineState) -> None:
        write_checkpoint(tmp_path / f"{epoch}", whole, state)

    ended = tune(whole, settings, on_epoch=save)
    for epoch in (1, 2, 3):
        again = adapted(base)
        rest = tune(again, settings, start=read_checkpoint(tmp_path / f"{epoch}", again))
        assert again.weights_digest() == whole.weights_digest()
        assert (rest.losses, rest.steps) == (ended.losses, ended.steps)


@pytest.mark.parametrize(
    "changed",
    [
        {"learning_rate": 0.02},
        {"epochs": 3},
        {"batch_size": 4},
        {"max_grad_norm": 0.01},
        {"schedule": "constant"},
        {"warmup": 0.5},
        {"weight_decay": 0.5},
    ],
)
def test_every_setting_has_an_effect(changed: dict[str, Any], base: Path) -> None:
    usual: dict[str, Any] = {"learning_rate": 0.01, "epochs": 2, "batch_size": 3}
    one, other = adapted(base), adapted(base)
    tune(one, SFTSettings(**usual))
    tune(other, SFTSettings(**{**usual, **changed}))
    assert one.weights_digest() != other.weights_digest()


def test_the_learning_rate_rises_and_falls_over_all_steps(base: Path) -> None:
    rates: list[float] = []
    tune(
        adapted(base),
        SFTSettings(learning_rate=0.01, epochs=2, batch_size=2, warmup=0.25, schedule="linear"),
        on_step=lambda n, of, figures: rates.append(figures["learning_rate"]),
    )
    # 8 steps, 2 of them rising; then 6 of 6, 5 of 6, … of the highest.
    expected = [0.005, 0.01, *(0.01 * left / 6 for left in (6, 5, 4, 3, 2, 1))]
    assert rates == pytest.approx(expected)


def test_dropout_of_the_adapter_plays_no_part(base: Path) -> None:
    digests = []
    for dropout in (0.0, 0.5):
        local = adapted(base, lora=LoraSettings(rank=4, alpha=8, dropout=dropout))
        tune(local)
        digests.append(local.weights_digest())
    assert digests[0] == digests[1]


def test_a_loss_that_is_no_number_ends_it_with_the_weights_as_they_were(base: Path) -> None:
    local = trained(base)
    before = local.weights_digest()

    def poison(step: int, of: int, figures: object) -> None:
        with torch.no_grad():
            local.trainable()[0][1].fill_(math.nan)

    with pytest.raises(ConfigError, match="at optimiser step 2 the loss is nan") as refused:
        tune(local, on_step=poison)
    assert refused.value.place == "sft.learning_rate"
    assert "Lower it (it is 0.01)" in refused.value.move
    assert local.weights_digest() == before
    assert all(parameter.grad is None for _, parameter in local.trainable())
    assert not local.lock.locked()


def refuse_above(local: LocalModel, tokens: int) -> Any:
    """Stands for a memory that holds so many tokens and no more."""

    def check(module: object, args: object, kwargs: dict[str, Any]) -> None:
        if kwargs["input_ids"].numel() > tokens:
            raise torch.OutOfMemoryError("out of memory")

    return local.base.model.register_forward_pre_hook(check, with_kwargs=True)


def test_out_of_memory_halves_the_pass_once_and_says_so(base: Path) -> None:
    usual, short = adapted(base), adapted(base)
    tuned = tune(usual, forward_tokens=140)
    refuse_above(short, 70)
    told: list[str] = []
    halved = tune(short, forward_tokens=140, tell=told.append)
    assert told == ["memory ran out: from here 70 tokens at a time"]
    assert halved.losses == pytest.approx(tuned.losses, abs=1e-6)


def test_out_of_memory_twice_ends_it_with_the_weights_as_they_were(base: Path) -> None:
    local = adapted(base)
    before = local.weights_digest()
    refuse_above(local, 70)
    with pytest.raises(ConfigError, match="memory ran out again") as refused:
        tune(local, forward_tokens=140, on_step=lambda *_: refuse_above(local, 20))
    assert "gradient_checkpointing" in refused.value.move
    assert local.weights_digest() == before
    with pytest.raises(ConfigError, match="memory ran out again"):
        tune(local)  # already while it looks whether it may pack


def test_another_runtime_error_is_not_taken_for_a_lack_of_memory(base: Path) -> None:
    local = adapted(base)

    def fail(*_: object) -> None:
        raise RuntimeError("something else")

    told: list[str] = []
    with pytest.raises(RuntimeError, match="something else"):
        tune(local, on_step=fail, tell=told.append)
    assert told == []


def test_a_model_that_mixes_the_examples_of_a_row_is_trained_without_packing(base: Path) -> None:
    def leak(module: object, args: object, output: torch.Tensor) -> torch.Tensor:
        return output + output.cumsum(dim=1)

    local, alone = adapted(base), adapted(base)
    for one in (local, alone):
        one.base.model.embed_tokens.register_forward_hook(leak)
    told: list[str] = []
    mixed = tune(local, tell=told.append)
    assert told == ["examples are not packed: this model does not keep those of one row apart"]
    assert mixed.losses == pytest.approx(tune(alone, forward_tokens=1).losses, abs=1e-5)


def test_what_does_not_fit_the_window_is_left_out_and_counted(tmp_path: Path) -> None:
    local = adapted(a_folder(tmp_path / "m", max_position_embeddings=40))
    examples = the_examples(local)
    fitting = [one for one in examples if len(one) <= 40]
    assert 0 < len(fitting) < len(examples)
    told: list[str] = []
    tuned = tune(local, tell=told.append)
    assert told == [
        f"{len(examples) - len(fitting)} of 8 examples are left out: not 2 to 40 tokens"
    ]
    assert (tuned.examples, tuned.left_out) == (len(fitting), len(examples) - len(fitting))
    with pytest.raises(DataError, match="none of 1 examples fits"):
        tune(local, examples=[example(range(40), [1])])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("learning_rate", 0.0),
        ("learning_rate", 2.0),
        ("epochs", 0),
        ("batch_size", 0),
        ("max_grad_norm", 0.0),
        ("warmup", 1.0),
        ("weight_decay", -0.1),
    ],
)
def test_a_setting_out_of_bounds_is_named(name: str, value: Any) -> None:
    with pytest.raises(ConfigError) as refused:
        SFTSettings(**{name: value})
    assert refused.value.place == f"sft.{name}"
