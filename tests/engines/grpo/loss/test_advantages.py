"""How much better a rollout was than its siblings."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engines.grpo.loss.loss import group_advantages


def advantages(rewards: list[float], known: list[bool] | None = None, **how: object) -> list[float]:
    row = torch.tensor([rewards])
    seen = torch.tensor([known or [True] * len(rewards)])
    return group_advantages(row, seen, **how)[0].tolist()  # type: ignore[arg-type]


def test_one_winner_of_four_is_three_quarters_above_the_mean_unscaled() -> None:
    assert advantages([1, 0, 0, 0], scale="none") == [0.75, -0.25, -0.25, -0.25]


def test_scaled_advantages_are_divided_by_the_sample_deviation_and_eps() -> None:
    # Deviations .75, -.25, -.25, -.25: squares sum to .75, over n - 1 = 3 that is .25, root .5.
    assert advantages([1, 0, 0, 0], scale="std", eps=0.1) == pytest.approx(
        [0.75 / 0.6, *[-0.25 / 0.6] * 3]
    )
    assert advantages([1, 0, 0, 0])[0] == pytest.approx(0.75 / 0.5001)


def test_what_is_unknown_neither_gets_an_advantage_nor_moves_the_mean() -> None:
    found = advantages([1, 99, 0, math.nan], [True, False, True, False], scale="none")
    assert found == [0.5, 0.0, -0.5, 0.0]


@pytest.mark.parametrize("rewards", [[0.1] * 7, [0.7, 0.7, 0.7], [0.0, 0.0], [1.0]])
def test_equal_rewards_give_exactly_zero(rewards: list[float]) -> None:
    assert advantages(rewards) == [0.0] * len(rewards)


def test_groups_do_not_mix_and_one_without_any_reward_is_zero() -> None:
    rewards = torch.tensor([[1.0, 0.0], [5.0, 3.0], [9.0, 9.0]])
    known = torch.tensor([[True, True], [True, True], [False, False]])
    found = group_advantages(rewards, known, scale="none")
    assert found.tolist() == [[0.5, -0.5], [1.0, -1.0], [0.0, 0.0]]


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=8))
def test_the_advantages_of_a_group_sum_to_zero_and_are_finite(
    group: list[tuple[float, bool]],
) -> None:
    rewards = torch.tensor([[reward for reward, _ in group]], dtype=torch.float64)
    known = torch.tensor([[seen for _, seen in group]])
    for scale in ("std", "none"):
        found = group_advantages(rewards, known, scale=scale)  # type: ignore[arg-type]
        assert bool(found.isfinite().all())
        assert abs(float(found.sum())) < 1e-9
        assert not bool(found[~known].any())
