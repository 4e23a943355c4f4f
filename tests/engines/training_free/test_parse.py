"""What the reflector's JSON must mean."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.core.text.reply import ParsedReply, ReplyProblem
from engines.training_free.parse import Suggestion, parse_suggestions
from tests.support.builders import a_library, an_operation, approved

LIBRARY = a_library("one", "two", "three")


def read(*rows: Any, limit: int | None = None) -> ParsedReply[Suggestion]:
    return parse_suggestions(
        json.dumps(rows), LIBRARY, sources="attempts", known=(0, 1, 3), limit=limit
    )


def only(row: dict[str, Any]) -> Suggestion:
    parsed = read(row)
    assert not parsed.problems
    (found,) = parsed.items
    return found


def problem_of(row: Any) -> str:
    parsed = read(row)
    assert not parsed.items
    (problem,) = parsed.problems
    return problem


@pytest.mark.parametrize("word", ["modify", "MODIFY", "Modify", " modify ", "update", "UPDATE"])
@pytest.mark.parametrize("name", ["E3", "[E3]", "3", "e3", 3])
def test_case_synonyms_and_spellings_of_ids_do_not_matter(word: str, name: object) -> None:
    """Known defect elsewhere: lower-case words or bracketed ids fell through to an addition."""
    found = only({"operation": word, "id": name, "experience": "new"})
    assert (found.kind, found.target, found.text) == ("modify", "E3", "new")


@pytest.mark.parametrize("key", ["operation", "Operation", "option", "kind"])
def test_the_names_of_fields_are_read_leniently(key: str) -> None:
    found = only({key: "add", "Content": "new", "Rationale": "why"})
    assert (found.kind, found.text, found.reason) == ("add", "new", "why")


@pytest.mark.parametrize("extra", [{}, {"experience": ""}, {"experience": None}])
def test_a_delete_needs_no_text(extra: dict[str, Any]) -> None:
    """Known defect elsewhere: a delete without text was thrown away."""
    found = only({"operation": "DELETE", "id": "[E2]", **extra})
    assert (found.kind, found.target, found.text) == ("delete", "E2", "")


@pytest.mark.parametrize("kind", ["modify", "delete", "keep"])
@pytest.mark.parametrize("name", ["E9", None, "G4"])
def test_an_unknown_id_is_a_problem_and_never_an_addition(kind: str, name: str | None) -> None:
    """Known defect elsewhere: a MODIFY of an unknown id was added as a new experience."""
    problem = problem_of({"operation": kind, "id": name, "experience": "new"})
    assert problem.startswith("Object 1: ")
    assert "is not in the library (E1, E2, E3)" in problem


def test_a_deleted_id_cannot_be_modified_and_is_named() -> None:
    library = LIBRARY.commit(approved(an_operation("delete", "E2"))).library
    reply = json.dumps([{"operation": "modify", "id": "E2", "experience": "x"}])
    parsed = parse_suggestions(reply, library, sources="attempts", known=(0,), limit=None)
    assert parsed.items == ()
    assert "E2 is not in the library (E1, E3)" in parsed.problems[0]


@pytest.mark.parametrize(
    "word", [None, "", "none of these", 3, "rewrite", ["add"], "pin", "unpin", "weights"]
)
def test_an_operation_must_be_one_of_the_four_words(word: object) -> None:
    """Silence is not "keep": the new wording beside it would be lost without a word."""
    row = {"operation": word, "id": "E1", "experience": "new"}
    assert '"operation" must be one of add, modify, delete, keep' in problem_of(row)
    del row["operation"]
    assert '"operation" must be one of' in problem_of(row)


@pytest.mark.parametrize("text", [None, "", "  ", 7, ["x"]])
def test_additions_and_modifications_need_a_text(text: object) -> None:
    assert '"experience" must be a text' in problem_of({"operation": "add", "experience": text})
    row = {"operation": "modify", "id": "E1", "experience": text}
    assert '"experience" must be a text' in problem_of(row)


def test_an_addition_that_names_an_existing_id_is_asked_about() -> None:
    assert 'use "modify"' in problem_of({"operation": "add", "id": "E1", "experience": "x"})


def test_an_addition_that_invents_a_new_id_is_an_addition() -> None:
    assert only({"operation": "add", "id": "E4", "experience": "x"}).target is None


def test_a_text_becomes_one_line_of_sound_unicode() -> None:
    found = only({"operation": "add", "experience": "a\n\n b\ud83d", "reason": " r\n"})
    assert (found.text, found.reason) == ("a b�", "r")


@pytest.mark.parametrize(
    ("given_numbers", "meant"),
    [([1], (1,)), (3, (3,)), (["#1", " 0 "], (1, 0)), ([1, 1], (1,)), (None, (0, 1, 3))],
)
def test_source_numbers_are_read_and_none_means_all(
    given_numbers: object, meant: tuple[int, ...]
) -> None:
    row = {"operation": "add", "experience": "x", "attempts": given_numbers}
    assert only(row).sources == meant


def test_numbers_that_were_not_shown_are_a_problem() -> None:
    row = {"operation": "add", "experience": "x", "attempts": [1, 2]}
    assert '"attempts" names [2], and there are [0, 1, 3]' in problem_of(row)
    assert "must be a list of numbers" in problem_of({**row, "attempts": ["first"]})


def test_one_bad_object_costs_only_itself() -> None:
    """Known defect elsewhere: one bad object threw the whole array away."""
    parsed = read(
        {"operation": "add", "experience": "good"},
        {"operation": "rewrite"},
        {"operation": "keep", "id": "e1"},
    )
    assert [(s.kind, s.target) for s in parsed.items] == [("add", None), ("keep", "E1")]
    assert [p.split(":")[0] for p in parsed.problems] == ["Object 2"]


def test_more_objects_than_wanted_are_a_problem_and_the_first_ones_stay() -> None:
    parsed = read(*({"operation": "add", "experience": f"x{n}"} for n in range(3)), limit=2)
    assert [s.text for s in parsed.items] == ["x0", "x1"]
    assert parsed.problems == ("It holds 3 objects and at most 2 are wanted.",)


_fields = st.sampled_from(["operation", "id", "experience", "attempts", "reason", "KIND"])
_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["add", "delete", "E1", "[E2]", "9" * 5000, "\ud83d"])
    | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_fields, inner, max_size=4),
    max_leaves=8,
)


@settings(derandomize=True, max_examples=400, deadline=None)
@given(st.lists(st.dictionaries(_fields, _json, max_size=5), max_size=3) | _json)
def test_any_json_is_read_or_is_a_reply_problem(value: Any) -> None:
    try:
        parsed = parse_suggestions(
            json.dumps(value), LIBRARY, sources="attempts", known=(0, 1), limit=2
        )
    except ReplyProblem as problem:
        assert str(problem)
        return
    assert len(parsed.items) <= 2
    for found in parsed.items:
        assert bool(found.text) is (found.kind in ("add", "modify"))
        assert (LIBRARY.get(found.target) is None) is (found.kind == "add")
        assert set(found.sources) <= {0, 1}
