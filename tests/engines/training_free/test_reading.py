"""Which attempts of a group are shown to the reflector, and what is said of the others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engines.core.types import Group, Verdict
from engines.training_free.reading import (
    attempts_block,
    choose_attempts,
    cut_middle,
    library_before_text,
    rest_block,
    says_why,
    shown_attempts,
)
from tests.support.builders import a_group, a_library, a_problem


def criticised(group: Group, *critiques: str | None) -> Group:
    verdicts = (
        replace(v, critique=said) for v, said in zip(group.verdicts, critiques, strict=True)
    )
    return replace(group, verdicts=tuple(verdicts))


def test_two_winners_and_two_losers_of_different_answers_are_shown_the_shortest_first() -> None:
    texts = [
        "a long way to it\n#### 51",  # a winner with the same answer as a shorter one
        "right\nA: 51",
        "wrong, and at length\n#### 45",
        "wrong\n#### 45",
        "also wrong\n#### 46",
        "wrong again\n#### 47",
        "lost\n#### 45",
    ]
    group = a_group([1, 1, 0, 0, 0, 0, 0], texts=texts)
    group = criticised(group, None, None, "a", "b", "b", None, "b")
    shown, rest = choose_attempts(shown_attempts(group, True), 0.05)
    assert [one.index for one in shown] == [1, 4, 6]
    assert [one.index for one in rest] == [0, 2, 3, 5]
    assert rest_block(rest, shown) == (
        "\n\n## Attempts that are not shown\n\n"
        "| 1 more (0) · reward 1.00, ended with: 51\n"
        "| 1 more (2) · reward 0.00, ended with: 45\n| (verifier: a)\n"
        "| 1 more (3) · reward 0.00, ended with: 45\n"
        "| 1 more (5) · reward 0.00, ended with: 47"
    )


def test_attempts_that_ended_alike_are_counted_together() -> None:
    group = a_group([1, 0, 0, 0], texts=["#### 1", "#### 2", "so: #### 2", "by luck\n#### 2"])
    shown, rest = choose_attempts(shown_attempts(group, True), 0.05)
    assert [one.index for one in shown] == [0, 1, 2]
    assert "| 1 more (3) · reward 0.00, ended with: 2" in rest_block(rest, shown)
    assert rest_block((), shown) == ""


@pytest.mark.parametrize(("least", "chosen"), [(0.05, [0, 1, 3]), (0.0, [0, 1, 2])])
def test_a_small_difference_in_reward_parts_nobody(least: float, chosen: list[int]) -> None:
    """At 0.05 the first three are winners, of whom two are shown; at 0 only the first is one."""
    group = a_group([1.0, 0.98, 0.97, 0.3], texts=[f"#### {n}" for n in range(4)])
    shown, _ = choose_attempts(shown_attempts(group, True), least)
    assert [one.index for one in shown] == chosen


@pytest.mark.parametrize(
    ("rewards", "least", "outcome"),
    [
        ([1.0, 0.96], 0.05, "all-right"),
        ([1.0, 0.95], 0.05, "used"),
        ([0.30, 0.25], 0.05, "used"),
        ([0.5, 0.52], 0.05, "all-equal"),
        ([0.0, 0.02], 0.05, "all-wrong"),
        ([0.0, 0.02], 0.0, "used"),
    ],
)
def test_a_difference_below_the_least_is_no_contrast(
    rewards: list[float | None], least: float, outcome: str
) -> None:
    assert a_group(rewards).outcome_at(least) == outcome


def test_without_rewards_every_attempt_is_shown() -> None:
    group = a_group([None, None, None], texts=["#### 1", "#### 1", "#### 1"])
    shown, rest = choose_attempts(shown_attempts(group, False), 0.05)
    assert (len(shown), rest) == (3, ())


def test_a_critique_that_only_states_equality_is_left_out_and_any_other_is_kept() -> None:
    group = criticised(a_group([1, 1, 1, 0]), "4 + 1 == 5", "right by luck", "x == 3", "got 6")
    text = attempts_block(shown_attempts(group, True))
    assert "4 + 1 == 5" not in text
    for kept in ("(verifier: right by luck)", "(verifier: x == 3)", "(verifier: got 6)"):
        assert kept in text
    several = criticised(a_group([1]), "math: 5 == 5\nstyle: too long")
    assert attempts_block(shown_attempts(several, True)).endswith("| (verifier: style: too long)")


@pytest.mark.parametrize(
    ("answer", "critique", "says"),
    [
        ("5", None, True),
        (None, None, False),
        (None, "wrong", False),
        (None, "0/1: the answer is not correct.", False),
        (None, "the unit is missing", True),
    ],
)
def test_a_group_says_why_by_its_truth_or_by_more_than_a_verdict(
    answer: str | None, critique: str | None, says: bool
) -> None:
    group = a_group([0, 0], problem=a_problem(answer=answer))
    assert says_why(criticised(group, critique, critique)) is says


def test_a_cut_text_says_how_much_is_left_out_and_keeps_both_ends() -> None:
    text = "begin " + "x" * 20_000 + " end"
    cut = cut_middle(text, 900)
    assert cut.startswith("begin x") and cut.endswith("x end")
    assert "\n… 19,110 characters left out in the middle …\n" in cut
    assert len(cut) < 1000
    assert cut_middle("short", 3) == "short"  # telling of the cut would be longer


def test_it_is_said_which_experiences_stood_in_front_of_the_attempts() -> None:
    group, library = a_group([1, 0]), a_library("one", "two")

    def told(shown: tuple[str, ...] | None) -> str:
        rollouts = (replace(r, shown=shown) for r in group.rollouts)
        return library_before_text(replace(group, rollouts=tuple(rollouts)), library)

    assert told(None) == "The whole library stood in front of them."
    assert told(("E2",)) == "Of the library, E2 stood in front of them."
    assert told(()) == "Of the library, nothing stood in front of them."
    assert library_before_text(group, a_library()) == "No experience stood in front of them."


def test_verdicts_without_a_reward_are_not_shown() -> None:
    group = replace(a_group([1, 0]), verdicts=(Verdict(1.0), Verdict(None, error="timeout: 2 s")))
    assert [one.index for one in shown_attempts(group, True)] == [0]
