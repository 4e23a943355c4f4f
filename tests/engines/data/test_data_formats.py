"""Formats of data sets: what each gives, and what a wrong file is told with exit code 2."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from engines.core.errors import DataError
from engines.core.types import Problem
from engines.data.dataset import check_dataset, doubts_line, read_numbered_problems, read_problems
from engines.data.source import HELD_OUT, PRACTISED, DataSource, find_splits, resolve_data
from studio.config.loading import load_run
from studio.run.models import open_model
from tests.support.run_studio import studio

ONE = {"question": "1 + 1?", "answer": "2", "level": 3}
TWO = {"question": "2 + 2?", "answer": "4", "level": 1}
ROWS = [ONE, TWO]


def as_jsonl(path: Path, rows: list[Any]) -> None:
    text(path, "".join(json.dumps(row) + "\n" for row in rows))


def as_json(path: Path, rows: list[Any]) -> None:
    text(path, json.dumps(rows, indent=1))


def as_csv(path: Path, rows: list[Any]) -> None:
    lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
    text(path, "\r\n".join(lines) + "\r\n")


def as_parquet(path: Path, rows: list[Any]) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="Parquet needs the extra `parquet`")
    from pyarrow import parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)


def as_arrow(path: Path, rows: list[Any]) -> None:
    """An Arrow stream, as save_to_disk writes it."""
    pyarrow = pytest.importorskip("pyarrow", reason="Arrow needs the extra `parquet`")
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pyarrow.Table.from_pylist(rows)
    with (
        pyarrow.OSFile(str(path), "wb") as file,
        pyarrow.ipc.new_stream(file, table.schema) as writer,
    ):
        writer.write_table(table)


def text(path: Path, content: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def saved(folder: Path, rows: list[Any]) -> None:
    """What Dataset.save_to_disk leaves."""
    name = "data-00000-of-00001.arrow"
    as_arrow(folder / name, rows)
    text(folder / "dataset_info.json", "{}")
    text(folder / "state.json", json.dumps({"_data_files": [{"filename": name}], "_split": None}))


def saved_dict(folder: Path, **splits: list[Any]) -> None:
    for name, rows in splits.items():
        saved(folder / name, rows)
    text(folder / "dataset_dict.json", json.dumps({"splits": list(splits)}))


def read(source: Path | DataSource, **options: Any) -> list[tuple[str, str | None]]:
    return [(p.question, p.answer) for p in read_problems(source, **options)]


def only(path: Path, row: dict[str, Any], **options: Any) -> Problem:
    as_json(path, [row])
    (problem,) = read_problems(path, **options)
    return problem


BOTH = [("1 + 1?", "2"), ("2 + 2?", "4")]


@pytest.mark.parametrize(
    ("name", "write", "numbers"),
    [
        ("set.jsonl", as_jsonl, [1, 2]),
        ("set.ndjson", as_jsonl, [1, 2]),
        ("set.json", as_json, [1, 2]),
        ("set.json", as_jsonl, [1, 2]),  # rows under the extension of an array
        ("set.jsonl", as_json, [1, 2]),  # and the other way round
        ("set", as_jsonl, [1, 2]),
        ("set.csv", as_csv, [2, 3]),  # the header is line 1
        ("set.parquet", as_parquet, [1, 2]),
        ("set", as_parquet, [1, 2]),
        ("set.arrow", as_arrow, [1, 2]),
    ],
)
def test_each_format_gives_the_same_problems(
    tmp_path: Path, name: str, write: Callable[[Path, list[Any]], None], numbers: list[int]
) -> None:
    path = tmp_path / name
    write(path, ROWS)
    assert read(path) == BOTH
    assert [number for number, _ in read_numbered_problems(path)] == numbers
    first, _ = read_problems(path)
    assert first.source == "set"
    assert first.meta == {"level": "3" if name.endswith(".csv") else 3}
    as_jsonl(tmp_path / "as.jsonl", ROWS)
    assert [p.id for p in read_problems(path)] == [
        p.id for p in read_problems(tmp_path / "as.jsonl")
    ]


def test_csv_keeps_line_breaks_quotes_and_long_cells_and_counts_lines(tmp_path: Path) -> None:
    path = tmp_path / "set.csv"
    long = "x" * 200_000  # the module's own limit is 131,072
    text(path, f'\ufeffquestion,answer,note\n"a\nb, ""c""",1,\n\n{long},2,n\n')
    (line, first), (last, second) = read_numbered_problems(path)
    assert (line, first.question, first.meta) == (2, 'a\nb, "c"', {"note": None})
    assert (last, second.question) == (5, long)


