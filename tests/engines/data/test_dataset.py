"""Reading data sets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engines.core.errors import DataError
from engines.core.types import Problem
from engines.data.dataset import check_dataset, check_rows, read_numbered_problems, read_problems
from engines.data.fields import ANSWER_FIELDS, LISTED_REPLIES, QUESTION_FIELDS, SINGLE_REPLIES
from engines.data.source import DataSource, resolve_data


def a_file(folder: Path, *rows: Any, name: str = "set.jsonl") -> Path:
    path = folder / name
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def only(folder: Path, row: Any, **options: Any) -> Problem:
    (problem,) = read_problems(a_file(folder, row), **options)
    return problem


@pytest.mark.parametrize("name", QUESTION_FIELDS)
def test_usual_names_of_the_question_are_understood(tmp_path: Path, name: str) -> None:
    outer, _, inner = name.partition(".")
    problem = only(tmp_path, {outer: {inner: "1 + 1?"} if inner else "1 + 1?", "answer": 2, "n": 3})
    assert (problem.question, problem.answer) == ("1 + 1?", "2")
    assert problem.meta["n"] == 3 and name not in problem.meta


@pytest.mark.parametrize("name", ANSWER_FIELDS)
def test_usual_names_of_the_answer_are_understood(tmp_path: Path, name: str) -> None:
    value: Any = "2"
    for part in reversed(name.split(".")):
        value = {part: value}
    assert only(tmp_path, {"question": "q", **value}).answer == "2"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (18, "18"),
        (18.0, "18"),
        (0.5, "0.5"),
        (10**30, "1" + "0" * 30),
        (True, "true"),
        (" x ", "x"),
    ],
)
def test_an_answer_becomes_text(tmp_path: Path, value: Any, text: str) -> None:
    assert only(tmp_path, {"question": "q", "answer": value}).answer == text


def test_a_missing_answer_may_be_a_real_case(tmp_path: Path) -> None:
    for row in ({"question": "q"}, {"question": "q", "answer": None}):
        assert only(tmp_path, row, needs_answer=False).answer is None


def test_a_null_answer_does_not_hide_another_field(tmp_path: Path) -> None:
    assert only(tmp_path, {"question": "q", "answer": None, "ground_truth": 4}).answer == "4"


def test_a_list_of_answers_gives_the_first_and_keeps_all(tmp_path: Path) -> None:
    problem = only(tmp_path, {"question": "q", "golden_answers": ["Paris", "Lutetia"]})
    assert problem.answer == "Paris"
    assert problem.meta == {"alternatives": ["Paris", "Lutetia"]}


def test_a_question_stored_as_messages_is_its_last_user_turn(tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "1 + 1?"}]
    assert only(tmp_path, {"prompt": messages, "answer": "2"}).question == "1 + 1?"


def test_a_field_map_goes_before_the_usual_names(tmp_path: Path) -> None:
    row = {"question": "not this", "q": "this", "deep": {"a": 7}}
    problem = only(tmp_path, row, fields={"question": "q", "answer": "deep.a"})
    assert (problem.question, problem.answer) == ("this", "7")
    assert problem.meta["question"] == "not this"


def test_the_source_is_the_rows_or_else_the_files_name(tmp_path: Path) -> None:
    assert only(tmp_path, {"question": "q", "answer": "1", "source": "book"}).source == "book"
    assert only(tmp_path, {"question": "q", "answer": "1"}).source == "set"


def test_logged_replies_stay_out_of_the_problem(tmp_path: Path) -> None:
    row = {"question": "q", "answer": "1", "rollouts": [{"response": "r"}]}
    assert only(tmp_path, row).meta == {}


def test_ids_follow_content_and_repeats_are_numbered(tmp_path: Path) -> None:
    row = {"question": "q", "answer": "1"}
    other = {"question": "q", "answer": "2"}
    ids = [p.id for p in read_problems(a_file(tmp_path, row, other, {**row, "x": 1}, row))]
    assert ids[2:] == [f"{ids[0]}#2", f"{ids[0]}#3"]
    assert ids[0] != ids[1] and len(ids[0]) == 10


def test_blank_lines_a_byte_order_mark_and_a_limit_are_fine(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    row = b'{"question": "q\xe2\x80\xa8r", "answer": 1}'
    path.write_bytes(b"\xef\xbb\xbf" + row + b"\r\n\n" + row + b"\n" + row + b"\n")
    assert [line for line, _ in read_numbered_problems(path, limit=2)] == [1, 3]
    assert read_problems(path)[0].question == "q\u2028r"


@pytest.mark.parametrize(
    ("line", "cause", "move"),
    [
        ('{"question": ', "not JSON", "one JSON object a line"),
        ('{"question": "q", "answer": NaN}', '"answer" is empty', "given_ground_truth"),
        ('{"question": "q", "answer": Infinity}', "Infinity is no JSON value", "Mend"),
        ('{"question": NaN, "answer": "1"}', '"question" is empty', "Write the question"),
        ("[1]", "a list, not an object", "for each"),
        ({"frage": "q", "answer": "1"}, "the fields are: frage, answer", "data.fields.question"),
        ({"frage": "q", "answer": "1"}, "the fields are: frage, answer", "--question NAME"),
        ({"question": "q", "antwort": "1"}, "the fields are: question", "data.fields.answer=NAME"),
        ({"question": "q", "antwort": "1"}, "the fields are: question", "--answer NAME"),
        ({"question": "  ", "answer": "1"}, '"question" is empty', "Write the question"),
        ({"question": "q"}, '"answer" is missing', "given_ground_truth"),
        ({"question": "q", "answer": None}, '"answer" is empty', "given_ground_truth"),
        ({"question": "q", "answer": []}, '"answer" is empty', "given_ground_truth"),
        ({"question": "q", "answer": {"a": 1}}, '"answer" holds an object', "data.fields"),
        ({"question": ["a"], "answer": "1"}, '"question" holds a list', "data.fields"),
    ],
)
def test_a_bad_line_is_named_with_cause_and_move(
    tmp_path: Path, line: Any, cause: str, move: str
) -> None:
    path = a_file(tmp_path, {"question": "fine", "answer": "1"}, "", line)
    with pytest.raises(DataError) as caught:
        read_problems(path)
    assert caught.value.place == f"{path}:3"
    assert cause in caught.value.cause
    assert move in caught.value.move


def test_a_line_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"question": "q", "answer": "1"}\n{"question": "\xff"}\n')
    with pytest.raises(DataError, match=r"x\.jsonl:2: The file is not UTF-8"):
        read_problems(path)


def test_an_empty_file_and_a_missing_one_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no problem"):
        read_problems(a_file(tmp_path, name="arithmetic.jsonl"))
    with pytest.raises(DataError, match=r"cannot be read \(No such file"):
        read_problems(tmp_path / "arithmetik.jsonl")


def test_only_question_and_answer_can_be_mapped(tmp_path: Path) -> None:
    with pytest.raises(DataError, match='"anwser" cannot be mapped'):
        read_problems(a_file(tmp_path, {"q": "1"}), fields={"anwser": "a"})


def test_check_finds_repeats_contradictions_and_gaps(tmp_path: Path) -> None:
    path = a_file(
        tmp_path,
        {"question": "aa", "answer": "1"},
        "",
        {"question": "aa", "answer": "1"},
        {"question": "bbbb", "answer": "22"},
        {"question": "bbbb", "answer": "333"},
        {"question": "cccccc"},
    )
    report = check_rows(read_numbered_problems(path, needs_answer=False))
    assert (report.n, report.without_answer) == (5, (6,))
    assert report.duplicates == ((1, 3),)
    assert report.contradictory == ((4, 5),)
    assert not report.is_clean
    assert check_rows(read_numbered_problems(path, limit=1)).is_clean


def test_a_data_name_is_found_in_the_first_root_that_has_it(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
        a_file(folder, {"question": "q", "answer": "1"})
    below = a_file(second, {"question": "q", "answer": "1"}, name="other.jsonl")
    roots = (tmp_path / "absent", first, second)
    here = DataSource(first / "set.jsonl")
    assert resolve_data("set", roots) == resolve_data("set.jsonl", roots) == here
    assert resolve_data("other", roots).path == below
    assert resolve_data("second/other", (tmp_path,)).path == below
    assert resolve_data(str(below), roots).path == below


def test_a_split_is_also_found_as_the_file_it_was_copied_to(tmp_path: Path) -> None:
    row = {"question": "q", "answer": "1"}
    copy = a_file(tmp_path, row, name="mine-test.jsonl")
    assert resolve_data("mine:test", (tmp_path / "absent", tmp_path)) == DataSource(copy)
    with pytest.raises(DataError, match="not found"):
        resolve_data("mine:train", (tmp_path,))
    later = tmp_path / "later"
    (later / "mine").mkdir(parents=True)
    a_file(later / "mine", row, name="test.jsonl")
    # The folder itself goes before a copy of it, wherever either lies.
    assert resolve_data("mine:test", (tmp_path, later)) == DataSource(later / "mine", "test")


def test_an_unknown_data_name_shows_the_nearest_and_the_roots(tmp_path: Path) -> None:
    a_file(tmp_path, {"question": "q", "answer": "1"}, name="arithmetic.jsonl")
    with pytest.raises(DataError) as caught:
        resolve_data("arithmetik", (tmp_path,))
    assert caught.value.place == 'data set "arithmetik"'
    assert str(tmp_path) in caught.value.cause
    assert 'Did you mean "arithmetic"' in caught.value.move
    for letter in "qrstuvwxyz":
        a_file(tmp_path, {"question": "q", "answer": "1"}, name=f"{letter}0.jsonl")
    with pytest.raises(DataError, match=r"There are: arithmetic.*, w0 and 3 more"):
        resolve_data("zzzzzzzz", (tmp_path,))


def test_every_bad_line_is_named_at_once_so_that_one_round_mends_them(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"question": "q", "answer": "1"}\n{"answer": 2}\n[]\n\n{"question": ""}\n')
    with pytest.raises(DataError) as refused:
        read_problems(path)
    assert refused.value.place == f"{path}:2"
    assert refused.value.cause.endswith("(2 more cannot be used: line 3, 5.)")


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("18.0", "18"),
        ("1.50", "1.5"),
        ("0.1", "0.1"),
        ("-0.0", "0"),
        ("1e3", "1000"),
        ("0.30000000000000004", "0.30000000000000004"),
        # More digits than a double holds.
        ("12345678901234567890.5", "12345678901234567890.5"),
        ("12345678901234567890.50", "12345678901234567890.50"),
        ("9007199254740993.0", "9007199254740993.0"),  # 2^53 + 1
        ("1e-400", "1e-400"),
    ],
)
def test_a_number_keeps_the_digits_that_are_written(
    tmp_path: Path, written: str, text: str
) -> None:
    line = f'{{"question": "q", "answer": {written}, "n": 0.5}}'
    problem = only(tmp_path, line)
    assert (problem.answer, problem.meta) == (text, {"n": 0.5})


REPLY_FIELDS = (*SINGLE_REPLIES, *LISTED_REPLIES)


@pytest.mark.parametrize("name", REPLY_FIELDS)
def test_a_column_named_like_a_reply_is_a_column(tmp_path: Path, name: str) -> None:
    rows = [{"question": f"q{n}", "answer": "1", name: f"x{n}", "model": "T"} for n in range(2)]
    problems = read_problems(a_file(tmp_path, *rows))
    assert [p.meta for p in problems] == [{name: f"x{n}", "model": "T"} for n in range(2)]


@pytest.mark.parametrize(
    ("second", "what"),
    [
        ({"output": "x"}, "the same reply"),
        ({"output": "y", "source": "book"}, "another source"),
    ],
)
def test_repeats_that_are_no_replies_stay_repeats(
    tmp_path: Path, second: dict[str, Any], what: str
) -> None:
    row = {"question": "q", "answer": "1", "output": "x"}
    problems = read_problems(a_file(tmp_path, row, {**row, **second}))
    assert [p.meta["output"] for p in problems] == ["x", second["output"]], what
    assert problems[1].id == f"{problems[0].id}#2"


def test_rows_of_one_question_with_two_outputs_are_replies_and_other_rows_keep_theirs(
    tmp_path: Path,
) -> None:
    rows = [{"question": f"q{n}", "answer": "1", "output": f"x{n}"} for n in range(4)]
    path = a_file(tmp_path, *rows, {**rows[0], "output": "y"})
    assert [p.meta.get("output") for p in read_problems(path)] == [None, "x1", "x2", "x3"]
    report = check_dataset(path)
    assert (report.duplicates, report.logged_rows, report.logged_questions) == ((), 2, 1)


def test_a_log_gives_each_question_once_however_few_are_read(tmp_path: Path) -> None:
    same = {"question": "q", "answer": "1", "level": 2, "n": 10**30}
    replies = [
        {**same, "response": "a", "model": "m", "reward": 1.0, "index": 0},
        {**same, "response": "a", "model": "m", "reward": 1.0, "index": 1},
        {**same, "response": "b", "model": "m", "reward": 0.0, "index": 2},
    ]
    path = a_file(tmp_path, *replies, {"question": "r", "answer": "2", "response": "c"}, "{")
    (first,) = read_problems(path, limit=1)
    assert first.meta == {"level": 2, "n": 10**30}
    a_file(tmp_path, *replies, {"question": "r", "answer": "2", "response": "c"})
    report = check_dataset(path)
    assert (report.n, report.logged_rows, report.logged_questions) == (2, 3, 1)
    assert report.is_clean


def test_rows_that_each_list_replies_to_one_question_are_merged(tmp_path: Path) -> None:
    rows = [{"question": "q", "answer": "1", "rollouts": [text]} for text in "ab"]
    (problem,) = read_problems(a_file(tmp_path, *rows))
    assert problem.meta == {}
