"""What each token contributes, and what it is averaged over."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from engines.grpo.loss.loss import aggregate, token_losses

CLIPS: dict[str, Any] = {"clip_low": 0.2, "clip_high": 0.28}
LOSSES = torch.tensor([[1.0, 2.0, 3.0], [4.0, 0.0, 0.0]])
TRAINABLE = torch.tensor([[True, True, True], [True, False, False]])


def a_loss(ratio: float, advantage: float, ref: float | None = None, beta: float = 0.0) -> float:
    logp = torch.tensor([[math.log(ratio)]], dtype=torch.float64)
    reference = None if ref is None else torch.tensor([[ref]], dtype=torch.float64)
    found, _ = token_losses(
        logp,
        torch.zeros_like(logp),
        reference,
        torch.tensor([advantage]).double(),
        beta=beta,
        **CLIPS,
    )
    return float(found)


def test_gains_end_at_the_two_bounds_and_losses_do_not() -> None:
    assert a_loss(1.1, 2.0) == pytest.approx(-2.2)
    assert a_loss(1.5, 2.0) == pytest.approx(-2.56)  # 1.28 · 2: nothing more to gain above
    assert a_loss(0.5, 2.0) == pytest.approx(-1.0)  # worse than the bound: kept
    assert a_loss(0.5, -2.0) == pytest.approx(1.6)  # 0.8 · 2: nothing more to gain below
    assert a_loss(1.5, -2.0) == pytest.approx(3.0)


def test_a_clipped_token_has_no_gradient() -> None:
    logp = torch.log(torch.tensor([[1.5, 1.1, 0.5, 0.9]])).requires_grad_()
    advantages = torch.tensor([[1.0, 1.0, -1.0, -1.0]])
    losses, stats = token_losses(logp, torch.zeros(1, 4), None, advantages, beta=0.0, **CLIPS)
    losses.sum().backward()
    assert logp.grad is not None
    assert [abs(g) > 0 for g in logp.grad[0].tolist()] == [False, True, False, True]
    assert (int(stats.clipped_low), int(stats.clipped_high), int(stats.tokens)) == (1, 1, 4)
    assert float(stats.ratio_max) == pytest.approx(1.5)


def test_the_kl_estimate_is_k3_times_the_ratio() -> None:
    # logp = ln 1.1 and ref = ln 1.1 + 0.5: k3 = e^0.5 - 0.5 - 1; times ratio 1.1 and beta 0.1.
    k3 = math.exp(0.5) - 1.5
    found = a_loss(1.1, 1.0, ref=math.log(1.1) + 0.5, beta=0.1)
    assert found == pytest.approx(-1.1 + 0.1 * k3 * 1.1)


def test_the_kl_term_pulls_towards_the_reference() -> None:
    """A signed log-ratio as a loss would have gradient 1 everywhere, and 0 in expectation."""
    logits = torch.tensor([2.0, 0.0, 0.0], dtype=torch.float64, requires_grad=True)
    logps = torch.log_softmax(logits, 0)
    ref = torch.log_softmax(torch.zeros(3, dtype=torch.float64), 0)
    losses, _ = token_losses(
        logps[:, None], None, ref[:, None], torch.zeros(3).double(), beta=1.0, **CLIPS
    )
    (losses[:, 0] * logps.detach().exp()).sum().backward()  # the exact expectation
    assert logits.grad is not None
    expected = torch.autograd.functional.jacobian(
        lambda x: (torch.softmax(x, 0) * (torch.log_softmax(x, 0) - ref)).sum(),
        logits.detach(),
    )
    torch.testing.assert_close(logits.grad, expected)


def test_without_old_log_probabilities_the_gradient_is_that_of_ratio_one() -> None:
    logp = torch.tensor([[-1.0, -3.0]], requires_grad=True)
    losses, stats = token_losses(logp, None, None, torch.tensor([2.0]), beta=0.0, **CLIPS)
    losses.sum().backward()
    assert losses.tolist() == [[-2.0, -2.0]]
    assert logp.grad is not None
    assert logp.grad.tolist() == [[-2.0, -2.0]]
    assert float(stats.ratio_max) == 1.0


def test_masked_positions_may_hold_anything_and_get_zero_gradient() -> None:
    """A padded -1e4 against 0 would be inf · 0, which is no number."""
    logp = torch.tensor([[-1.0, 1e4, -1e4, math.inf]], requires_grad=True)
    old = torch.tensor([[-1.0, -1e4, 1e4, 0.0]])
    ref = torch.tensor([[-1.0, 1e4, -1e4, -math.inf]])
    trainable = torch.tensor([[True, False, False, False]])
    losses, stats = token_losses(
        logp, old, ref, torch.tensor([1.0]), beta=0.04, trainable=trainable, **CLIPS
    )
    losses.sum().backward()
    assert losses.tolist() == [[-1.0, 0.0, 0.0, 0.0]]
    assert logp.grad is not None
    assert logp.grad[0].tolist() == [-1.0, 0.0, 0.0, 0.0]
    assert (float(stats.kl), float(stats.ratio_max), int(stats.tokens)) == (0.0, 1.0, 1)


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("grpo", (2.0 + 4.0) / 2),  # means 2 and 4 of the two sequences
        ("bnpo", 10 / 4),
        ("dapo", 10 / 4),
        ("dr_grpo", 10 / (2 * 5)),
    ],
)
def test_each_aggregation_averages_over_what_it_says(how: Any, expected: float) -> None:
    found = aggregate(LOSSES, TRAINABLE, how, max_completion_tokens=5)
    assert float(found) == pytest.approx(expected)


@pytest.mark.parametrize(("how", "whole"), [("grpo", 2), ("bnpo", 4), ("dapo", 4), ("dr_grpo", 2)])
def test_parts_with_the_normaliser_of_the_whole_add_up(how: Any, whole: float) -> None:
    def part(losses: Tensor, trainable: Tensor, normaliser: float | None) -> float:
        return float(
            aggregate(losses, trainable, how, max_completion_tokens=5, normaliser=normaliser)
        )

    parts = sum(part(LOSSES[n : n + 1], TRAINABLE[n : n + 1], whole) for n in range(2))
    assert parts == pytest.approx(part(LOSSES, TRAINABLE, None))


def test_a_long_wrong_answer_does_not_outweigh_a_short_right_one() -> None:
    """Named defect: summed log-probabilities without length control.

    With sums, 100 tokens of advantage -1 pull a hundred times as hard as 1 token of +1.
    """
    losses = torch.zeros(2, 100)
    losses[0, 0], losses[1] = -1.0, 1.0
    trainable = torch.zeros(2, 100, dtype=torch.bool)
    trainable[0, 0], trainable[1] = True, True
    assert float(aggregate(losses, trainable, "grpo")) == 0.0
    assert abs(float(aggregate(losses, trainable, "dapo"))) <= 1.0


def test_dr_grpo_without_a_length_to_divide_by_is_refused() -> None:
    with pytest.raises(ValueError, match="max_completion_tokens"):
        aggregate(LOSSES, TRAINABLE, "dr_grpo")