@pytest.mark.parametrize("mark", [";", "\t"])
def test_tables_with_semicolons_or_tabs_are_csv_too(tmp_path: Path, mark: str) -> None:
    text(tmp_path / "set.csv", f"question{mark}answer\n1,5 + 1?{mark}2,5\n")
    assert read(tmp_path / "set.csv") == [("1,5 + 1?", "2,5")]


def test_a_column_without_a_name_is_an_index_and_left_out(tmp_path: Path) -> None:
    text(tmp_path / "set.csv", ",question,answer\n0,1 + 1?,2\n")
    (problem,) = read_problems(tmp_path / "set.csv")
    assert (problem.question, problem.meta) == ("1 + 1?", {})


def test_parquet_values_that_json_has_not_become_what_it_has(tmp_path: Path) -> None:
    row = {
        "question": "q",
        "golden_answers": ["a", None, "b"],
        "day": date(2026, 1, 2),
        "price": Decimal("1.50"),
        "score": float("nan"),
        "image": b"abc",
        "extra_info": {"index": 4},
    }
    as_parquet(tmp_path / "set.parquet", [row])
    (problem,) = read_problems(tmp_path / "set.parquet")
    assert problem.answer == "a"
    assert problem.meta == {
        "alternatives": ["a", "b"],
        "day": "2026-01-02",
        "price": "1.50",
        "score": None,
        "image": "<3 bytes>",
        "extra_info": {"index": 4},
    }


def test_parquet_answers_that_are_nan_count_as_null(tmp_path: Path) -> None:
    as_parquet(tmp_path / "set.parquet", [{"question": "q", "answer": float("nan")}])
    assert read(tmp_path / "set.parquet", needs_answer=False) == [("q", None)]
    with pytest.raises(DataError, match=r'row 1: "answer" is empty'):
        read_problems(tmp_path / "set.parquet")


# Rows as the sources document them.

ALPACA = {"instruction": "Add the numbers.", "input": "1 and 2", "output": "3"}


