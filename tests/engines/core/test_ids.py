"""Hashes and seeds follow from their parts alone."""

from __future__ import annotations

from dataclasses import replace

from engines.core.codec import call_seed, digest, seed_for
from engines.core.types import CallKey, Usage, group_id, operation_id, rollout_id

KEY = CallKey(purpose="rollout", epoch=1, step=2, position=3, index=4, turn=0)


def test_a_digest_does_not_depend_on_the_order_of_keys() -> None:
    assert digest({"a": 1, "b": [2]}) == digest({"b": [2], "a": 1}) != digest({"a": 1, "b": [3]})
    assert len(digest({}, 8)) == 16  # hex digits


def test_every_part_of_a_key_and_the_run_change_the_seed() -> None:
    others = [
        replace(KEY, purpose="judge"),
        replace(KEY, epoch=2),
        replace(KEY, step=3),
        replace(KEY, position=4),
        replace(KEY, index=5),
        replace(KEY, turn=1),
    ]
    seeds = {call_seed(1, key) for key in [KEY, *others]} | {call_seed(2, KEY)}
    assert len(seeds) == 8
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_parts_are_kept_apart() -> None:
    assert seed_for(1, "a", "b") != seed_for(1, "ab") != seed_for(1, "", "ab")
    assert seed_for(1, 1, 2) != seed_for(1, 12)


def test_evaluations_before_and_after_a_step_draw_the_same_seeds() -> None:
    before = CallKey("evaluation", 0, 0, 3, 4, problem="p1")
    assert call_seed(1, before) == call_seed(1, replace(before, step=9))
    assert call_seed(1, before) == call_seed(1, replace(before, position=7))
    assert call_seed(1, before) != call_seed(1, replace(before, problem="p2"))


def test_ids_are_made_of_step_position_and_index() -> None:
    assert (group_id(2, 3), rollout_id(2, 3, 4), operation_id(2, 1)) == ("s2p3", "s2p3r4", "op2.1")


def test_a_cost_stays_unknown_as_soon_as_one_part_of_it_is() -> None:
    known, unknown = Usage(1, 1, 1, 0.5), Usage(1, 1, 1)
    assert (known + known).cost_usd == 1.0
    assert (known + unknown).cost_usd is None
    assert (Usage() + known).cost_usd == 0.5  # no call, no unknown cost
