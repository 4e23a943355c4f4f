"""Which tokens are trained, with which advantage, and what is left out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engines.core.types import Turn
from engines.grpo.loss.loss import (
    Sample,
    collate,
    pad_samples,
    split_micro_batches,
    trajectory_samples,
)
from tests.engines.grpo.trainable import a_random_group, a_scored, a_try, a_turn


def test_one_turn_is_one_sequence_with_every_sampled_token_trained() -> None:
    (sample,) = trajectory_samples(a_try(a_turn([1, 2, 3], [4, 5])), 0.5, 0)
    assert (sample.prompt, sample.completion) == ((1, 2, 3), (4, 5))
    assert (sample.trainable, sample.advantages) == ((True, True), (0.5, 0.5))


def test_a_turn_that_goes_on_from_the_last_joins_its_sequence() -> None:
    rollout = a_try(a_turn([1, 2], [3, 4]), a_turn([1, 2, 3, 4, 70, 71], [5]))
    (sample,) = trajectory_samples(rollout, 2.0, 0)
    assert sample.prompt == (1, 2)
    assert sample.completion == (3, 4, 70, 71, 5)
    assert sample.trainable == (True, True, False, False, True)
    assert sample.advantages == (2.0, 2.0, 0.0, 0.0, 2.0)
    assert sample.sampled == (-5.0, -5.0, 0.0, 0.0, -5.0)


def test_a_rewritten_context_starts_a_sequence_of_its_own() -> None:
    """Named defect: only the first prompt is kept for multi-turn sequences."""
    rollout = a_try(a_turn([1, 2], [3, 4]), a_turn([1, 9, 3, 4, 70], [5]))
    first, second = trajectory_samples(rollout, 1.0, 0)
    assert (first.prompt, first.completion) == ((1, 2), (3, 4))
    assert (second.prompt, second.completion) == ((1, 9, 3, 4, 70), (5,))


def test_the_discount_counts_the_turns_that_were_still_to_come() -> None:
    rollout = a_try(a_turn([1], [2]), a_turn([1, 2, 7], [3]), a_turn([8], [4]))
    first, second = trajectory_samples(rollout, 1.0, 0, discount=0.5)
    assert first.advantages == (0.25, 0.0, 0.5)
    assert second.advantages == (1.0,)


def test_what_failed_or_was_not_judged_is_left_out_and_is_no_reward_of_zero() -> None:
    turn = a_turn([1, 2], [3, 4])
    tries = [
        a_try(turn, index=0),
        a_try(turn, index=1),
        a_try(turn, index=2),
        a_try(turn, index=3, status="failed"),
    ]
    made = collate([a_scored([1.0, 0.5, None, None], tries)], scale="none")
    assert [(s.rollout, s.advantages[0]) for s in made.samples] == [
        ("s1p0r0", 0.25),
        ("s1p0r1", -0.25),
    ]
    assert (made.sequences, made.tokens, made.left_out) == (2, 4, ())


def test_a_truncated_rollout_is_kept() -> None:
    tries = [a_try(a_turn([1], [2])), a_try(a_turn([1], [2] * 6), index=1, status="truncated")]
    made = collate([a_scored([1.0, 0.0], tries)])
    assert [len(sample.completion) for sample in made.samples] == [1, 6]


def test_groups_without_contrast_are_left_out_and_still_counted() -> None:
    groups = [a_random_group([1, 0], position=0), a_random_group([1, 1], position=1)]
    left = collate(groups)
    kept = collate(groups, keep_equal=True)
    assert {sample.group for sample in left.samples} == {0}
    assert {sample.group for sample in kept.samples} == {0, 1}
    assert (left.sequences, left.tokens) == (kept.sequences, kept.tokens)
    assert kept.tokens == sum(sample.tokens for sample in kept.samples)


def test_scores_that_were_processed_are_not_taken_for_the_policys_own() -> None:
    """Named defect: processed (top-p) scores used as policy log-probabilities.

    A sampler that processes its scores gives none; such a turn is left out, and it is said why.
    """
    bare = Turn((1, 2), (3, 4), ())
    tries = [a_try(a_turn([1], [2]), index=0), a_try(bare, index=1), a_try(index=2)]
    made = collate([a_scored([1.0, 0.0, 0.0], tries)])
    assert [sample.rollout for sample in made.samples] == ["s1p0r0"]
    assert [loss.where for loss in made.left_out] == ["s1p0r1", "s1p0r2"]
    assert "0 log-probabilities for 2 tokens" in made.left_out[0].reason
    assert "no token ids" in made.left_out[1].reason
    assert {loss.kind for loss in made.left_out} == {"update"}


def test_a_turn_that_was_shown_nothing_is_left_out() -> None:
    tries = [a_try(a_turn([], [2])), a_try(a_turn([1], [2]), index=1)]
    (loss,) = collate([a_scored([1.0, 0.0], tries)]).left_out
    assert "which ids it was shown" in loss.reason


def test_groups_of_unequal_size_are_each_centred_on_their_own() -> None:
    groups = [a_random_group([1, 0, 0, 0]), a_random_group([1, 0], position=1)]
    made = collate(groups, scale="none")
    assert [s.advantages[0] for s in made.samples] == [0.75, -0.25, -0.25, -0.25, 0.5, -0.5]


def a_sample(length: int, group: int = 0, prompt: tuple[int, ...] = (1, 2)) -> Sample:
    ones = (1.0,) * length
    return Sample(prompt, (7,) * length, (True,) * length, ones, ones, group, "")


def test_a_sequence_is_prompt_and_completion_without_a_gap() -> None:
    samples = [a_sample(2), a_sample(3), a_sample(1, 1, (5, 6, 7))]
    rows = pad_samples(samples, pad_id=0)
    assert rows.ids.tolist() == [[1, 2, 7, 7, 0], [1, 2, 7, 7, 7], [5, 6, 7, 7, 0]]
    assert rows.begins.tolist() == [2, 2, 3]
    assert rows.completions.tolist() == [[7, 7, 0], [7, 7, 7], [7, 0, 0]]
    assert rows.trainable.sum(1).tolist() == rows.lengths.tolist() == [2, 3, 1]


@pytest.mark.parametrize("rows", [None, 1, 2, 3, 5, 100])
def test_every_sample_is_in_exactly_one_part(rows: int | None) -> None:
    samples = [a_sample(length, group) for group in range(3) for length in (2, 5, 3)]
    parts = split_micro_batches(samples, rows, tokens=30)
    assert sorted(index for part in parts for index in part) == list(range(9))
    if rows is not None:
        assert max(map(len, parts)) <= rows
    if rows is None or rows >= 3:
        assert all(len({n // 3 for n in part}) * 3 == len(part) for part in parts)


def test_a_prompt_that_is_shared_counts_once_to_the_size_of_a_part() -> None:
    prompts = {group: tuple(range(group, group + 10)) for group in (0, 1)}
    samples = [a_sample(5, group, prompts[group]) for group in (0, 1) for _ in range(3)]
    # Two prompts of 10 and six completions of 5; without sharing, six sequences of 15.
    assert split_micro_batches(samples, None, 50, share=True) == [[0, 1, 2, 3, 4, 5]]
    assert split_micro_batches(samples, None, 49, share=True) == [[0, 1, 2], [3, 4, 5]]
    assert split_micro_batches(samples, None, 89) == [[0, 1, 2], [3, 4, 5]]
    assert split_micro_batches(samples, None, 90) == [[0, 1, 2, 3, 4, 5]]


def test_parts_hold_groups_of_like_length() -> None:
    samples = [a_sample(n, group) for group, n in enumerate((9, 1, 8, 2))]
    assert split_micro_batches(samples, 2, tokens=0) == [[0, 2], [3, 1]]


def test_nothing_to_train_on_gives_no_samples() -> None:
    made = collate([a_random_group([None, None]), a_random_group([1], position=1)])
    assert made.samples == ()
    assert collate([]).samples == ()


def test_an_empty_turn_of_a_trajectory_is_passed_over() -> None:
    rollout = a_try(a_turn([1], []), a_turn([1, 9], [3]))
    (sample,) = trajectory_samples(rollout, 1.0, 0, discount=0.5)
    assert (sample.prompt, sample.advantages) == ((1, 9), (1.0,))
    assert replace(sample, group=3).tokens == 1
