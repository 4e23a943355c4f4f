"""Rows with options, as the well-known data sets have them."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from engines.core.errors import DataError
from engines.core.types import Problem
from engines.data.dataset import read_problems

Q = "Capital of France?"
FOUR = ["Rome", "Paris", "Oslo", "Bern"]


def read(tmp_path: Path, *rows: dict[str, Any], **options: Any) -> tuple[Problem, ...]:
    path = tmp_path / "set.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return read_problems(path, **options)


SHAPES: dict[str, dict[str, Any]] = {
    "MMLU": {"question": Q, "subject": "s", "choices": FOUR, "answer": 1},
    "MMLU with a letter": {"question": Q, "choices": FOUR, "answer": "B"},
    "MMLU in columns": {"Question": Q, **dict(zip("ABCD", FOUR, strict=True)), "Answer": "B"},
    "MMLU-Pro": {"question": Q, "options": FOUR, "answer": "B", "answer_index": 1},
    "ARC": {"question": Q, "choices": {"text": FOUR, "label": list("ABCD")}, "answerKey": "B"},
    "ARC with digits": {
        "question": Q,
        "choices": {"text": FOUR, "label": list("1234")},
        "answerKey": "2",
    },
    "OpenBookQA": {
        "question_stem": Q,
        "choices": [{"text": t, "label": at} for t, at in zip(FOUR, "ABCD", strict=True)],
        "answerKey": "B",
    },
    "MedQA": {
        "question": Q,
        "answer": "Paris",
        "options": dict(zip("ABCD", FOUR, strict=True)),
        "answer_idx": "B",
    },
    "AQuA": {"question": Q, "options": ["A)Rome", "B)Paris", "C)Oslo", "D)Bern"], "correct": "B"},
    "CMMLU": {
        "question": Q,
        "choices": ["(A) Rome", "(B) Paris", "(C) Oslo", "(D) Bern"],
        "answer": "(B) Paris",
    },
    "the text itself": {"question": Q, "choices": FOUR, "answer": " paris "},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_options_stand_lettered_below_the_question(shape: str, tmp_path: Path) -> None:
    (problem,) = read(tmp_path, SHAPES[shape])
    assert problem.question == f"{Q}\n\nA. Rome\nB. Paris\nC. Oslo\nD. Bern"
    assert (problem.answer, problem.options["B"], len(problem.options)) == ("B", "Paris", 4)


def test_the_options_of_gpqa_are_shuffled_alike_whenever_they_are_read(tmp_path: Path) -> None:
    path = tmp_path / "gpqa.csv"
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(
            ["Question", "Correct Answer", *(f"Incorrect Answer {n}" for n in (1, 2, 3))]
        )
        table.writerows([f"{Q} ({n})", "Paris", "Rome", "Oslo", "Bern"] for n in range(40))
    problems = read_problems(path)
    assert problems == read_problems(path)
    assert all(p.options[p.answer or ""] == "Paris" for p in problems)
    assert {p.answer for p in problems} == set("ABCD")  # its place tells nothing
    assert not any("Correct Answer" in p.meta for p in problems)


@pytest.mark.parametrize(
    ("row", "cause"),
    [
        ({"choices": FOUR, "answer": 4}, "\"answer\" is '4', which is none of the 4 options"),
        ({"choices": FOUR, "answer": "E"}, "is none of"),
        ({"choices": FOUR, "answer": "Berlin"}, "is none of"),
        ({"choices": FOUR, "answer": True}, "is none of"),
        ({"choices": ["O", "A", "B", "AB"], "answer": "A"}, "may mean two of"),
        ({"choices": ["3", "2", "1"], "answer": "2"}, "may mean two of"),
        (
            {"Correct Answer": "a", "Incorrect Answer 1": "b", "Incorrect Answer 2": " a"},
            "so two options would be right",
        ),
    ],
)
def test_an_answer_that_is_not_one_option_is_refused(
    row: dict[str, Any], cause: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError) as refused:
        read(tmp_path, {"question": Q, **row})
    assert cause in refused.value.cause and "set.jsonl:1" in refused.value.place


def test_a_label_beside_the_answer_decides_between_letter_and_text(tmp_path: Path) -> None:
    blood = {"question": Q, "options": ["O", "A", "B"], "answer": "A"}
    (by_index,) = read(tmp_path, {**blood, "answer_index": 1})
    assert by_index.answer == "B"
    numbers = {"question": Q, "choices": ["0", "4", "2", "6"], "answer": 2}
    assert read(tmp_path, numbers)[0].answer == "C"  # whole numbers count from 0


@pytest.mark.parametrize(
    "row",
    [
        {"answer": "7", "options": {"temperature": 1}},
        {"answer": "7", "choices": []},
        {"answer": "7", "choices": "several"},
        {"answer": "7", "choices": [{"message": "m"}]},
        {"answer": "7", "A": "only one"},
    ],
)
def test_other_fields_of_these_names_are_fields_like_any_other(
    row: dict[str, Any], tmp_path: Path
) -> None:
    (problem,) = read(tmp_path, {"question": Q, **row})
    assert (problem.question, problem.answer, problem.options) == (Q, "7", {})


def test_options_without_an_answer_are_still_shown(tmp_path: Path) -> None:
    row = {"question": Q, "choices": {"text": FOUR, "label": list("ABCD")}, "answerKey": ""}
    (problem,) = read(tmp_path, row, needs_answer=False)
    assert problem.answer is None and problem.question.endswith("D. Bern")
    with pytest.raises(DataError, match="answer"):
        read(tmp_path, row)


def test_a_named_field_that_no_row_has_is_refused_with_the_nearest(tmp_path: Path) -> None:
    rows = ({"question": "q", "solution": "1"}, {"question": "r", "meta": {"x": None}})
    for limit in (None, 1):
        with pytest.raises(DataError) as refused:
            read(tmp_path, *rows, fields={"answer": "solutoin"}, needs_answer=False, limit=limit)
        assert 'No row has a field "solutoin"' in refused.value.cause
        assert 'Did you mean "solution"?' in refused.value.move
    found = read(tmp_path, *rows, fields={"answer": "solution"}, needs_answer=False)
    assert [problem.answer for problem in found] == ["1", None]
