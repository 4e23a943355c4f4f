"""Where tries that call tools part: at a line of code, at what was made of a result, at no call."""

from __future__ import annotations

import json

import pytest

from engines.core.text.similarity import format_changes
from engines.core.types import Message, ToolCall
from studio.review.divergence import find_divergence, said_pieces
from studio.review.evidence import GroupEvidence
from studio.tui.drawing.lines import plain_text
from studio.tui.pages.review.view import evidence_rows

QUESTION = "How many primes below 100 end in 3?"
CODE = """def is_prime(n):
    if n < 2:
        return False
    for d in range(2, int(n ** 0.5) + 1):
        if n % d == 0:
            return False
    return True

# count them
found = [n for n in range(2, 100) if is_prime(n) and n % 10 == 3]
print(found)"""
FOUND = "[3, 13, 23, 43, 53, 73, 83]"
Turn = str | tuple[str, str, str]
"""A reply, or what is said, the code that is run, and what it prints."""


def a_trajectory(*turns: Turn) -> tuple[Message, ...]:
    said = [Message("user", QUESTION)]
    for number, turn in enumerate(turns):
        if isinstance(turn, str):
            said.append(Message("assistant", turn))
            continue
        text, code, result = turn
        call = ToolCall(f"c{number}", "python", json.dumps({"code": code}))
        said += [Message("assistant", text, "", (call,)), Message("tool", result)]
    return tuple(said)


WINNER = a_trajectory(("I count them.", CODE, FOUND), "The list has 7 numbers.\nANSWER: 7")


def parted(loser: tuple[Message, ...]) -> tuple[str, str, str, str]:
    """Keys of the steps of both sides, and their words."""
    won, lost = said_pieces(WINNER), said_pieces(loser)
    found = find_divergence(won, lost, QUESTION)
    assert found is not None
    ours, theirs = found.winner.words(won), found.loser.words(lost)
    return found.winner.key, found.loser.key, format_changes(ours), format_changes(theirs)


@pytest.mark.parametrize(
    ("old", "new", "shown"),
    [
        ("n % 10 == 3", "n % 3 == 0", "n % [-3-] == [-0]-]\nprint(found)"),
        ("0.5) + 1", "0.5)", "for d in range(2, int(n ** [-0.5)):-]\n        if n % d == 0:"),
        ("n < 2", "n <= 2", "if n [-<=-] 2:"),
        ("0.5) + 1", "0.5) - 1", "0.5) [---] 1"),
        ("print(found)", "prnt(found)", "[-prnt(found)-]"),
    ],
)
def test_code_parts_at_the_line_that_differs(old: str, new: str, shown: str) -> None:
    changed = CODE.replace(old, new).replace("# count them", "# another remark parts nobody")
    loser = a_trajectory(("I run a program to count.", changed, "[3]"), "It has 1.\nANSWER: 1")
    ours, theirs, _, words = parted(loser)
    assert (ours, theirs) == ("call1.0", "call1.0")
    assert shown in words and words.startswith("python\n")


def test_the_same_code_parts_at_what_was_made_of_its_result() -> None:
    loser = a_trajectory(("I count them.", CODE, FOUND), "The list has 8 numbers.\nANSWER: 8")
    ours, theirs, _, words = parted(loser)
    assert (ours, theirs) == ("answer3", "answer3") and words == "The list has [-8-] numbers."


def test_who_calls_no_tool_parts_from_the_call() -> None:
    loser = a_trajectory("The primes are 3, 13, 23, 33, 43, 53, 63, 73, 83 and 93.\nANSWER: 10")
    ours, theirs, won, _ = parted(loser)
    assert (ours, theirs) == ("call1.0", "answer1")
    assert won.startswith("{+python\ndef is_prime(n):+}")


def test_review_shows_the_step_as_lines_of_code() -> None:
    loser = a_trajectory(("I count them.", CODE.replace("10 == 3", "3 == 0"), "[3]"), "ANSWER: 1")
    won, lost = said_pieces(WINNER), said_pieces(loser)
    found = find_divergence(won, lost, QUESTION)
    assert found is not None
    parting = (
        ("+", "s1p0r0", found.winner.words(won)),
        ("-", "s1p0r1", found.loser.words(lost)),
    )
    group = GroupEvidence("s1p0", QUESTION, 1, 2, (), parting)
    rows = [plain_text(row.line).rstrip() for row in evidence_rows([group], 80)]
    at = next(n for n, row in enumerate(rows) if "r1 parts: " in row)
    assert rows[at : at + 7] == [
        " - r1 parts: python",
        "             …",
        "                 return True",
        "             # count them",
        "             found = [n for n in range(2, 100) if is_prime(n) and n % [-3-] ==",
        "             [-0]-]",
        "             print(found)",
    ]
