"""A mended reply: the same parser, evidence from the numbers it names, nothing twice."""

from __future__ import annotations

import json

import pytest

from engines.core.text.reply import MAX_REPLY_CHARS
from engines.core.types import (
    Decision,
    Operation,
    UnparsedReply,
    operation_id,
    resubmitted_operation_id,
)
from engines.training_free.consolidation import ReplyOrigin, read_resubmission
from studio.session.unparsed_replies import with_comments, without_comments
from tests.support.builders import a_library

LIBRARY = a_library("one", "two")
GROUP = UnparsedReply("s2p3", 2, "extraction", ("no JSON array was found in it.",), "hm")
LESSON = UnparsedReply("s2", 2, "consolidation", ("its JSON is not valid.",), "[{")
ATTEMPTS = ReplyOrigin(
    {0: ("s2p3r0",), 2: ("s2p3r2",)},
    {"s2p3r0": "p3", "s2p3r2": "p3"},
    "m-7b",
    "abc",
    {("add", None, "known"): "it was understood the first time"},
)
PROPOSALS = ReplyOrigin(
    {1: ("s2p0r0", "s2p0r1"), 2: ("s2p1r0", "s2p0r1")},
    {"s2p0r0": "a", "s2p0r1": "a", "s2p1r0": "b"},
    "m-7b",
    "def",
    {},
)


def rows(*objects: dict[str, object]) -> str:
    return json.dumps(objects)


def test_a_mended_group_names_its_rollouts_problem_author_prompt_and_who_mended_it() -> None:
    text = rows({"operation": "add", "experience": "new", "reason": "so", "attempts": [2]})
    (operation,) = read_resubmission(GROUP, text, LIBRARY, ATTEMPTS, "ann").operations
    assert (operation.id, operation.kind, operation.text) == ("op2.p3.1", "add", "new")
    assert (operation.evidence, operation.problems) == (("s2p3r2",), ("p3",))
    assert (operation.proposer, operation.prompt_hash) == ("m-7b", "abc")
    assert operation.rationale == "so (mended by ann)"


def test_a_mended_consolidation_rests_on_the_rollouts_of_the_proposals_it_names() -> None:
    text = rows({"operation": "modify", "id": "E2", "experience": "2nd", "proposals": [1, 2]})
    (operation,) = read_resubmission(LESSON, text, LIBRARY, PROPOSALS, "ann").operations
    assert operation.id == "op2.m1"
    assert operation.evidence == ("s2p0r0", "s2p0r1", "s2p1r0")
    assert operation.problems == ("a", "b")


def test_a_mended_consolidation_says_what_becomes_of_every_proposal() -> None:
    add = {"operation": "add", "experience": "Carry: add it."}
    text = rows({**add, "proposals": [2]}, {"drop": [1, 2], "because": "too vague"})
    found = read_resubmission(LESSON, text, a_library(), PROPOSALS, "ann")
    assert [(one.proposal, one.fate, one.operation, one.reason) for one in found.fates] == [
        (1, "dropped", "", "too vague"),
        (2, "used", "op2.m1", ""),
    ]
    found = read_resubmission(LESSON, rows({**add, "proposals": [1]}), a_library(),
                              PROPOSALS, "ann")  # fmt: skip
    assert found.fates[1].reason == "the reply as ann mended it does not mention it"


def test_what_is_still_wrong_is_said_and_nothing_of_it_is_taken() -> None:
    text = rows(
        {"operation": "add", "experience": "new"},
        {"operation": "modify", "id": "E9", "experience": "x"},
    )
    found = read_resubmission(GROUP, text, LIBRARY, ATTEMPTS, "ann")
    assert found.operations == ()
    assert found.problems == ("Object 2: E9 is not in the library (E1, E2).",)
    (problem,) = read_resubmission(GROUP, "hm", LIBRARY, ATTEMPTS, "ann").problems
    assert "no JSON array" in problem


def test_attempts_that_were_not_shown_cannot_be_named() -> None:
    text = rows({"operation": "add", "experience": "new", "attempts": [1]})
    (problem,) = read_resubmission(GROUP, text, LIBRARY, ATTEMPTS, "ann").problems
    assert "names 1, and there are 0, 2" in problem


