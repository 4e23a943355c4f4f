"""The step and the words at which a winner and a loser part."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.core.text.similarity import format_changes
from engines.core.types import Message, ToolCall
from studio.review.divergence import Piece, choose_pair, find_divergence, said_pieces
from studio.review.evidence import GroupEvidence, PartingWords
from studio.review.wording import evidence_lines

QUESTION = "A shop sells 16 pens a day for 2 dollars. It keeps 3 and gives 4 away. What comes in?"
WINNER = (
    "It keeps 3 + 4 = 7 pens.\nIt sells 16 - 7 = 9 pens.\nSo 9 * 2 = 18 dollars come in.\nA: 18"
)


def said(text: str) -> list[Piece]:
    return [("answer0", text)]


def parting(loser: str, winner: str = WINNER, question: str = QUESTION) -> tuple[str, str]:
    """Both steps with what differs marked: of the winner, then of the loser."""
    found = find_divergence(said(winner), said(loser), question)
    assert found is not None
    return (
        format_changes(found.winner.words(said(winner))),
        format_changes(found.loser.words(said(loser))),
    )


@pytest.mark.parametrize(
    ("loser", "step"),
    [
        ("Keeps 3 + 4 = 7 pens.\nSells 16 * 7 = 112 pens.\n112 * 2 = 224\nA: 224", "16 * 7 = 112"),
        ("It keeps 3 pens: 16 - 3 = 13 are sold.\n13 * 2 = 26\nA: 26", "16 - 3 = 13"),
        # One that only stops early parts at its end.
        ("It keeps 3 + 4 = 7 pens.\nIt sells 16 - 7 = 9 pens.\nA: 9", "A: 9"),
        # Numbering, blanks, a restated question and another order are no difference.
        (
            "A shop sells 16 pens a day for 2 dollars.\n\n1. It  keeps **3 + 4 = 7** pens\n"
            "2) sells 16 - 7 = 9 pens.\n\n- So 9 * 3 = 27 dollars.\nA: 27",
            "9 * 3 = 27",
        ),
        # Another way to a result that both reach does no harm.
        (
            "16 - 3 = 13 pens.\n13 - 4 = 9 pens it sells.\nSo 9 + 2 = 11 dollars.\nA: 11",
            "9 + 2 = 11",
        ),
        # A result that both have says nothing of a step that did not lead to it.
        ("16 * 2 = 32 dollars.\nIt keeps 3 + 4 = 7 pens.\n32 - 7 = 25\nA: 25", "16 * 2 = 32"),
    ],
)
def test_the_step_is_the_one_a_person_would_point_at(loser: str, step: str) -> None:
    shown = parting(loser)[1]
    plain = shown.replace("[-", "").replace("-]", "")
    assert step in " ".join(plain.split()), shown


def test_what_differs_is_marked_on_either_side_and_nothing_else() -> None:
    won, lost = parting(WINNER.replace("16 - 7 = 9", "16 + 7 = 23").replace("9 * 2 = 18", "46"))
    assert (won, lost) == (
        "It sells 16 {+-+} 7 = {+9+} pens.",
        "It sells 16 [-+-] 7 = [-23-] pens.",
    )


@pytest.mark.parametrize(
    ("winner", "loser", "question", "steps"),
    [
        # A digit that other numbers happen to give is another step.
        (
            "Borrow ten: 10 + 4 - 6 = 8, write 8.\nThen the tens: 8 - 1 - 5 = 2.\n#### 28",
            "Turn them round: 6 - 4 = 2.\nThe upper ones: 8 - 5 = 3.\n#### 32",
            "How much is 84 minus 56?",
            ("10 + 4 - 6 = 8", "6 - 4 = 2"),
        ),
        # The same calculation in other words, signs, order and pieces is no difference.
        (
            "First we take 40 minus 16, which is 24.\nHalf of them: 24 / 2 = 12.\nA: 12",
            "1. Apples left: \\(40 - 16 = 24\\)\n2. \\(24 \\times 0.5 = 12\\) of them\n"
            "3. \\(12 + 3 = 15\\)\nThe answer is \\boxed{15}.",
            "Of 40 apples 16 are gone. What is half of the others?",
            ("A: 12", "12 + 3 = 15"),
        ),
        (
            "\\[\\frac{48}{2} = 24\\]\n\\[48 + 24 = 72\\]\n72",
            "She sold 48/2 = 24 clips in May.\nAltogether 24 * 48 = 1152.\n1152",
            "She sold 48 clips in April and half as many in May.",
            ("48 + 24 = 72", "24 * 48 = 1152"),
        ),
        # A step put in is no difference where it leads to what both have.
        (
            "16 pens - 3 pens - 4 pens = 9 pens.\n9 * 2 = 18\nA: 18",
            "3 + 4 = 7 pens go.\nThere are 16 - 7 = 9 pens left.\nNow 9 / 2 = 4.5\nA: 4.5",
            QUESTION,
            ("9 * 2 = 18", "9 / 2 = 4.5"),
        ),
        # One that stops early parts at its end.
        (
            "1. 35 + 4 = 39 apples.\n2. Then 39 - 7 = 32.\n#### 32",
            "1. 35 + 4 = 39 apples.\n2. The number that was reached is it: 39.\n#### 39",
            "Theo has 35 apples, buys 4 and gives 7 away.",
            ("39 - 7 = 32", "#### 39"),
        ),
    ],
)
def test_other_words_part_nobody(
    winner: str, loser: str, question: str, steps: tuple[str, str]
) -> None:
    found = find_divergence(said(winner), said(loser), question)
    assert found is not None
    for text, part, step in zip((winner, loser), (found.winner, found.loser), steps, strict=True):
        assert step in text[part.start : part.end]


def test_harmless_steps_in_another_order_part_nobody() -> None:
    winner = "Open the box first.\nThen count the red balls.\nThen count the blue balls.\nAdd both."
    loser = "Then count the blue balls.\nThen count the red balls.\nOpen the box first.\nMultiply."
    found = find_divergence(said(winner), said(loser))
    assert found is not None and loser[found.loser.start : found.loser.end] == "Multiply."


def test_trajectories_part_at_the_call_and_not_at_what_it_brought() -> None:
    def trajectory(query: str, result: str, answer: str) -> tuple[Message, ...]:
        look = ToolCall("1", "list", '{"folder": "docs"}')
        call = ToolCall("2", "search", f'{{"query": "{query}"}}')
        return (
            Message("user", "How high is it?"),
            Message("assistant", "", tool_calls=(look,)),
            Message("tool", "a.txt\nb.txt"),
            Message("assistant", "I search.", "Think of the name.", tool_calls=(call,)),
            Message("tool", result),
            Message("assistant", answer),
        )

    won = said_pieces(trajectory("height of the tower in metres", "It is 330 m.", "330"))
    lost = said_pieces(trajectory("age of the bridge", "It is 120 years.", "120"))
    found = find_divergence(won, lost, "How high is it?")
    assert found is not None and (found.winner.key, found.loser.key) == ("call3.0", "call3.0")
    assert "search [-age-] of the [-bridge-]" in format_changes(found.loser.words(lost))
    same = said_pieces(trajectory("height in metres of the tower", "It is 930 m.", "930"))
    found = find_divergence(won, same, "How high is it?")
    assert found is not None and found.loser.key == "tool4"


def test_the_pair_is_the_one_that_parts_latest_whatever_the_order_of_others() -> None:
    late = WINNER.replace("9 * 2 = 18", "9 * 3 = 27").replace("A: 18", "A: 27")
    losers = {"r1": said("16 * 2 = 32\nA: 32"), "r2": said(late), "r5": []}
    found = choose_pair({"r0": said("No idea, 18.")} | {"r3": said(WINNER)}, losers, QUESTION)
    assert found is not None and found[:2] == ("r3", "r2")
    assert choose_pair({"r0": said(WINNER)}, {}, QUESTION) is None
    assert choose_pair({"r0": []}, losers, QUESTION) is None


@settings(derandomize=True, max_examples=80, deadline=None)
@given(st.text(max_size=120), st.text(max_size=120), st.text(max_size=20))
def test_any_texts_part_somewhere_in_them(one: str, other: str, question: str) -> None:
    found = find_divergence(said(one), said(other), question)
    if found is None:
        return
    for step, text in ((found.winner, one), (found.loser, other)):
        assert "".join(t for _, t in step.words(said(text))) == text[step.start : step.end]
        assert all(step.start <= a < b <= step.end for a, b in step.marked)


def test_long_texts_cost_a_bounded_time() -> None:
    long = "\n".join(
        f"Step {n}: {n} + {n * 7} = {n * 8} things of some kind." for n in range(9_000)
    )
    other = long.replace("8", "9")
    before = time.process_time()
    found = choose_pair({f"r{n}": said(long) for n in range(9)}, {"r9": said(other)}, "")
    assert found is not None and time.process_time() - before < 5


def test_line_mode_prints_the_two_steps_below_the_rollouts() -> None:
    won: PartingWords = "+", "s1p0r1", (("same", "9 "), ("new", "* 2"))
    lost: PartingWords = "-", "s1p0r0", (("same", "9 "), ("cut", "* 3"))
    lines = evidence_lines(GroupEvidence("s1p0", "How many?", 1, 2, (), (won, lost)))
    assert [line.strip() for line in lines[1:]] == [
        "+ r1  parts here: 9 {+* 2+}",
        "- r0  parts here: 9 [-* 3-]",
    ]
