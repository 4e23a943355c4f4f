"""The scores of held-out rollouts are found again by content and survive anything."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from engines.core.errors import RecordError
from engines.core.types import Problem, Usage
from engines.record.scores import Score, ScoreBook, problem_digest
from tests.engines.record.test_journal import file_size_limit
from tests.support.builders import a_problem

PROBLEM = a_problem()
ABOUT = {"policy.model": "m", "experiences": ""}


def a_score(index: int = 0, reward: float = 1.0) -> Score:
    return Score(
        problem=problem_digest(PROBLEM),
        index=index,
        reward=reward,
        critique="right",
        metrics={"m": 0.5},
        status="ok",
        usage=Usage(3, 4, 1),
    )


def kept(folder: Path, *scores: Score) -> ScoreBook:
    book = ScoreBook(folder, ABOUT)
    for score in scores:
        book.add(score)
    book.close()
    return book


def test_what_one_book_keeps_another_of_the_same_measurement_finds(tmp_path: Path) -> None:
    kept(tmp_path, a_score(0), a_score(1, 0.0))
    again = ScoreBook(tmp_path, ABOUT)
    assert again.find(problem_digest(PROBLEM), 0) == a_score(0)
    assert again.find(problem_digest(PROBLEM), 1) == a_score(1, 0.0)
    assert (
        again.count_missing([problem_digest(PROBLEM)], 2),
        again.count_missing([problem_digest(PROBLEM)], 5),
    ) == (
        0,
        3,
    )


@pytest.mark.parametrize("about", [{**ABOUT, "experiences": "- [E1] x"}, {**ABOUT, "seed": 2}])
def test_another_measurement_finds_nothing(tmp_path: Path, about: dict[str, object]) -> None:
    kept(tmp_path, a_score())
    assert ScoreBook(tmp_path, about).find(problem_digest(PROBLEM), 0) is None


@pytest.mark.parametrize(
    "other",
    [
        replace(PROBLEM, id="another"),
        replace(PROBLEM, meta={"alternatives": ["5", "five"]}),
        replace(PROBLEM, source="elsewhere"),
    ],
)
def test_a_problem_that_a_verifier_could_judge_otherwise_is_another(
    tmp_path: Path, other: Problem
) -> None:
    kept(tmp_path, a_score())
    assert ScoreBook(tmp_path, ABOUT).find(problem_digest(other), 0) is None


def test_rows_with_numbers_of_any_size_have_content(tmp_path: Path) -> None:
    huge = replace(PROBLEM, meta={"n": 10**40, "odd": {1, 2}})
    assert problem_digest(huge) != problem_digest(PROBLEM)


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_a_line_cut_anywhere_costs_only_itself(tmp_path: Path, cut: int) -> None:
    book = kept(tmp_path, a_score(0), a_score(1))
    file = book.path / "scores.jsonl"
    file.write_bytes(file.read_bytes()[:-cut])
    after = ScoreBook(tmp_path, ABOUT)
    assert after.find(problem_digest(PROBLEM), 0) == a_score(0)
    assert after.find(problem_digest(PROBLEM), 1) is None
    after.add(a_score(2))
    after.close()
    last = ScoreBook(tmp_path, ABOUT)
    assert (last.find(problem_digest(PROBLEM), 0), last.find(problem_digest(PROBLEM), 2)) == (
        a_score(0),
        a_score(2),
    )


def test_two_writers_at_a_time_lose_nothing(tmp_path: Path) -> None:
    one, other = ScoreBook(tmp_path, ABOUT), ScoreBook(tmp_path, ABOUT)
    for index in range(0, 40, 2):
        one.add(a_score(index))
        other.add(a_score(index + 1))
    one.close()
    other.close()
    assert ScoreBook(tmp_path, ABOUT).count_missing([problem_digest(PROBLEM)], 40) == 0


def test_what_another_process_adds_meanwhile_is_found_and_stands(tmp_path: Path) -> None:
    one, other = ScoreBook(tmp_path, ABOUT), ScoreBook(tmp_path, ABOUT)
    one.add(a_score(0, 1.0))
    assert other.find(problem_digest(PROBLEM), 0) == a_score(0, 1.0)
    assert other.add(a_score(0, 0.0)) == a_score(0, 1.0)


def test_the_first_score_of_a_try_stands(tmp_path: Path) -> None:
    kept(tmp_path, a_score(0, 1.0), a_score(0, 0.0))
    found = ScoreBook(tmp_path, ABOUT).find(problem_digest(PROBLEM), 0)
    assert found is not None
    assert found.reward == 1.0


def test_looking_writes_nothing(tmp_path: Path) -> None:
    ScoreBook(tmp_path, ABOUT).count_missing([problem_digest(PROBLEM)], 3)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_told_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "evaluations").write_text("a file in the way")
    with pytest.raises(RecordError, match="evaluations"):
        kept(tmp_path / "evaluations", a_score())


def test_a_score_that_finds_no_room_is_told_and_kept_once_there_is(tmp_path: Path) -> None:
    book = kept(tmp_path, a_score(0))
    size = (book.path / "scores.jsonl").stat().st_size
    for room in (0, 20):  # none at all, and not enough: a write comes back short
        again = ScoreBook(tmp_path, ABOUT)
        with file_size_limit(size + room), pytest.raises(RecordError, match="Make room"):
            again.add(a_score(1))
        again.close()
        found = ScoreBook(tmp_path, ABOUT)
        assert found.find(problem_digest(PROBLEM), 0) == a_score(0)
        assert found.find(problem_digest(PROBLEM), 1) is None
    kept(tmp_path, a_score(1))
    assert ScoreBook(tmp_path, ABOUT).find(problem_digest(PROBLEM), 1) == a_score(1)