@pytest.mark.parametrize(
    ("row", "question", "answer", "meta"),
    [
        (ALPACA, "Add the numbers.\n\n1 and 2", "3", {}),
        ({**ALPACA, "input": ""}, "Add the numbers.", "3", {}),
        ({"instruction": "Add.", "output": "3", "id": 1}, "Add.", "3", {"id": 1}),
        ({**ALPACA, "answer": "three"}, "Add the numbers.\n\n1 and 2", "three", {"output": "3"}),
        # A question of its own is the question, whatever the instruction says.
        (
            {"question": "q", "answer": "a", "instruction": "Be brief."},
            "q",
            "a",
            {"instruction": "Be brief."},
        ),
        # Youtu-Agent's upload file (Y12).
        (
            {"dataset": "mine", "source": "training_free_grpo", "question": "q", "answer": "a"},
            "q",
            "a",
            {"dataset": "mine"},
        ),
        # The common schema of maths and search data (M05).
        (
            {
                "id": 0,
                "question": "q",
                "chain": "",
                "result": "a",
                "source": "mathhard",
                "extra_info": {"ground_truth": "a", "idx": 0},
            },
            "q",
            "a",
            {"id": 0, "chain": "", "extra_info": {"ground_truth": "a", "idx": 0}},
        ),
        # The same with several answers in one text.
        (
            {"question": "q", "result": "Paris; Lutetia; Paris", "source": "nq"},
            "q",
            "Paris",
            {"alternatives": ["Paris", "Lutetia"]},
        ),
        ({"question": "q", "result": "x; y", "source": "other"}, "q", "x; y", {}),
        # WebWalkerQA.
        (
            {
                "question": "q",
                "answer": "a",
                "root_url": "https://example.org/",
                "info": {"difficulty_level": "easy"},
            },
            "q",
            "a",
            {"root_url": "https://example.org/", "info": {"difficulty_level": "easy"}},
        ),
        # AFM's web data: the question without the prompt around it, answers as a list.
        (
            {
                "prompt": [{"role": "user", "content": "Use the tools. q"}],
                "extra_info": {"question": "q", "answer": ["a"]},
            },
            "q",
            "a",
            {
                "prompt": [{"role": "user", "content": "Use the tools. q"}],
                "extra_info": {"question": "q", "answer": ["a"]},
                "alternatives": ["a"],
            },
        ),
        # DAPO-Math-17k and other data of verl.
        (
            {
                "prompt": [{"role": "user", "content": "q"}],
                "reward_model": {"ground_truth": "34", "style": "rule"},
            },
            "q",
            "34",
            {"reward_model": {"ground_truth": "34", "style": "rule"}},
        ),
        (
            {"question": "q", "reward_model": {"ground_truth": {"target": ["a", "b"]}}},
            "q",
            "a",
            {
                "reward_model": {"ground_truth": {"target": ["a", "b"]}},
                "alternatives": ["a", "b"],
            },
        ),
        ({"question": "q", "golden_answers": [None, " ", 4]}, "q", "4", {"alternatives": ["4"]}),
    ],
)
def test_rows_of_known_sources_load_as_they_stand(
    tmp_path: Path, row: dict[str, Any], question: str, answer: str, meta: dict[str, Any]
) -> None:
    problem = only(tmp_path / "set.json", row)
    assert (problem.question, problem.answer, problem.meta) == (question, answer, meta)


def test_a_field_map_goes_before_alpaca(tmp_path: Path) -> None:
    fields = {"question": "input", "answer": "output"}
    problem = only(tmp_path / "set.json", ALPACA, fields=fields)
    assert (problem.question, problem.answer) == ("1 and 2", "3")


# Folders.


@pytest.mark.parametrize(
    "layout",
    ["files", "shards", "csv", "parquet in data", "folders", "save_to_disk"],
)
def test_a_folder_has_its_splits_however_it_was_written(tmp_path: Path, layout: str) -> None:
    folder = tmp_path / "set"
    match layout:
        case "files":
            as_jsonl(folder / "train.jsonl", ROWS)
            as_jsonl(folder / "test.jsonl", [ONE])
            text(folder / "README.md", "# about")
            for name in ("dataset_infos.json", "config.json", "README.json", "._train.jsonl"):
                text(folder / name, "{}")
        case "shards":
            as_jsonl(folder / "train-00000-of-00002.jsonl", [ONE])
            as_jsonl(folder / "train-00001-of-00002.jsonl", [TWO])
            as_jsonl(folder / "test-00000-of-00001.jsonl", [ONE])
        case "csv":
            as_csv(folder / "train.csv", ROWS)
            as_json(folder / "test.json", [ONE])
        case "parquet in data":
            as_parquet(folder / "data/train-00000-of-00002-0a1b2c.parquet", [ONE])
            as_parquet(folder / "data/train-00001-of-00002-0a1b2c.parquet", [TWO])
            as_parquet(folder / "data/test-00000-of-00001.parquet", [ONE])
        case "folders":
            as_jsonl(folder / "train/0000.jsonl", [ONE])
            as_jsonl(folder / "train/0001.jsonl", [TWO])
            as_jsonl(folder / "test/0000.jsonl", [ONE])
        case _:
            saved_dict(folder, train=ROWS, test=[ONE])
    assert set(find_splits(folder)) == {"train", "test"}
    train, test = resolve_data("set:train", (tmp_path,)), resolve_data("set:test", (tmp_path,))
    assert read(train) == BOTH
    assert read(test) == BOTH[:1]
    assert [number for number, _ in read_numbered_problems(train)][-1] == (
        3 if layout == "csv" else 2
    )
    assert (train.stem, str(test)) == ("set-train", f"{folder}:test")
    assert read_problems(test)[0].source == "set"


