"""Gradients of demonstrations, and passes that change nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from engines.core.errors import ConfigError
from engines.grpo.engine.sft import accumulate, as_sample, token_losses
from engines.grpo.loss.loss import split_micro_batches
from engines.grpo.loss.sft_data import Demonstration, Example, tokenise_demonstration
from engines.grpo.settings import SFTSettings
from engines.policies.hf_local.model import LocalModel
from tests.engines.grpo.checkpoints import trained
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


def test_all_of_a_reply_is_learnt_but_what_nothing_predicts() -> None:
    shown = [example([5, 6], [7, 8, 9]), example([3], [4]), example([], [1, 2]), example([], [])]
    samples = [as_sample(each, 0) for each in shown]
    assert [(one.prompt, one.completion) for one in samples] == [
        ((5, 6), (7, 8, 9)),
        ((3,), (4,)),
        ((), (1, 2)),
        ((), ()),
    ]
    learnt = [one.trainable for one in samples]
    assert learnt == [(True, True, True), (True,), (False, True), ()]


def test_examples_share_a_pass_while_their_padded_size_fits() -> None:
    def passes(sizes: Sequence[int], limit: int) -> list[list[int]]:
        samples = [as_sample(example(range(n - 1), [0]), at) for at, n in enumerate(sizes)]
        return [[sizes[at] for at in part] for part in split_micro_batches(samples, None, limit)]

    assert passes([5, 8, 5, 8, 2], 16) == [[8, 8], [5, 5, 2]]
    assert len(passes([2] * 4, 1)) == 4


@pytest.mark.parametrize("family", ["llama", "qwen3", "mistral", "gemma2", "gemma3"])
def test_padded_examples_lose_what_plain_transformers_says_of_each_alone(
    family: str, tmp_path: Path
) -> None:
    local = trained(a_folder(tmp_path / "m", family))
    examples = the_examples(local)
    alone = []
    with torch.no_grad():
        together = token_losses(local, [as_sample(each, 0) for each in examples])
        for one in examples:
            ids = torch.tensor([[*one.prompt_ids, *one.token_ids]])
            logp = torch.log_softmax(local.model(ids).logits[0].float(), -1)
            n = len(one.prompt_ids)
            alone.append(-logp[n - 1 : -1].gather(1, ids[0, n:, None])[:, 0])
    assert (together - torch.cat(alone)).abs().max() < 1e-5
    assert together.std() > 0.1  # so it is no constant that is compared


def test_passes_do_not_change_loss_or_gradient(base: Path) -> None:
    ends = []
    for tokens in (8192, 100, 1):
        local = trained(base)
        found = accumulate(local, the_examples(local), forward_tokens=tokens)
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
        every = token_losses(local, [as_sample(each, 0) for each in examples])
    loss, tokens = accumulate(local, examples, forward_tokens=60)
    assert loss == pytest.approx(every.mean().item(), abs=1e-6)
    assert tokens == len(every) == sum(len(one.token_ids) for one in examples)


def test_a_prompt_gives_no_gradient_of_its_own(base: Path) -> None:
    local = trained(base)
    (one, *_) = the_examples(local)
    accumulate(local, [one], forward_tokens=8192)
    learnt = gradients(local)
    ids = torch.tensor([[*one.prompt_ids, *one.token_ids]])
    for _, parameter in local.trainable_parameters():
        parameter.grad = None
    logp = torch.log_softmax(local.model(ids).logits[0, :-1].float(), -1)
    shown = len(one.prompt_ids) - 1  # positions that predict a token of the prompt
    every = -logp.gather(1, ids[0, 1:, None])[:, 0]
    every[shown:].mean().backward()  # type: ignore[no-untyped-call]
    assert (gradients(local) - learnt).abs().max() < 1e-5 * learnt.abs().max()


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
