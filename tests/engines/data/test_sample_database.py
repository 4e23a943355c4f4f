"""Youtu-Agent's database of samples as data."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from engines.core.errors import DataError
from engines.data.dataset import read_problems
from engines.data.rows import open_table
from engines.data.source import DataSource, resolve_data
from tests.support.youtu_layout import PROBLEMS, write_samples


@pytest.mark.parametrize("times", [1, 3])
def test_a_set_is_read_in_its_order_and_a_row_uploaded_again_is_one(
    tmp_path: Path, times: int
) -> None:
    path = write_samples(tmp_path / "any.name", ("B", "A"), times)
    problems = read_problems(resolve_data("any.name:A", [tmp_path]))
    assert [(p.question, p.answer) for p in problems] == list(PROBLEMS)
    first = problems[0]
    assert first.source == "training_free_grpo"
    assert first.meta == {"dataset": "A", "index": 0, "level": 0, "meta": {"set": "A"}}
    assert [place for _, place, _ in open_table(DataSource(path, "A")).rows] == [
        f"{path}:A, row 1",
        f"{path}:A, row 2",
    ]


def test_the_tries_of_an_experiment_are_a_log(tmp_path: Path) -> None:
    path = write_samples(tmp_path / "test.db")
    rows = [row for _, _, row in open_table(DataSource(path, "tried")).rows]
    assert [(row["question"], row["answer"], row["response"], row["reward"]) for row in rows] == [
        (*PROBLEMS[0], "42", 1.0),
        (*PROBLEMS[0], "32", 0.0),
    ]
    (problem,) = read_problems(DataSource(path, "tried"))
    assert problem.answer == "42" and "response" not in problem.meta


def test_a_database_may_be_a_root_whose_sets_are_named(tmp_path: Path) -> None:
    path = write_samples(tmp_path / "test.db", ("AIME24", "AIME25"))
    assert resolve_data("AIME25", [tmp_path / "none", path]) == DataSource(path, "AIME25")
    with pytest.raises(DataError, match="It is not found"):
        resolve_data("AIME26", [path])


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("test.db", "It holds several data sets: A, B, tried. Name one: test.db:A."),
        ("test.db:C", 'It holds no data set "C". There are: A, B, tried.'),
        ("empty.db", "It holds no samples: the tables data and evaluation_data are empty"),
        ("cut.db:A", "It cannot be read as a SQLite database"),
    ],
)
def test_what_cannot_be_read_says_why_and_what_there_is(
    tmp_path: Path, name: str, words: str
) -> None:
    whole = write_samples(tmp_path / "test.db", ("A", "B")).read_bytes()
    (tmp_path / "cut.db").write_bytes(whole[:600])
    empty = sqlite3.connect(tmp_path / "empty.db")
    empty.execute("CREATE TABLE other (id INTEGER)")
    empty.close()
    with pytest.raises(DataError) as caught:
        read_problems(resolve_data(name, [tmp_path]))
    assert words in str(caught.value)


@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_a_database_in_use_is_read_as_it_was_committed_and_nothing_is_left_beside_it(
    tmp_path: Path, mode: str
) -> None:
    path = write_samples(tmp_path / "test.db")
    writer = sqlite3.connect(path)
    writer.execute(f"PRAGMA journal_mode={mode}")
    writer.execute("UPDATE data SET answer = '0' WHERE \"index\" = 0")
    writer.commit()
    assert read_problems(DataSource(path, "AIME24"))[0].answer == "0"
    writer.close()
    assert read_problems(DataSource(path, "AIME24"))[0].answer == "0"
    assert [file.name for file in tmp_path.iterdir()] == ["test.db"]