def test_a_set_saved_on_its_own_needs_no_split(tmp_path: Path) -> None:
    saved(tmp_path / "set", ROWS)
    source = resolve_data("set", (tmp_path,))
    assert (source.split, source.stem, read(source)) == (None, "set", BOTH)
    assert read(tmp_path / "set") == BOTH


@pytest.mark.parametrize(
    ("splits", "prefer", "chosen"),
    [
        (["main"], (), "main"),
        (["main"], HELD_OUT, "main"),
        (["test", "train"], PRACTISED, "train"),
        (["test", "train", "validation"], HELD_OUT, "test"),
        (["train", "validation"], HELD_OUT, "validation"),
        (["dev", "train"], HELD_OUT, "dev"),
    ],
)
def test_an_unnamed_split_is_the_only_one_or_the_one_for_the_purpose(
    tmp_path: Path, splits: list[str], prefer: tuple[str, ...], chosen: str
) -> None:
    for split in splits:
        as_jsonl(tmp_path / "set" / f"{split}.jsonl", ROWS)
    assert resolve_data("set", (tmp_path,), prefer).split == chosen


@pytest.mark.parametrize(
    ("files", "splits"),
    [
        (["train/0.jsonl", "eval/0.jsonl"], {"train", "eval"}),
        (["train.jsonl", "hard/0.jsonl"], {"train", "hard"}),
        (["data/train.jsonl", "eval/0.jsonl"], {"train", "eval"}),
        (["data/train.jsonl", "test.jsonl"], {"train", "test"}),
        (["train/0.jsonl", "images/1.png", ".cache/x.jsonl"], {"train"}),
    ],
)
def test_no_split_is_passed_over_whatever_its_name(
    tmp_path: Path, files: list[str], splits: set[str]
) -> None:
    for name in files:
        as_jsonl(tmp_path / "set" / name, ROWS)
    assert set(find_splits(tmp_path / "set")) == splits
    for split in splits:
        assert read(DataSource(tmp_path / "set", split)) == BOTH


def test_a_split_that_is_not_clear_is_asked_for(tmp_path: Path) -> None:
    for split in ("easy", "hard"):
        as_jsonl(tmp_path / "set" / f"{split}.jsonl", ROWS)
    with pytest.raises(DataError, match=r"the splits easy, hard.*Name one: set:easy"):
        resolve_data("set", (tmp_path,), PRACTISED)
    with pytest.raises(DataError, match=r'no split "esy".*Did you mean "easy"'):
        resolve_data("set:esy", (tmp_path,))


def test_a_bare_name_finds_files_by_their_extension_and_then_a_folder(tmp_path: Path) -> None:
    as_jsonl(tmp_path / "set" / "train.jsonl", ROWS)
    order = [tmp_path / "set"]
    for name in ("set.parquet", "set.csv", "set.json", "set.jsonl"):
        assert resolve_data("set", (tmp_path,)).path == order[-1]
        text(tmp_path / name, "{}")
        order.append(tmp_path / name)
    assert resolve_data("set", (tmp_path,)).path == tmp_path / "set.jsonl"
    assert resolve_data("set.csv", (tmp_path,)).path == tmp_path / "set.csv"
    assert resolve_data("set/:train", (tmp_path,)).split == "train"


def test_a_folder_without_data_does_not_hide_a_set_of_another_root(tmp_path: Path) -> None:
    (tmp_path / "first" / "set").mkdir(parents=True)
    text(tmp_path / "first" / "set" / "notes.md", "mine")
    as_jsonl(tmp_path / "second" / "set.jsonl", ROWS)
    roots = (tmp_path / "first", tmp_path / "second")
    assert resolve_data("set", roots).path == tmp_path / "second" / "set.jsonl"
    for name in ("", " "):
        with pytest.raises(DataError, match="not found"):
            resolve_data(name, roots)


