"""Packed files, UTF-16 and spreadsheets as data."""

from __future__ import annotations

import gzip
import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import openpyxl
import pytest
from backports import zstd

from engines.core.errors import DataError
from engines.data.dataset import read_problems
from engines.data.source import resolve_data
from tests.support.run_studio import studio

LINES = "".join(json.dumps({"question": f"q{n} é?", "answer": str(n)}) + "\n" for n in range(3))
TABLE = "question,answer\nq0 é?,0\nq1 é?,1\nq2 é?,2\n"
PACKED: dict[str, Callable[[], bytes]] = {
    "x.jsonl.gz": lambda: gzip.compress(LINES.encode()),
    "x.jsonl.zst": lambda: zstd.compress(LINES.encode()),
    "x.csv.gz": lambda: gzip.compress(TABLE.encode()),
    "x.csv.zst": lambda: zstd.compress(b"\xef\xbb\xbf" + TABLE.encode()),
    "x.json.gz": lambda: gzip.compress(json.dumps([*map(json.loads, LINES.splitlines())]).encode()),
    "x.jsonl": lambda: LINES.encode("utf-16"),
    "x.csv": lambda: b"\xfe\xff" + TABLE.encode("utf-16-be"),
}


@pytest.mark.parametrize("name", PACKED)
def test_a_packed_file_is_read_found_by_its_bare_name_and_added(tmp_path: Path, name: str) -> None:
    workspace = tmp_path / "practice"
    (tmp_path / name).write_bytes(PACKED[name]())
    read = read_problems(tmp_path / name)
    assert [(p.question, p.answer, p.source) for p in read] == [
        (f"q{n} é?", str(n), "x") for n in range(3)
    ]
    added = studio("data", "add", str(tmp_path / name), workspace=workspace)
    assert (added.code, "x: 3 problems" in added.stdout) == (0, True), added.stderr
    assert read_problems(workspace / "datasets" / "x.jsonl") == read
    (workspace / "datasets" / "x.jsonl").unlink()
    (workspace / "datasets" / name).write_bytes(PACKED[name]())
    listed = json.loads(studio("data", "list", "--json", workspace=workspace).stdout)
    assert (listed[0]["name"], listed[0]["n"]) == ("x", 3)
    assert studio("data", "check", "x", workspace=workspace).code == 0


def test_packed_shards_are_one_split(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    for shard in range(2):
        packed = gzip.compress(LINES.encode())
        (tmp_path / "set" / f"train-{shard:05}-of-00002.jsonl.gz").write_bytes(packed)
    assert len(read_problems(tmp_path / "set")) == 6


def a_book(file: Path, *sheets: list[list[object]]) -> Path:
    book = openpyxl.Workbook()
    for number, rows in enumerate(sheets):
        sheet = book.active if number == 0 else book.create_sheet()
        for row in rows:
            sheet.append(row)
    book.save(file)
    return file


def test_a_spreadsheet_is_read_row_by_row(tmp_path: Path) -> None:
    rows = [["question", "answer", "note"], ["6 · 7?", 42, None], [], ["Half?", 0.5, "é"]]
    found = read_problems(a_book(tmp_path / "x.xlsx", rows, []))
    assert [(p.question, p.answer, p.meta) for p in found] == [
        ("6 · 7?", "42", {"note": None}),
        ("Half?", "0.5", {"note": "é"}),
    ]


def test_two_sheets_are_not_guessed_between(tmp_path: Path) -> None:
    rows: list[list[object]] = [["question", "answer"], ["q", "a"]]
    with pytest.raises(DataError, match="Several of its sheets hold something: Sheet, Sheet1"):
        read_problems(a_book(tmp_path / "x.xlsx", rows, rows))


def test_a_sheet_is_named_as_a_split_is(tmp_path: Path) -> None:
    books = [[["question", "answer"], [text, "a"]] for text in ("first?", "second?")]
    a_book(tmp_path / "two.xlsx", *books)
    for name in ("two.xlsx:Sheet1", "two:Sheet1"):
        (problem,) = read_problems(resolve_data(name, (tmp_path,)))
        assert problem.question == "second?"
    with pytest.raises(DataError, match=r"It has no sheet Other\. There are: Sheet, Sheet1"):
        read_problems(resolve_data("two.xlsx:Other", (tmp_path,)))
    with pytest.raises(DataError, match=r"Name one: two\.xlsx:Sheet"):
        read_problems(resolve_data("two.xlsx", (tmp_path,)))


def a_zip(name: str, data: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, data)
    return file.getvalue()


@pytest.mark.parametrize(
    ("name", "data", "cause"),
    [
        ("x.jsonl.gz", lambda: gzip.compress(bytes(65 << 20)), "unpacks to more than 64 MB"),
        ("x.jsonl.zst", lambda: zstd.compress(bytes(65 << 20)), "unpacks to more than 64 MB"),
        ("x.xlsx", lambda: a_zip("xl/a.xml", bytes(65 << 20)), "unpacks to more than"),
        ("x.jsonl.gz", lambda: gzip.compress(gzip.compress(LINES.encode())), "not UTF-8"),
        ("x.jsonl.gz", lambda: gzip.compress(LINES.encode())[:-9], "packed with gzip, and damaged"),
        ("x.jsonl.zst", lambda: zstd.compress(LINES.encode())[:-3], "with zstd, and damaged"),
        ("x.jsonl.zst", lambda: zstd.compress(LINES.encode())[:6] + b"abc", "and damaged"),
        ("x.xlsx", lambda: a_zip("a.txt", b"hello"), "no spreadsheet that can be read"),
        ("x.csv", lambda: TABLE.encode("utf-16")[:-1], "no whole UTF-16"),
    ],
)  # fmt: skip
def test_what_cannot_be_unpacked_is_refused(
    tmp_path: Path, name: str, data: Callable[[], bytes], cause: str
) -> None:
    (tmp_path / name).write_bytes(data())
    with pytest.raises(DataError) as refused:
        read_problems(tmp_path / name)
    assert cause in str(refused.value)


def test_texts_that_shrink_well_are_no_bomb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engines.data.rows.FREE_BYTES", 1000)
    text = "".join(
        json.dumps({"question": f"What is {n * n} plus {n}?", "answer": str(n * n + n)}) + "\n"
        for n in range(1000)
    )
    (tmp_path / "x.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    assert len(read_problems(tmp_path / "x.jsonl.gz")) == 1000
