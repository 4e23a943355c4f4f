"""What a text cites, and what it says without that."""

from __future__ import annotations

import time

import pytest

from engines.core.text.citations import (
    cited_experiences,
    find_cited_ids,
    guidance_ids,
    without_citations,
)
from engines.core.types import Message
from tests.support.builders import a_library

IDS = ("E1", "E3", "units")


@pytest.mark.parametrize(
    ("said", "judged"),
    [
        ("#### 42 [E3]", "#### 42"),
        ("#### 42 [E1, E3]", "#### 42"),
        ("\\boxed{42 [E3]}", "\\boxed{42}"),
        ("Answer: Paris (by [E1] and [E3])", "Answer: Paris"),
        ("A: 42 (see [units])", "A: 42"),
        ("By [E1] carry [E3].\n42", "By carry.\n42"),
        ("(so 42 [E3])", "(so 42)"),
        ("[E9] stays, [1, 2] and f(x)[0] too", "[E9] stays, [1, 2] and f(x)[0] too"),
        ("[E1, E9] is no citation", "[E1, E9] is no citation"),
        ("print() (a)", "print() (a)"),
        ("42[E3]", "42"),
        ("\\boxed{[E1] 42}", "\\boxed{ 42}"),
        # Answers that look like one
        ("The group is \\boxed{[E1]}", "The group is \\boxed{[E1]}"),
        ("\\sqrt[E1]{2}", "\\sqrt[E1]{2}"),
        ("[E1]", "[E1]"),
        ("```python\nrows[E1] + f([E3])\n``` [E1]", "```python\nrows[E1] + f([E3])\n```"),
        ("~~~\nrows[E1]\n~~~\n`rows[E1]` [E1]", "~~~\nrows[E1]\n~~~\n`rows[E1]`"),
        ("```\nx = [E1]\nreturn [E1, E3]\n```", "```\nx = [E1]\nreturn [E1, E3]\n```"),
        ("```\n42 [E1]\n```", "```\n42\n```"),
        ("it`s 42[E3]", "it`s 42"),
        ("#### 42 `[E1]`", "#### 42 ``"),
        ("```python\nprint(1)  # by [E1]\n```", "```python\nprint(1)  # by\n```"),
    ],
)
def test_an_answer_is_read_without_its_citations(said: str, judged: str) -> None:
    assert without_citations(said, IDS) == judged
    # What is journalled are the ids that it cites: they alone give the same text again.
    cited = [name for name in IDS if name in find_cited_ids(said)]
    assert without_citations(said, cited) == judged


def test_nothing_is_taken_away_where_no_experience_was_shown() -> None:
    assert without_citations("#### 42 [E3]", ()) == "#### 42 [E3]"


def test_only_the_agents_own_words_cite() -> None:
    messages = [
        Message("system", "[E1] Carry."),
        Message("assistant", "by [E3]", reasoning="as [units] says"),
        Message("tool", "[E1]"),
    ]
    assert cited_experiences(messages, IDS) == ("E3", "units")


def test_the_ids_in_a_prompt_are_those_of_its_block() -> None:
    library = a_library("see [E7] first", "[E9] too")
    assert guidance_ids(library.guidance(cite=True)) == ("E1", "E2")
    assert guidance_ids("") == ()


def test_a_hostile_text_costs_linear_time() -> None:
    began = time.process_time()
    for piece in ("[", "[a", "(a ", "(a [", " \t", "([E1]", "(by [E1] and ", "`", "~~~ ", "```"):
        without_citations(piece * (400_000 // len(piece)), IDS)
    assert time.process_time() - began < 5
