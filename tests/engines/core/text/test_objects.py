"""Finding JSON in replies: lenient in form, never half of what was meant."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.core.text import reply as objects
from engines.core.text.reply import ReplyProblem, find_objects, parse_objects

ROWS = [{"operation": "add", "experience": "Carry: add the carry."}, {"operation": "keep"}]
JSON = json.dumps(ROWS)


@pytest.mark.parametrize(
    "reply",
    [
        JSON,
        f"  \n{JSON}\n",
        f"```json\n{JSON}\n```",
        f"```\n{JSON}\n```",
        f"```JSON lines\n{json.dumps(ROWS, indent=2)}\n```\nThat is all.",
        f"Here you are: {JSON} I hope it helps.",
        f"Attempts [0] and [1] differ.\n{JSON}",
        json.dumps({"operations": ROWS}),
        f"Sure.\n```json\n{json.dumps({'note': 'x', 'operations': ROWS})}\n```",
        f"```json\n{JSON}",  # a fence that is never closed
        f"```json\n[{{}}]\n```\nor rather\n```json\n{JSON}\n```",
    ],
)
def test_the_form_of_a_reply_does_not_matter(reply: str) -> None:
    assert parse_objects(reply) == ROWS


def test_a_lone_object_counts_as_a_list_of_one() -> None:
    """Known defect elsewhere: an object instead of an array was iterated key by key."""
    assert parse_objects(json.dumps(ROWS[0])) == [ROWS[0]]
    assert parse_objects(f"My answer:\n{json.dumps(ROWS[0])}\nDone.") == [ROWS[0]]


def test_an_object_with_a_list_of_plain_numbers_is_not_unwrapped() -> None:
    row = {"operation": "delete", "id": "E1", "attempts": [0, 2]}
    assert parse_objects(json.dumps(row)) == [row]


def test_an_object_with_an_empty_source_list_is_one_object() -> None:
    row = {"operation": "delete", "id": "E1", "attempts": []}
    assert parse_objects(json.dumps(row)) == [row]


def test_an_empty_array_is_an_answer_also_inside_prose() -> None:
    assert parse_objects("[]") == []
    assert parse_objects("Nothing general to learn: []") == []


def test_an_earlier_valid_fence_survives_a_later_fence_that_is_no_json() -> None:
    """Known defect elsewhere: only the last fence was read, and the answer before it lost."""
    for later in ("print(1 + 1)", "x = [1, 2", "see [E3]", ""):
        assert parse_objects(f"```json\n{JSON}\n```\nAs code:\n```python\n{later}\n```") == ROWS


@pytest.mark.parametrize(
    "later", ['[{"operation": "add", "exp', '{"operation": "add", "operation": "keep"}']
)
@pytest.mark.parametrize("close", ["\n```", ""])
def test_an_earlier_fence_does_not_pass_for_a_later_broken_answer(later: str, close: str) -> None:
    with pytest.raises(ReplyProblem, match="not valid"):
        parse_objects(f"A draft:\n```json\n{JSON}\n```\nFinally:\n```json\n{later}{close}")


@pytest.mark.parametrize(
    "broken",
    [JSON[:-10], JSON[:-3], JSON[:-22], '{"operations": ' + JSON[:-10], JSON[:-22] + "\n```"],
)
def test_of_a_cut_array_the_whole_objects_are_read_and_the_cut_one_is_told(broken: str) -> None:
    """Known defect elsewhere: the objects before the break were taken and the rest forgotten."""
    found = find_objects(broken)
    assert [row for row in found.rows if isinstance(row, dict)] == ROWS[:1]
    told = [*found.problems, *(str(row) for row in found.rows if isinstance(row, ReplyProblem))]
    assert "cut off" in " ".join(told)
    with pytest.raises(ReplyProblem, match="cut off"):
        parse_objects(broken)


CREDITS = '[{"credit": "E1", "use": "used", "attempts": [1]}]'


def test_arrays_of_two_kinds_are_no_drafts_of_one_another() -> None:
    found = find_objects(f"Operations:\n{JSON}\n\nHere are the credits:\n{CREDITS}")
    assert [*found.rows] == [*ROWS, *parse_objects(CREDITS)]
    assert (found.problems, found.notes) == ((), ())


def test_an_array_without_its_bracket_is_read_and_may_have_been_cut() -> None:
    found = find_objects(JSON[:-1])
    assert (list(found.rows), found.problems, found.unclosed) == (ROWS, (), True)
    assert not find_objects(JSON).unclosed
    # Cut off in the prose behind it, it may have been a draft.
    assert find_objects(f"Draft: {JSON} Yet that is").unclosed


_words = st.text(st.sampled_from("ab {}[]\",:\\n'`1"), max_size=12)
_rows = st.lists(
    st.fixed_dictionaries(
        {"operation": st.sampled_from(["add", "keep"]), "experience": _words},
        optional={"attempts": st.lists(st.integers(0, 9), max_size=3), "id": st.none() | _words},
    ),
    min_size=1,
    max_size=4,
)


@settings(derandomize=True, max_examples=150, deadline=None)
@given(
    _rows, st.floats(0, 1), st.sampled_from([None, 1]), st.sampled_from(["", "So [a]: ", "```\n"])
)
def test_a_cut_array_never_yields_an_object_that_was_not_in_it(
    rows: list[dict[str, object]], share: float, indent: int | None, before: str
) -> None:
    whole = json.dumps(rows, indent=indent)
    cut = round(share * (len(whole) - 1))
    try:
        found = find_objects(before + whole[:cut])
    except ReplyProblem:
        return
    read = [row for row in found.rows if isinstance(row, dict)]
    assert read == rows[: len(read)]
    told = found.problems or found.unclosed or len(read) < len(found.rows)
    assert told or not read


@settings(derandomize=True, max_examples=150, deadline=None)
@given(_rows, st.data())
def test_what_is_mended_is_what_was_meant(
    rows: list[dict[str, object]], data: st.DataObject
) -> None:
    """A comma too many makes every reader of JSON refuse; the text around it must not suffer."""
    parts = [
        json.dumps(row)[:-1] + data.draw(st.sampled_from(["}", ",}", " ,\n}"])) for row in rows
    ]
    try:
        found = find_objects(
            f"[{', '.join(parts)},]", ("operation", "experience", "attempts", "id")
        )
    except ReplyProblem:
        return
    assert [row for row in found.rows if row in rows or not isinstance(row, dict)] == list(
        found.rows
    )
    assert len(found.rows) == len(rows) or found.problems


@pytest.mark.parametrize(
    ("reply", "what"),
    [
        ("null", "found null"),
        ("```json\nnull\n```", "found null"),
        ("17", "found int"),
        ('"add"', "found str"),
        ("[1, 2]", "found list"),
        ("{}", "found dict"),
        ("", "no JSON array"),
        ("I would add an experience about carrying.", "no JSON array"),
    ],
)
def test_what_is_no_list_of_objects_is_told_by_what_was_found(reply: str, what: str) -> None:
    """Known defect elsewhere: `null` crashed the loop with a TypeError."""
    with pytest.raises(ReplyProblem, match=what):
        parse_objects(reply)


@settings(derandomize=True, max_examples=400, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            ["[", "]", "{", "}", '"a"', ":", ",", "1", "null", "```", "\n", "json", " ", "\\", "é"]
        )
        | st.text(max_size=3),
        max_size=30,
    ).map("".join)
)
def test_reading_any_text_gives_objects_or_a_reply_problem(text: str) -> None:
    try:
        rows = parse_objects(text)
    except ReplyProblem as problem:
        assert str(problem)
    else:
        assert all(isinstance(row, dict) for row in rows)


class Counter(json.JSONDecoder):
    """Counts the characters that the decoder was led over in vain."""

    wasted = 0

    def raw_decode(self, s: str, idx: int = 0) -> tuple[object, int]:
        try:
            return super().raw_decode(s, idx)
        except (ValueError, RecursionError) as error:
            Counter.wasted += getattr(error, "pos", idx + 1_000) - idx
            raise


@pytest.mark.parametrize(
    "part",
    [
        "see [a] {b} ",
        "[" * 20 + '{"a": ',
        "[",
        "[{",
        '{"a": ',
        '[{"a": 1} ',
        '{"a": [',
        "{x: 1",
        "[[1], ",
        '{"a": "x" ',
        "[]",
    ],
)
def test_prose_full_of_brackets_is_read_in_bounded_work(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    monkeypatch.setattr(objects, "_DECODER", Counter(strict=False))
    monkeypatch.setattr(objects, "_repair", lambda source: calls.append(len(source)))
    for count in (10_000, 40_000):
        Counter.wasted = 0
        calls.clear()
        with suppress(ReplyProblem):
            find_objects(part * (count // len(part)))
        assert Counter.wasted <= objects.MAX_WASTED_CHARS + count
        assert sum(calls) <= 3 * objects.MAX_UNREAD * objects.MAX_MENDED_CHARS


def test_an_answer_behind_prose_full_of_brackets_is_found() -> None:
    for prose in ("see [a] {b} {c: 1} [] ", "[x][[1]] ", "{} ", '{"a": 1} '):
        assert parse_objects(prose * 2_000 + "\nSo:\n" + JSON, ("operation",)) == ROWS


def test_a_reply_over_the_limit_says_how_long_it_is() -> None:
    with pytest.raises(ReplyProblem, match="has 200,001 characters, and at most 200,000 are read"):
        find_objects("x" * 200_001)


@pytest.mark.parametrize(
    "text", ["[" * 50_000, '{"a":' * 50_000, "[{" * 10_000, "9" * 5_000, f"[{'9' * 5_000}]"]
)
def test_hostile_nesting_and_endless_numbers_are_only_reply_problems(text: str) -> None:
    with pytest.raises(ReplyProblem):
        parse_objects(text)


def test_an_array_whose_names_no_answer_has_is_not_dropped_unsaid() -> None:
    known = '[{"operation": "add", "experience": "A: b"}]'
    other = '[{"lesson": "C: d"}, {"lesson": "E: f", "why": "x"}]'
    for text in (f"{known}\n{other}", f"{other}\n\nAnd now the list:\n\n{known}"):
        found = find_objects(text, ("operation", "experience"))
        assert found.rows == ({"operation": "add", "experience": "A: b"},)
        assert "It holds objects of other names, left out: lesson, why." in found.notes
