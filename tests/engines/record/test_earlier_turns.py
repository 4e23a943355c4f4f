"""Recorded calls are found whatever order they are made in, and each answers once."""

from __future__ import annotations

from dataclasses import replace

from engines.core.types import CallKey
from engines.record.ledger import EarlierTurns

TRY = CallKey("rollout", 1, 1, 0, 0)


def turn(n: int) -> CallKey:
    return replace(TRY, turn=n)


def earlier(*texts: str) -> EarlierTurns:
    made = EarlierTurns()
    for n, text in enumerate(texts):
        made.add(turn(n), f"{text}{n}")
    return made


def found(made: EarlierTurns, *texts: str) -> list[int]:
    """Under which turn each of these calls finds its reply; a new call under its own."""
    keys = []
    for n, text in enumerate(texts):
        key = made.find(turn(n), f"{text}{n}", lambda other, text=text: f"{text}{other.turn}")
        keys.append(key.turn)
    return keys


def test_in_their_order_all_are_found_under_their_own_turn() -> None:
    made = earlier("A", "B")
    assert found(made, "A", "B", "C") == [0, 1, 2]
    assert made.keeps_order(TRY)


def test_in_another_order_each_is_found_under_its_earlier_turn() -> None:
    made = earlier("A", "B", "C")
    assert found(made, "C", "A", "B") == [2, 0, 1]
    assert not made.keeps_order(TRY)


def test_equal_questions_keep_two_replies() -> None:
    assert found(earlier("B", "A", "A"), "A", "A", "B") == [1, 2, 0]
    assert found(earlier("B", "A"), "A", "A", "B") == [1, 100_001, 0]


def test_a_try_that_is_made_again_begins_with_all_of_them() -> None:
    made = earlier("A", "B")
    assert found(made, "A", "B") == found(made, "A", "B") == [0, 1]


def test_a_call_left_out_is_an_order_that_may_have_changed() -> None:
    made = earlier("A", "B", "C")
    assert found(made, "A", "D") == [0, 1]
    assert not made.keeps_order(TRY)
    assert EarlierTurns().keeps_order(TRY)