def test_a_colon_may_be_part_of_a_files_name(tmp_path: Path) -> None:
    as_jsonl(tmp_path / "a:b.jsonl", ROWS)
    assert resolve_data("a:b", (tmp_path,)) == DataSource(tmp_path / "a:b.jsonl")


def test_a_run_file_leaves_the_split_open_and_takes_it_by_purpose(tmp_path: Path) -> None:
    as_jsonl(tmp_path / "set" / "train.jsonl", ROWS)
    as_jsonl(tmp_path / "set" / "test.jsonl", [ONE])
    text(
        tmp_path / "run.yaml",
        "policy: replay:log.csv\ndata: {practice: set}\n"
        "evaluation: {data: [set, 'set:train'], do_eval: true}\n",
    )
    text(tmp_path / "log.csv", "prompt,completion\n1 + 1?,2\n2 + 2?,5\n")
    run = load_run(str(tmp_path / "run.yaml"), [], tmp_path / "practice", {}, tmp_path / "else")
    folder = str(tmp_path / "set")
    # Absolute, so that the run means the same from anywhere; the split is as written.
    assert run.config.data.practice == folder
    assert run.config.evaluation.data == (folder, f"{folder}:train")
    assert run.config.policy.model == f"replay:{tmp_path / 'log.csv'}"
    assert run.data_path(run.config.data.practice).split == "train"
    held_out = [run.data_path(name, "evaluation.data") for name in run.config.evaluation.data]
    assert [source.split for source in held_out] == ["test", "train"]
    assert open_model(run.config.policy).name == "replay:log"
    with pytest.raises(DataError) as refused:
        run.data_path(f"{folder}:hard", "evaluation.data")
    assert "run.yaml:3" in refused.value.place and 'no split "hard"' in refused.value.cause


# Doubtful, but readable.


