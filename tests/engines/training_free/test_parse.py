"""What the reflector's JSON must mean."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.core.text.reply import ParsedReply, ReplyProblem
from engines.training_free.reading import (
    ConsolidationRow,
    CreditRow,
    DoubtRow,
    DropRow,
    ExtractionRow,
    Suggestion,
    parse_consolidation,
    parse_extraction,
    rank_rows,
)
from tests.support.builders import a_library, an_operation, approved

LIBRARY = a_library("one", "two", "three")


def read(*rows: Any, limit: int | None = None) -> ParsedReply[ExtractionRow]:
    return parse_extraction(json.dumps(rows), LIBRARY, known=(0, 1, 3), limit=limit)


def only(row: dict[str, Any]) -> Suggestion:
    parsed = read(row)
    assert not parsed.problems
    (found,) = parsed.items
    assert isinstance(found, Suggestion)
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
    parsed = parse_extraction(reply, library, known=(0,), limit=None)
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


@pytest.mark.parametrize(
    ("given_numbers", "meant", "strange"),
    [
        ([1, 2], (1,), "2"),
        (["first", 3], (3,), "'first'"),
        ([7], (), "7"),
        ([True, 0], (0,), "True"),
        (["9" * 5000, 1], (1,), f"'{'9' * 39}"),
    ],
)
def test_a_number_that_was_not_shown_is_left_out_and_told(
    given_numbers: list[object], meant: tuple[int, ...], strange: str
) -> None:
    parsed = read({"operation": "add", "experience": "x", "attempts": given_numbers})
    assert ([s.sources for s in parsed.items], parsed.problems) == ([meant], ())
    assert parsed.notes == (f'Object 1: "attempts" names {strange}, and there are 0, 1, 3.',)


def test_an_empty_list_of_sources_means_none() -> None:
    assert only({"operation": "add", "experience": "x", "attempts": []}).sources == ()
    for fields in ({}, {"proposals": None}, {"proposals": []}):
        reply = json.dumps([{"operation": "add", "experience": "x", **fields}])
        (found,) = parse_consolidation(reply, LIBRARY, known=(1, 2), bound=9).items
        assert isinstance(found, Suggestion)
        assert found.sources == ()


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
    assert parsed.problems == ("It holds 3 changes and at most 2 are wanted.",)


def test_a_kept_experience_is_no_change_and_does_not_count() -> None:
    keep = {"operation": "keep", "id": "E1"}
    parsed = read(keep, {"operation": "add", "experience": "x"}, keep, limit=1)
    assert ([s.kind for s in parsed.items], parsed.problems) == (["keep", "add", "keep"], ())


def test_more_operations_than_the_bound_are_refused_with_their_count() -> None:
    rows = [{"operation": "add", "experience": f"x{n}"} for n in range(201)]
    rows += [{"operation": "keep", "id": "E1"}] * 300
    with pytest.raises(ReplyProblem, match="holds 201 operations, and at most 200 are taken"):
        parse_consolidation(json.dumps(rows), LIBRARY, known=(1,), bound=200)
    assert parse_consolidation(json.dumps(rows[1:]), LIBRARY, known=(1,), bound=200).problems == ()


def extraction(*rows: Any) -> ParsedReply[ExtractionRow]:
    return parse_extraction(json.dumps(rows), LIBRARY, known=(0, 1, 3), limit=1)


@pytest.mark.parametrize("name", ["E3", "[E3]", "3", "e3", 3, ["E3"]])
@pytest.mark.parametrize("said", ["used", "Used"])
def test_a_credit_says_what_became_of_an_experience(name: object, said: str) -> None:
    parsed = extraction({"credit": name, "use": said, "attempts": [1, 0]})
    assert parsed == ParsedReply((CreditRow("E3", "used", (1, 0)),))


@pytest.mark.parametrize(
    ("row", "credits"),
    [
        ({"operation": "credit", "id": "E1", "use": "misled"}, [CreditRow("E1", "misled", ())]),
        ({"credit": ["E1", "2"], "use": "ignored", "attempts": 3}, ["E1", "E2"]),
    ],
)
def test_credits_come_in_several_forms(row: dict[str, Any], credits: list[Any]) -> None:
    parsed = extraction(row)
    assert parsed.notes == parsed.problems == ()
    assert [c if isinstance(credits[0], CreditRow) else c.experience for c in parsed.items] == (
        credits
    )


@pytest.mark.parametrize(
    ("row", "note"),
    [
        ({"credit": "E9", "use": "used"}, '"credit": E9 is not in the library (E1, E2, E3).'),
        ({"credit": "the third", "use": "used"}, "'the third' is not the id of an experience"),
        ({"credit": "E1", "use": "nice"}, "must be used, ignored or misled, not 'nice'"),
        ({"credit": "E1"}, "must be used, ignored or misled, not ''"),
        ({"doubt": "12 is the truth", "attempts": []}, "must name the attempts"),
        ({"doubt": "12 is the truth", "attempts": [9]}, "names 9, and there are 0, 1, 3"),
    ],
)
def test_a_bad_credit_or_doubt_is_left_out_and_told_and_costs_no_repair(
    row: dict[str, Any], note: str
) -> None:
    parsed = extraction(row, {"operation": "add", "experience": "x"})
    assert ([type(i) for i in parsed.items], parsed.problems) == ([Suggestion], ())
    assert note in parsed.notes[0]


def test_a_doubt_names_the_attempts_whose_verdict_contradicts_them() -> None:
    parsed = extraction({"doubt": "They are\nequal.", "attempts": [3]})
    assert parsed == ParsedReply((DoubtRow("They are equal.", (3,)),))


def test_credits_and_doubts_do_not_count_as_changes() -> None:
    credit = {"credit": "E1", "use": "used", "attempts": [0]}
    doubt = {"doubt": "why", "attempts": [0]}
    parsed = extraction(credit, credit, {"operation": "add", "experience": "x"}, doubt)
    assert (len(parsed.items), parsed.problems) == (4, ())


def consolidation(*rows: Any) -> ParsedReply[ConsolidationRow]:
    return parse_consolidation(json.dumps(rows), LIBRARY, known=(1, 2, 3), bound=200)


def test_a_consolidation_says_which_proposals_it_drops() -> None:
    parsed = consolidation(
        {"drop": [3, "#1"], "because": "too narrow"},
        {"operation": "drop", "proposals": 2, "reason": "said"},
    )
    assert parsed == ParsedReply((DropRow((3, 1), "too narrow"), DropRow((2,), "said")))
    assert consolidation({"drop": [], "because": "x"}).notes == (
        'Object 1: "drop" must name proposals.',
    )


@pytest.mark.parametrize(
    ("fields", "meant"),
    [
        ({}, (None, (), False)),
        ({"same_as": None, "conflicts_with": None, "only_this_problem": None}, (None, (), False)),
        ({"same_as": "[E3]", "conflicts_with": ["2", "e3"]}, ("E3", ("E2", "E3"), False)),
        ({"same_as": "", "conflicts_with": "E2", "only_this_problem": True}, (None, ("E2",), True)),
        ({"same_as": "E1", "conflicts_with": ["E1", "E2"]}, (None, ("E2",), False)),  # itself
        ({"only_this_problem": "Yes"}, (None, (), False)),
    ],
)
def test_an_operation_says_what_it_repeats_and_contradicts(
    fields: dict[str, Any], meant: tuple[Any, ...]
) -> None:
    parsed = consolidation({"operation": "modify", "id": "E1", "experience": "x", **fields})
    (found,) = parsed.items
    assert isinstance(found, Suggestion)
    assert (found.same_as, found.conflicts_with, found.only_this_problem) == meant
    assert parsed.notes == parsed.problems == ()


def test_ids_beside_an_operation_that_are_not_in_the_library_are_left_out_and_told() -> None:
    row = {"operation": "add", "experience": "x", "same_as": "E9", "conflicts_with": ["E2", "X"]}
    parsed = consolidation(row)
    (found,) = parsed.items
    assert isinstance(found, Suggestion)
    assert (found.same_as, found.conflicts_with) == (None, ("E2",))
    assert [note.split(" is ")[0] for note in parsed.notes] == [
        'Object 1: "same_as": E9',
        "Object 1: \"conflicts_with\": 'X'",
    ]


def test_what_counts_first_when_a_reply_is_repaired_is_the_number_of_suggestions() -> None:
    add = Suggestion("add", None, "x", "", ())
    credit = CreditRow("E1", "used", ())
    assert rank_rows([add]) > rank_rows([credit] * 9)
    assert rank_rows([add, credit]) > rank_rows([add])


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
        parsed = parse_extraction(json.dumps(value), LIBRARY, known=(0, 1), limit=2)
    except ReplyProblem as problem:
        assert str(problem)
        return
    assert len(parsed.items) <= 2
    for found in parsed.items:
        assert bool(found.text) is (found.kind in ("add", "modify"))
        assert (LIBRARY.get(found.target) is None) is (found.kind == "add")
        assert set(found.sources) <= {0, 1}
