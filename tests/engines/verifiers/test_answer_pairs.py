"""Answers as models write them: what is judged right, and that nothing wrong is."""

from __future__ import annotations

import pytest

from engines.core.types import Problem
from engines.verifiers.answers import MathVerifier, TextSettings, TextVerifier, choose_option
from engines.verifiers.open import open_verifier
from engines.verifiers.stated_answer import strip_thoughts
from tests.bench.verify import a_rollout, rewards_of
from tests.engines.verifiers.answer_pairs import (
    ALIKE,
    CHOICE_PAIRS,
    CITIES,
    EQUAL,
    PAIRS,
)

RIGHT_SHARE = 0.96


async def test_answers_as_models_write_them_are_judged_right_and_no_wrong_one_is() -> None:
    verifier = MathVerifier()
    rewards = await rewards_of(verifier, PAIRS)
    await verifier.aclose()
    wrong = [
        (pair, reward)
        for pair, reward in zip(PAIRS, rewards, strict=True)
        if reward != float(pair[2])
    ]
    assert len(EQUAL) >= 90 and len(ALIKE) >= 60
    assert [pair for pair, reward in wrong if reward == 1.0] == []
    assert len(wrong) <= (1 - RIGHT_SHARE) * len(PAIRS), wrong


def a_choice(options: dict[str, str], answer: str) -> Problem:
    return Problem("p", "q", answer, meta={"lettered_options": options})


async def test_a_choice_is_read_by_letter_or_text_and_two_options_are_none() -> None:
    verifier = open_verifier("choice")
    wrong = []
    for options, answer, reply, right in CHOICE_PAIRS:
        (verdict,) = await verifier.verify(a_choice(options, answer), [a_rollout(reply)])
        if verdict.reward != float(right):
            wrong.append((answer, reply, verdict))
    assert [one for one in wrong if one[2].reward == 1.0] == []
    assert len(wrong) <= (1 - RIGHT_SHARE) * len(CHOICE_PAIRS), wrong


async def test_math_and_text_judge_a_problem_with_options_as_a_choice() -> None:
    replies = [a_rollout(text) for text in ("Answer: Paris", "(B)", "Rome", "A or B")]
    for verifier in (MathVerifier(), TextVerifier(), TextVerifier(TextSettings(mode="choice"))):
        verdicts = await verifier.verify(a_choice(CITIES, "B"), replies)
        await verifier.aclose()
        assert [v.reward for v in verdicts] == [1.0, 1.0, 0.0, 0.0]
        assert [v.critique for v in verdicts[:1]] == ["chose B"]
        assert verdicts[2].critique == "expected B. Paris, got A"


async def test_without_options_or_an_answer_a_choice_is_unjudged() -> None:
    verifier = open_verifier("choice")
    (plain,) = await verifier.verify(Problem("p", "q", "B"), [a_rollout("B")])
    assert plain.reward is None and "no options" in str(plain.error)
    unknown = Problem("p", "q", None, meta={"lettered_options": CITIES})
    (verdict,) = await verifier.verify(unknown, [a_rollout("B")])
    assert verdict.reward is None


@pytest.mark.parametrize(
    ("response", "rest"),
    [
        ("<think>a</think>b", "b"),
        ("a <THINK>b</THINK> c", "a  c"),
        ("a\n</think>\nb", "\nb"),  # the prompt had opened it
        ("a <think>b", "a "),  # cut
        ("<think>a</think>b<think>c</think>d", "bd"),
        ("[THINK]a[/THINK]b", "b"),
        ("write `<think>` first", "write `<think>` first"),
    ],
)
def test_a_thought_is_left_out_however_it_is_marked(response: str, rest: str) -> None:
    assert strip_thoughts(response) == rest


@pytest.mark.parametrize("text", ["((,;", "not ", "(A) ", "Paris, ", "<think>", "1 2/3 ", "```a\n"])
def test_reading_a_hostile_choice_is_no_work_that_grows_with_its_square(text: str) -> None:
    # A pattern that backtracks would need minutes here.
    assert choose_option(text * (20_000 // len(text)), CITIES) in (None, "A", "B")