def test_everything_doubtful_is_reported_with_its_lines(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    rows: list[Any] = [
        {"question": "a", "answer": "1"},
        {"question": " ", "answer": "1"},
        {"question": "a", "answer": "1"},
        {"question": None, "answer": "1"},
        {"question": "b", "answer": " "},
        {"question": "c", "answer": ["1", "2"]},
        {"question": "c", "answer": ["2", "3"]},  # 2 is right for both
        {"question": "d", "answer": ["1", "2"]},
        {"question": "d", "answer": ["2", "1"]},  # the same set
        {"question": "e", "answer": ["1", "2"]},
        {"question": "e", "answer": "3"},
    ]
    as_jsonl(path, rows)
    report = check_dataset(path)
    assert (report.n, report.unit, report.is_clean) == (9, "line", False)
    assert (report.empty, report.without_answer) == ((2, 4), (5,))
    assert report.duplicates == ((1, 3), (8, 9))
    assert report.contradictory == ((10, 11),)
    assert doubts_line(report) == (
        "2 lines without a question, 1 line without an answer, 2 lines repeating another, "
        "2 lines contradicting each other"
    )
    with pytest.raises(DataError, match=r'set\.jsonl:2: "question" is empty.*1 more .* line 4'):
        read_problems(path, needs_answer=False)


def test_a_set_that_has_no_answers_at_all_is_not_doubtful(tmp_path: Path) -> None:
    as_csv(tmp_path / "set.csv", [{"question": "a"}, {"question": "b"}])
    report = check_dataset(tmp_path / "set.csv")
    assert (report.without_answer, report.is_clean, doubts_line(report)) == ((2, 3), True, None)


def test_rows_are_called_rows_where_a_file_has_no_lines(tmp_path: Path) -> None:
    as_parquet(tmp_path / "set.parquet", [ONE, ONE])
    checked = studio("data", "check", "set.parquet", workspace=tmp_path / "practice")
    assert "duplicates     1 (rows 1, 2)" in checked.stdout
    shown = studio("data", "preview", "set.parquet", workspace=tmp_path / "practice")
    assert shown.stdout.startswith("row 1  ")


# Wrong: exit code 2, with place, cause and next move.

Write = Callable[[Path], None]


def put(name: str, content: str | bytes) -> Write:
    return lambda folder: text(folder / name, content)


def rows_of(name: str, *rows: Any) -> Write:
    return lambda folder: as_json(folder / name, list(rows))


def all_of(*writes: Write) -> Write:
    return lambda folder: [write(folder) for write in writes] and None


def no_arrow_file(folder: Path) -> None:
    saved(folder / "set", ROWS)
    (folder / "set" / "data-00000-of-00001.arrow").unlink()


def cut_parquet(folder: Path) -> None:
    as_parquet(folder / "set.parquet", ROWS)
    data = (folder / "set.parquet").read_bytes()
    text(folder / "set.parquet", data[: len(data) // 2])


def parquet_row(**row: Any) -> Write:
    return lambda folder: as_parquet(folder / "set.parquet", [ONE, row])


LINE = json.dumps(ONE) + "\n"

BAD: dict[str, tuple[str, Write, tuple[str, str, str]]] = {
    "no such set": ("set", put("sets.jsonl", LINE), ('"set"', "not found", '"sets"')),
    "a name too long": ("x" * 300, put("x", ""), ("xxx", "not found", "Give the path")),
    "empty": ("set.jsonl", put("set.jsonl", ""), ("set.jsonl", "no problem", "one problem")),
    "only blank questions": (
        "set.jsonl",
        put("set.jsonl", '{"question": ""}\n'),
        ("set.jsonl", "no problem", "one problem"),
    ),
    "half of utf-16": (
        "set.jsonl",
        put("set.jsonl", LINE.encode("utf-16")[:-1]),
        ("set", "UTF-16", "UTF-8"),
    ),
    "latin-1 in JSONL": (
        "set.jsonl",
        put("set.jsonl", LINE.encode() + b'{"question": "\xe9?"}\n'),
        ("set.jsonl:2", "not UTF-8 (byte 65)", "UTF-8"),
    ),
    "latin-1 in JSON": (
        "set.json",
        put("set.json", b'[\n{"question": "\xe9?"}]'),
        ("set.json:2", "not UTF-8", "UTF-8"),
    ),
    "latin-1 in CSV": (
        "set.csv",
        put("set.csv", b"question,answer\nq,1\n\xe9?,2\n"),
        ("set.csv:3", "not UTF-8", "UTF-8"),
    ),
    "gzip": ("set.jsonl.gz", put("set.jsonl.gz", b"\x1f\x8b\x08"), ("set", "gzip", "Unpack")),
    "a spreadsheet": ("set.xlsx", put("set.xlsx", b"PK\x03\x04"), ("set", "spreadsheet", "CSV")),
    "prose": ("set.txt", put("set.txt", "Hello\n"), ("set.txt:1", "not JSON", "one JSON object")),
    "broken line": (
        "set.jsonl",
        put("set.jsonl", LINE + '{"question": "q",\n'),
        ("set.jsonl:2", "not JSON", "one JSON object"),
    ),
    "a list on a line": (
        "set.jsonl",
        put("set.jsonl", LINE + "[1]\n"),
        ("set.jsonl:2", "a list", "for each"),
    ),
    "a number as line": (
        "set.jsonl",
        put("set.jsonl", LINE + "1\n"),
        ("set.jsonl:2", "a single value", "for each"),
    ),
    "infinity": (
        "set.jsonl",
        put("set.jsonl", '{"question": "q", "answer": -Infinity}\n'),
        ("set.jsonl:1", "-Infinity is no JSON value", "Mend"),
    ),
    "nesting": (
        "set.jsonl",
        put("set.jsonl", '{"question": ' + "[" * 200_000 + "\n"),
        ("set.jsonl:1", "not JSON", "Mend"),
    ),
    "an open array": (
        "set.json",
        put("set.json", '[\n {"question": "q", "answer": "1"},\n'),
        ("set.json", "not JSON", "Mend"),
    ),
    "no comma": (
        "set.json",
        put("set.json", '[{"question": "q"}\n{"question": "r"}]'),
        ("set.json", "line 2", "Mend"),
    ),
    "texts in an array": (
        "set.json",
        rows_of("set.json", ONE, "q"),
        ("set.json, row 2", "a text, not an object", "for each"),
    ),
    "no rows in an array": (
        "set.json",
        put("set.json", "[]"),
        ("set.json", "no problem", "one problem"),
    ),
    "unknown fields": (
        "set.json",
        rows_of("set.json", ONE, {"frage": "q", "antwort": "1"}),
        ("set.json, row 2", "the fields are: frage, antwort", "data.fields.question=NAME"),
    ),
    "no fields": (
        "set.json",
        rows_of("set.json", {}),
        ("set.json, row 1", "the fields are: none", "data.fields.question"),
    ),
    "question as object": (
        "set.json",
        rows_of("set.json", {"question": {"text": "q"}}),
        ("set.json, row 1", '"question" holds an object', "data.fields"),
    ),
    "question as messages without a user": (
        "set.json",
        rows_of("set.json", {"prompt": [{"role": "system", "content": "q"}]}),
        ("set.json, row 1", '"prompt" holds a list', "data.fields"),
    ),
    "instruction as list": (
        "set.json",
        rows_of("set.json", {"instruction": ["q"], "output": "1"}),
        ("set.json, row 1", '"instruction" holds a list', "data.fields"),
    ),
    "answer as object": (
        "set.json",
        rows_of("set.json", {"question": "q", "answer": {"text": "1"}}),
        ("set.json, row 1", '"answer" holds an object', "data.fields"),
    ),
    "answers as lists of lists": (
        "set.json",
        rows_of("set.json", {"question": "q", "answer": [["1"]]}),
        ("set.json, row 1", '"answer" holds a list', "data.fields"),
    ),
    "CSV without a header": (
        "set.csv",
        put("set.csv", "1 + 1?,2\n2 + 2?,4\n"),
        ("set.csv:2", "the fields are: 1 + 1?, 2", "data.fields.question"),
    ),
    "CSV with a header alone": (
        "set.csv",
        put("set.csv", "question,answer\n"),
        ("set.csv", "no problem", "one problem"),
    ),
    "CSV with too many cells": (
        "set.csv",
        put("set.csv", "question,answer\nq,1\nWhat, now?,2\n"),
        ("set.csv:3", "3 cells, but there are 2 columns", "in quotes"),
    ),
    "CSV with too few cells": (
        "set.csv",
        put("set.csv", 'question,answer\n"q\nr"\n'),
        ("set.csv:2", "1 cells, but there are 2 columns", "missing cells"),
    ),
    "CSV with an open quote": (
        "set.csv",
        put("set.csv", 'question,answer\nq,1\n"r,2\ns,3\n'),
        ("set.csv:3", "not CSV: unexpected end of data", "quotes"),
    ),
    "CSV with a stray quote": (
        "set.csv",
        put("set.csv", 'question,answer\n"a" b,1\n'),
        ("set.csv:2", "not CSV", "quotes"),
    ),
    "CSV with two columns of a name": (
        "set.csv",
        put("set.csv", "question,answer,answer\nq,1,2\n"),
        ("set.csv:1", 'Two columns are called "answer"', "Rename one"),
    ),
    "no Parquet": (
        "set.parquet",
        put("set.parquet", LINE),
        ("set.parquet", "no whole Parquet or Arrow file", "again"),
    ),
    "half a Parquet file": ("set.parquet", cut_parquet, ("set.parquet", "no whole", "again")),
    "no Arrow": (
        "set.arrow",
        put("set.arrow", LINE),
        ("set.arrow", "no whole Parquet or Arrow file", "again"),
    ),
    "Parquet with unknown fields": (
        "set.parquet",
        lambda folder: as_parquet(folder / "set.parquet", [{"frage": "q"}]),
        ("set.parquet, row 1", "the fields are: frage", "data.fields.question"),
    ),
    "Parquet with an object": (
        "set.parquet",
        lambda folder: as_parquet(
            folder / "set.parquet", [{"question": "q", "answer": {"a": "b"}}]
        ),
        ("set.parquet, row 1", '"answer" holds an object', "data.fields"),
    ),
    "a folder without data": (
        "./set",
        put("set/README.md", "x"),
        ("set", "holds no data.", "train.jsonl"),
    ),
    "splits, none of them for practice": (
        "set",
        all_of(put("set/easy.jsonl", LINE), put("set/hard.jsonl", LINE)),
        ("set", "the splits easy, hard", "set:easy"),
    ),
    "an unknown split": (
        "set:tset",
        all_of(put("set/test.jsonl", LINE), put("set/train.jsonl", LINE)),
        ("set", 'no split "tset"', "test"),
    ),
    "a split of a file": (
        "set:train",
        put("set.jsonl", LINE),
        ("set:train", "one file and has no split", 'Leave ":train" out'),
    ),
    "a split as file and as folder": (
        "set:train",
        all_of(put("set/train.jsonl", LINE), put("set/train/0.jsonl", LINE)),
        ("set", "Several files are the split train", "Keep one"),
    ),
    "CSV called JSONL": (
        "set.jsonl",
        lambda folder: as_csv(folder / "set.jsonl", ROWS),
        ("set.jsonl:1", "not JSON", "one JSON object a line"),
    ),
    "a number beyond all numbers": (
        "set.jsonl",
        put("set.jsonl", LINE + '{"question": "q", "answer": 1e400}\n'),
        ("set.jsonl:2", "1e400 is too large", "Mend"),
    ),
    "a field twice": (
        "set.jsonl",
        put("set.jsonl", LINE + '{"question": "q", "answer": "1", "answer": "2"}\n'),
        ("set.jsonl:2", 'the field "answer" stands twice', "Mend it"),
    ),
    "a split in two formats": (
        "set:train",
        all_of(put("set/train.jsonl", LINE), put("set/train.csv", "question\nq\n")),
        ("set", "should have 1 files, and has: train.csv, train.jsonl", "Keep one"),
    ),
    "a missing shard": (
        "set",
        all_of(
            put("set/train-00000-of-00003.jsonl", LINE),
            put("set/train-00002-of-00003.jsonl", LINE),
        ),
        ("set", "should have 3 files", "fetch"),
    ),
    "a bad row in a shard": (
        "set",
        all_of(
            put("set/train-00000-of-00002.jsonl", LINE * 2),
            put("set/train-00001-of-00002.jsonl", LINE + "{}\n"),
        ),
        ("train-00001-of-00002.jsonl:2", '"question" is missing', "data.fields"),
    ),
    "a saved set without its file": (
        "set",
        no_arrow_file,
        ("set", "should have 1 files, and has: none", "fetch"),
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_wrong_data_is_refused_with_place_cause_and_next_move(tmp_path: Path, case: str) -> None:
    name, write, (place, cause, move) = BAD[case]
    write(tmp_path)
    with pytest.raises(DataError) as refused:
        check_dataset(resolve_data(name, (tmp_path,)))
    error = refused.value
    assert place in error.place and cause in error.cause and move in error.move, error


def test_wrong_data_ends_a_command_with_exit_code_2(tmp_path: Path) -> None:
    text(tmp_path / "set.jsonl", LINE + "[1]\n")
    refused = studio("data", "check", "set.jsonl", workspace=tmp_path / "practice")
    assert (refused.code, refused.stdout) == (2, "")
    assert "set.jsonl:2: The row holds a list" in refused.stderr


def test_without_pyarrow_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    text(tmp_path / "set.parquet", b"PAR1")
    with pytest.raises(DataError, match=r"not installed.*pip install .*\[parquet\]'"):
        read_problems(tmp_path / "set.parquet")


def test_a_path_below_a_file_is_no_file(tmp_path: Path) -> None:
    text(tmp_path / "x.jsonl", LINE)
    with pytest.raises(DataError, match="cannot be read"):
        read_problems(tmp_path / "x.jsonl" / "y")
