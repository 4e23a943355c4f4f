"""Gradients of demonstrations: packing that changes nothing, and what may not be packed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from engines.core.errors import ConfigError
from engines.grpo.engine.sft import (
    accumulate,
    group_into_forwards,
    is_packing_exact,
    pack,
    pack_into_rows,
    token_losses,
)
from engines.grpo.loss.sft_data import Demonstration, Example, tokenise_demonstration
from engines.grpo.settings import SFTSettings
from engines.policies.hf_local.model import LocalModel
from tests.engines.grpo.checkpoints import adapted, trained
from tests.engines.grpo.models import a_folder

WORDS = ("ab", "What is", "doggy 12", "an elephant on the inn", "fly", "ox 7", "q", "there in")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return a_folder(tmp_path_factory.mktemp("models") / "base")


def example(prompt: Sequence[int], reply: Sequence[int]) -> Example:
    return Example(tuple(prompt), tuple(reply))


def the_examples(local: LocalModel) -> tuple[Example, ...]:
    return tuple(
        tokenise_demonstration(local, Demonstration(f"say {w} twice", f"{w} {w}")) for w in WORDS
    )


def gradients(local: LocalModel) -> torch.Tensor:
    """(P,) what has accumulated."""
    return torch.cat(
        [
            (p.grad if p.grad is not None else torch.zeros_like(p)).reshape(-1)
            for _, p in local.trainable_parameters()
        ]
    )


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
    rows = pack_into_rows([example(range(n - 1), [0]) for n in sizes], 8)
    assert [[len(one) for one in row] for row in rows] == [[9], [6, 2], [4, 3]]
    assert len(pack_into_rows([example([1], [2])] * 3, 0)) == 3


def test_rows_share_a_pass_while_their_padded_size_fits() -> None:
    rows = pack_into_rows([example(range(n - 1), [0]) for n in (8, 8, 5, 5)], 8)
    passes = group_into_forwards(rows, 16)
    assert [[sum(map(len, row)) for row in rows] for rows in passes] == [[8, 8], [5, 5]]
    assert len(group_into_forwards(rows, 1)) == 4


@pytest.mark.parametrize("family", ["llama", "qwen3", "mistral", "gemma2", "gemma3"])
def test_packed_examples_lose_what_plain_transformers_says_of_each_alone(
    family: str, tmp_path: Path
) -> None:
    local = trained(a_folder(tmp_path / "m", family))
    examples = the_examples(local)
    rows = pack_into_rows(examples, 60)
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
    assert is_packing_exact(local, *examples[:2])


def test_packing_and_passes_do_not_change_loss_or_gradient(base: Path) -> None:
    ends = []
    for packs, tokens in ((True, 8192), (True, 100), (True, 40), (False, 8192), (False, 1)):
        local = trained(base)
        found = accumulate(local, the_examples(local), packs=packs, forward_tokens=tokens)
        ends.append((*found, gradients(local)))
    loss, tokens, gradient = ends[0]
    assert gradient.norm() > 1e-3
    for other, count, also in ends[1:]:
        assert other == pytest.approx(loss, abs=1e-6)
        assert count == tokens
        assert (also - gradient).abs().max() < 1e-5 * gradient.abs().max()


def test_the_loss_is_the_mean_over_all_learnt_tokens(base: Path) -> None:
    local = trained(base)
    examples = the_examples(local)
    with torch.no_grad():
        every = token_losses(local, pack([[one] for one in examples], local.pad_id))
    loss, tokens = accumulate(local, examples, packs=True, forward_tokens=60)
    assert loss == pytest.approx(every.mean().item(), abs=1e-6)
    assert tokens == len(every) == sum(len(one.token_ids) for one in examples)


def test_a_prompt_gives_no_gradient_of_its_own(base: Path) -> None:
    local = trained(base)
    (one, *_) = the_examples(local)
    accumulate(local, [one], packs=False, forward_tokens=8192)
    learnt = gradients(local)
    ids = torch.tensor([[*one.prompt_ids, *one.token_ids]])
    for _, parameter in local.trainable_parameters():
        parameter.grad = None
    logp = torch.log_softmax(local.model(ids).logits[0, :-1].float(), -1)
    shown = len(one.prompt_ids) - 1  # positions that predict a token of the prompt
    every = -logp.gather(1, ids[0, 1:, None])[:, 0]
    every[shown:].mean().backward()  # type: ignore[no-untyped-call]
    assert (gradients(local) - learnt).abs().max() < 1e-5 * learnt.abs().max()


def test_a_model_that_mixes_the_examples_of_a_row_does_not_keep_them_apart(base: Path) -> None:
    def leak(module: object, args: object, output: torch.Tensor) -> torch.Tensor:
        return output + output.cumsum(dim=1)

    local = adapted(base)
    examples = the_examples(local)
    assert is_packing_exact(local, *examples[:2])
    local.base.model.embed_tokens.register_forward_hook(leak)
    assert not is_packing_exact(local, *examples[:2])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("learning_rate", 0.0),
        ("learning_rate", 2.0),
    ],
)
def test_a_setting_out_of_bounds_is_named(name: str, value: float) -> None:
    with pytest.raises(ConfigError) as refused:
        SFTSettings(**{name: value})  # type: ignore[arg-type]
    assert refused.value.place == f"sft.{name}"