def test_what_the_step_brought_forth_already_is_left_out_and_told() -> None:
    new = {"operation": "add", "experience": "new"}
    text = rows({"operation": "add", "experience": " known "}, new, new)
    found = read_resubmission(GROUP, text, LIBRARY, ATTEMPTS, "ann")
    assert [(op.id, op.text) for op in found.operations] == [("op2.p3.1", "new")]
    assert found.doubled == (
        "Object 1 is left out: it was understood the first time.",
        "Object 3 is left out: it stands in object 2 already.",
    )


def test_a_person_may_let_more_proposals_through_than_the_model_was_asked_for() -> None:
    text = rows(*({"operation": "add", "experience": f"new {n}"} for n in range(3)))
    found = read_resubmission(GROUP, text, LIBRARY, ATTEMPTS, "ann")
    assert [op.id for op in found.operations] == ["op2.p3.1", "op2.p3.2", "op2.p3.3"]


def test_an_empty_list_means_that_there_is_nothing_to_learn() -> None:
    found = read_resubmission(GROUP, "[]", LIBRARY, ATTEMPTS, "ann")
    assert (found.operations, found.problems) == ((), ())


def test_a_text_beyond_what_is_read_is_refused_and_not_cut() -> None:
    text = rows({"operation": "add", "experience": "x" * MAX_REPLY_CHARS})
    (problem,) = read_resubmission(GROUP, text, LIBRARY, ATTEMPTS, "ann").problems
    assert "at most 200,000 are read" in problem


def test_ids_of_mended_operations_never_meet_those_of_a_lesson_or_of_another_reply() -> None:
    repairs = [f"s{step}" for step in range(1, 15)]
    repairs += [f"s{step}p{position}" for step in range(1, 15) for position in range(15)]
    mended_ids = [resubmitted_operation_id(repair, n) for repair in repairs for n in range(1, 15)]
    proposed = [operation_id(step, n) for step in range(1, 200) for n in range(1, 200)]
    assert len(set(mended_ids)) == len(mended_ids)
    assert not set(mended_ids) & set(proposed)


@pytest.mark.parametrize(
    "reply", ["plain", "", "a\nb\n", '[{"experience": "tab\\t"}]', "x\n#: not ours\ny"]
)
def test_comments_above_a_reply_are_taken_out_again(reply: str) -> None:
    opened = with_comments(reply, ["one\nline", "two"])
    assert [line for line in opened.split("\n") if "wrong: one line" in line]
    assert without_comments(opened) == reply


def test_a_reply_opens_in_an_editor_without_control_characters_and_means_the_same() -> None:
    reply = '[{"operation": "add",\r\n"experience": "see \x9b2J\u202e it"}]'
    opened = without_comments(with_comments(reply, []))
    assert not {"\x9b", "\u202e", "\r"} & set(opened)
    before = read_resubmission(GROUP, reply, LIBRARY, ATTEMPTS, "ann")
    assert before.operations
    assert read_resubmission(GROUP, opened, LIBRARY, ATTEMPTS, "ann") == before


def test_a_mended_idea_that_was_rejected_before_is_flagged_and_not_withheld() -> None:
    idea = Operation("op1.1", "add", None, "Rule: carry the ten over.", problems=("p3",))
    no = Decision(idea.id, "reject", reason="too plain", reviewer="bob", at=1.0)
    library = LIBRARY.commit([(idea, no)]).library
    text = rows({"operation": "add", "experience": idea.text})
    (operation,) = read_resubmission(GROUP, text, library, ATTEMPTS, "ann").operations
    ((name, detail),) = [(flag.name, flag.detail) for flag in operation.flags]
    assert name == "rejected before"
    assert "bob rejected it: too plain" in detail


def test_a_reply_of_very_many_broken_objects_has_a_bounded_number_of_complaints() -> None:
    found = read_resubmission(
        GROUP, "[" + ",".join(["{}"] * 60_000) + "]", LIBRARY, ATTEMPTS, "ann"
    )
    assert len(found.problems) == 20
