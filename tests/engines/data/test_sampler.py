"""The order in which a run meets its problems."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.data.sampler import Sampler

counts = st.integers(1, 40)


@given(n=counts, batch_size=counts, epochs=st.integers(1, 3), seed=st.integers(0, 99))
def test_every_epoch_meets_every_problem_once(
    n: int, batch_size: int, epochs: int, seed: int
) -> None:
    sampler = Sampler(n, batch_size, epochs, seed)
    for epoch in range(1, epochs + 1):
        steps = [s for s in range(1, sampler.total_steps + 1) if sampler.epoch_of(s) == epoch]
        met = [index for step in steps for index in sampler.batch(step)]
        assert len(steps) == sampler.steps_per_epoch
        assert sorted(met) == list(range(n))


def test_a_remainder_batch_is_kept() -> None:
    # 10 problems in batches of 4: 4 + 4 + 2, so 3 steps an epoch.
    sampler = Sampler(n=10, batch_size=4, epochs=2, seed=1)
    assert [len(sampler.batch(step)) for step in range(1, 7)] == [4, 4, 2, 4, 4, 2]
    assert [sampler.epoch_of(step) for step in range(7)] == [0, 1, 1, 1, 2, 2, 2]
    assert [step for step in range(1, 7) if sampler.ends_epoch(step)] == [3, 6]


def test_order_follows_from_seed_and_epoch_alone() -> None:
    short, long = Sampler(50, 8, 1, seed=5), Sampler(50, 50, 9, seed=5)
    assert short.order(1) == long.order(1) == Sampler(50, 3, 2, seed=5).order(1)
    assert len({long.order(epoch) for epoch in range(1, 10)}) == 9
    assert short.order(1) != Sampler(50, 8, 1, seed=6).order(1)


def test_a_shuffle_moves_problems_out_of_file_order() -> None:
    order = Sampler(100, 10, 1, seed=1).order(1)
    in_place = sum(index == position for position, index in enumerate(order))
    # A random permutation leaves one element in place on average.
    assert in_place < 10


def test_without_shuffle_the_order_is_the_files() -> None:
    sampler = Sampler(5, 2, 2, seed=1, shuffle=False)
    assert [sampler.batch(s) for s in range(1, 7)] == [(0, 1), (2, 3), (4,)] * 2


def test_truncation_takes_the_first_problems_and_then_shuffles() -> None:
    sampler = Sampler(100, 4, 1, seed=3, truncate=6)
    assert sampler.steps_per_epoch == 2
    assert sorted(sampler.order(1)) == [0, 1, 2, 3, 4, 5]
    assert sampler.order(1) != (0, 1, 2, 3, 4, 5)
    assert Sampler(3, 4, 1, seed=3, truncate=6).problems_per_epoch == 3


def test_a_grown_number_of_epochs_leaves_earlier_batches_alone() -> None:
    before, after = Sampler(10, 4, 2, seed=7), Sampler(10, 4, 5, seed=7)
    assert [before.batch(s) for s in range(1, 7)] == [after.batch(s) for s in range(1, 7)]


@pytest.mark.parametrize("step", [0, -1, 4])
def test_a_step_outside_the_run_is_refused(step: int) -> None:
    with pytest.raises(ValueError, match=f"step {step} is outside 1 to 3"):
        Sampler(10, 4, 1, seed=1).batch(step)


def test_counts_must_be_positive() -> None:
    with pytest.raises(ValueError, match="batch_size is 0"):
        Sampler(10, 0, 1, seed=1)
    with pytest.raises(ValueError, match="truncate is 0"):
        Sampler(10, 1, 1, seed=1, truncate=0)
