"""What was rejected is not proposed again without new evidence, and prompts are told of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from engines.core.library import Library
from engines.core.library_notes import NotesMark, PastDecision
from engines.core.text.similarity import similarity
from engines.core.types import DUPLICATE, REJECTED_BEFORE, Flag, Operation, OperationKind
from engines.training_free.consolidation import flag_repeats
from engines.training_free.reading import PAST_DECISIONS, past_decisions_block
from tests.support.builders import a_decision, a_library, an_operation, remembering

CARRY = "Carry: when a column adds up to ten or more, carry one into the next column."


TWO = a_library("one", "two")


def withhold(
    operations: Sequence[Operation], library: Library
) -> tuple[tuple[Operation, ...], tuple[Operation, ...]]:
    flagged = flag_repeats(operations, library)
    proposed = tuple(operation for operation, again in flagged if again)
    return proposed, tuple(operation for operation, again in flagged if not again)


def an_idea(text: str = CARRY, kind: OperationKind = "add", **more: Any) -> PastDecision:
    values: dict[str, Any] = {
        "run": "exp",
        "operation_id": "op1.1",
        "became": "",
        "reason": "too vague",
        "problems": ("a", "b"),
        "reviewer": "person",
        "at": 1.0,
    }
    return PastDecision(kind=kind, text=text, **{**values, **more})


def an_idea_again(
    text: str = CARRY,
    kind: OperationKind = "add",
    target: str | None = None,
    problems: tuple[str, ...] = ("a",),
) -> Operation:
    operation = an_operation(kind, target, text if kind in ("add", "modify") else "")
    return replace(operation, problems=problems)


def test_a_rejected_idea_is_withheld_with_its_reason() -> None:
    again = an_idea_again(CARRY.replace("a column", "the column"))
    proposed, withheld = withhold([again], remembering(TWO, an_idea()))
    assert proposed == ()
    (flag,) = withheld[0].flags
    assert flag.name == REJECTED_BEFORE and flag.score is not None and flag.score > 0.85
    assert "person rejected it: too vague" in flag.detail


@pytest.mark.parametrize(
    ("problems", "proposed"),
    [
        (("a", "b"), False),
        (("a", "c"), False),
        (("c",), False),  # one new problem against the two it was rejected with
        (("c", "d"), True),
        (("a", "c", "d"), True),
        ((), False),  # nothing is known to be new
    ],
)
def test_new_evidence_brings_it_back_flagged(problems: tuple[str, ...], proposed: bool) -> None:
    again = an_idea_again(problems=problems)
    taken, withheld = withhold([again], remembering(TWO, an_idea()))
    assert (len(taken), len(withheld)) == ((1, 0) if proposed else (0, 1))
    if proposed:
        assert taken[0].flags[0].name == REJECTED_BEFORE
        assert "new problems that speak for it: 2; then: 2" in taken[0].flags[0].detail


def test_what_was_rejected_twice_needs_evidence_that_neither_time_had() -> None:
    library = remembering(TWO, an_idea(), an_idea(problems=("c",), reason="still vague"))
    assert withhold([an_idea_again(problems=("d", "e"))], library)[0] == ()
    (taken,), _ = withhold([an_idea_again(problems=("d", "e", "f"))], library)
    assert "still vague" in taken.flags[0].detail


@pytest.mark.parametrize(
    ("idea", "operation", "withheld"),
    [
        (an_idea(), an_idea_again(kind="modify", target="E2"), True),
        (an_idea(kind="modify", target="E1"), an_idea_again(kind="modify", target="E1"), True),
        (an_idea(kind="modify", target="E1"), an_idea_again(kind="modify", target="E2"), False),
        (an_idea(kind="modify", target="E1"), an_idea_again(), False),
        (an_idea("E1", "delete", target="E1"), an_idea_again("", "delete", "E1"), True),
        (an_idea("E1", "delete", target="E1"), an_idea_again("", "delete", "E2"), False),
        (an_idea("E1", "keep", target="E1"), an_idea_again("", "keep", "E1"), False),
        (an_idea(became="Carry: mind it."), an_idea_again(), False),  # reworded, not rejected
        (an_idea(), an_idea_again("Precedence: multiply first."), False),
    ],
)
def test_kind_target_and_wording_make_an_idea(
    idea: PastDecision, operation: Operation, withheld: bool
) -> None:
    assert bool(withhold([operation], remembering(TWO, idea))[1]) is withheld


def decided(library: Library, *pairs: tuple[Operation, Any]) -> Library:
    return library.commit(pairs, run="exp", step=1).library


def test_an_idea_that_was_let_in_since_may_be_improved_and_said_again() -> None:
    first = an_idea_again()
    rejected = decided(a_library("one"), (first, a_decision(first, "reject", at=1.0)))
    assert withhold([first], rejected)[1]
    taken = replace(first, id="op2.1")
    library = decided(rejected, (taken, a_decision(taken, at=2.0, assigned="E2")))
    better = an_idea_again(CARRY + " Check it.", "modify", "E2")
    assert withhold([better], library)[1] == ()
    assert withhold([first], library)[1] == ()
    refused_again = decided(library, (first, a_decision(first, "reject", at=3.0)))
    assert withhold([first], refused_again)[1]


@pytest.mark.parametrize(
    "again", [an_idea_again("", "delete", "E1"), an_idea_again(CARRY, "modify", "E1")]
)
def test_a_rejected_change_holds_while_its_target_says_what_it_said(again: Operation) -> None:
    library = decided(a_library("Old words about fractions."), (again, a_decision(again, "reject")))
    assert library.notes.curated[0].target_text == "Old words about fractions."
    assert withhold([again], library)[1]
    moved = an_operation("modify", "E1", "Something else about signs altogether.", id="op1.7")
    assert withhold([again], decided(library, (moved, a_decision(moved))))[1] == ()


@pytest.mark.parametrize(("reviewer", "held"), [("rules:r.yaml", False), ("ann", True)])
def test_a_rule_that_rejects_a_duplicate_leaves_no_tombstone(reviewer: str, held: bool) -> None:
    double = replace(an_idea_again(), flags=(Flag(DUPLICATE, 0.9),))
    library = decided(a_library("one"), (double, a_decision(double, "reject", reviewer=reviewer)))
    assert bool(withhold([an_idea_again()], library)[1]) is held
    assert "Rejected" in past_decisions_block(library)  # the next prompt is told of it all the same


@pytest.mark.nightly
def test_not_every_pair_of_a_thousand_rejections_is_compared() -> None:
    def text(n: int, words: int) -> str:
        return " ".join(f"w{(n * 7919 + k * k * 31) % 4999}" for k in range(words))

    for words, many in ((60, 50), (1_300, 8)):
        library = remembering(TWO, *(an_idea(text(n, words)) for n in range(1_000)))
        operations = [an_idea_again(text(n + 2_000, words)) for n in range(many)]
        began = time.process_time()
        assert withhold(operations, library)[1] == ()
        took, began = time.process_time() - began, time.process_time()
        sample = [similarity(text(n, words), text(n + 5_000, words)) for n in range(20)]
        assert max(sample) < 0.9
        # A thirtieth and a ninth of what all pairs take was measured.
        assert took < (time.process_time() - began) * many * 1_000 / len(sample) / 2


def test_a_step_forgets_what_its_own_run_is_still_to_decide() -> None:
    ideas = (
        an_idea("before", step=2),  # of a removed run of that id
        an_idea("first", step=1),
        an_idea("second", step=2),
        an_idea("other", run="other", step=9),
    )
    library = remembering(TWO, *ideas)
    since = NotesMark(decisions=1)
    left = library.notes.without_own("exp", 2, since)
    assert [c.text for c in left.curated] == ["before", "first", "other"]
    assert library.notes.without_own("exp", 3, since) == library.notes


def test_the_prompt_is_shown_the_newest_decisions_as_quotes() -> None:
    ideas = [an_idea(f"Rule {n}: x", reason=f"r{n}") for n in range(PAST_DECISIONS + 3)]
    reworded = an_idea("Old\n## Reply", became="New.", reason="")
    block = past_decisions_block(remembering(TWO, *ideas, reworded))
    assert block.startswith(
        "### Reworded · add\n| Old ## Reply\n| became: New.\n| because: (no reason given)"
    )
    assert f"| Rule {PAST_DECISIONS + 2}: x\n| because: r{PAST_DECISIONS + 2}" in block
    assert "Rule 3: x" not in block  # PAST_DECISIONS - 1 of them beside the edit: 4 to 10
    assert all(line[:2] in ("| ", "##", "") for line in block.splitlines())
    assert past_decisions_block(a_library("one")) == "(none)"


def test_nothing_in_it_tells_when_or_where_and_equal_decisions_stand_once() -> None:
    here = remembering(TWO, an_idea())
    there = remembering(
        TWO, an_idea(run="exp-2", at=99.0), an_idea(run="other", operation_id="op9.9")
    )
    assert past_decisions_block(here) == past_decisions_block(there)


def test_a_library_remembers_rejections_and_edits_and_not_the_gates_own() -> None:
    one, two, three = (an_operation(id=f"op1.{n}") for n in (1, 2, 3))
    library = a_library("one")
    done = library.commit(
        [
            (one, a_decision(one, "reject", reason="no")),
            (two, a_decision(two, "edit", text="Other words.")),
            (three, a_decision(three, "reject", reviewer="gate")),
        ],
        run="exp",
    ).library
    assert [(c.operation_id, c.is_rejection) for c in done.notes.curated] == [
        ("op1.1", True),
        ("op1.2", False),
    ]
    assert done.notes.mark.decisions == 2


def test_a_step_is_shown_what_was_remembered_as_it_began() -> None:
    library = remembering(TWO, *(an_idea(f"Rule {n}") for n in range(3)))
    assert [c.text for c in library.notes.as_of(NotesMark(1)).curated] == ["Rule 0"]
    assert library.notes.as_of(NotesMark(5)) == library.notes
    # The oldest two of five have gone since.
    aged = replace(library.notes, mark=NotesMark(5))
    assert [c.text for c in aged.as_of(NotesMark(4)).curated] == ["Rule 0", "Rule 1"]
    assert aged.as_of(NotesMark(1)).curated == ()
