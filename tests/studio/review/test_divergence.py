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
from studio.review.line_text import evidence_lines

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
        format_changes(found.winner.words(said(winner), "new")),
        format_changes(found.loser.words(said(loser), "cut")),
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
        # The same figure of another sum is not the same result.
        ("It keeps 3 pens and 4 + 3 days: 9 / 1 = 9.\n2 * 5 = 10\nA: 10", "9 / 1 = 9"),
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


def test_an_equal_sum_is_another_step_where_one_side_notes_another_figure() -> None:
    winner = "7 + 9 = 16, write 6, carry 1.\n3 + 2 + 1 = 6\n#### 66"
    won, lost = parting("7 + 9 = 16, write 6.\n3 + 2 = 5\n#### 56", winner, "37 + 29?")
    assert (won, lost) == ("7 + 9 = 16, write 6{+, carry 1+}.", "7 + 9 = 16, write 6.")


BORROW = (
    "Step 1 (columns): write one below the other: 54 - 29.\n"
    "Step 2 (borrow): when the upper digit is smaller, borrow ten: 10 + 4 - 9 = 5, write 5.\n"
    "Step 3 (tens): take the lower digit from the upper one: 5 - 1 - 2 = 2, write 2.\n#### 25"
)
TURN = (
    "Step 1 (columns): write one below the other: 54 - 29.\n"
    "Step 2 (turn): take the smaller digit from the larger one: 9 - 4 = 5, write 5.\n"
    "Step 3 (tens): take the lower digit from the upper one: 5 - 2 = 3, write 3.\n#### 35"
)


@pytest.mark.parametrize(
    ("winner", "loser", "question", "steps"),
    [
        # Another method that happens to give the same digit is where they part.
        (BORROW, TURN, "Subtract 29 from 54.", ("10 + 4 - 9 = 5", "9 - 4 = 5")),
        (
            "Each of the 3 boxes holds 20 + 5 = 25 pens.\nSo 3 * 25 = 75.\nA: 75",
            "Each box holds 5 * 5 = 25 pens.\nSo 25 + 3 = 28.\nA: 28",
            "There are 3 boxes with 20 red and 5 blue pens each.",
            ("20 + 5 = 25", "5 * 5 = 25"),
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
        # In prose it is the operation that counts.
        (
            "We add 3 and 4 first. Then we have seven. The end is 7.",
            "We multiply 3 and 4 first. Then we have twelve. The end is 12.",
            "What are 3 and 4 together?",
            ("We add 3 and 4", "We multiply 3 and 4"),
        ),
        # One that stops early does so where it first says so.
        (
            "1. 35 + 4 = 39 apples.\n2. Then 39 - 7 = 32.\n#### 32",
            "1. 35 + 4 = 39 apples.\n2. The number that was reached is it: 39.\n#### 39",
            "Theo has 35 apples, buys 4 and gives 7 away.",
            ("39 - 7 = 32", "was reached is it: 39"),
        ),
    ],
)
def test_another_method_parts_and_other_words_do_not(
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
    assert "[-age of the bridge-]" in format_changes(found.loser.words(lost, "cut"))
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
    for step, text, kind in ((found.winner, one, "new"), (found.loser, other, "cut")):
        assert "".join(t for _, t in step.words(said(text), kind)) == text[step.start : step.end]  # type: ignore[arg-type]
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
