"""`studio data` and the exit codes of its refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engines.record.derived.catalogue import open_catalogue
from engines.record.run_dir import Workspace
from tests.support.run_studio import studio


def a_file(folder: Path, *rows: dict[str, Any], name: str = "mine.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def a_sum(a: int, b: int) -> dict[str, Any]:
    return {"question": f"What is {a} + {b}?", "answer": str(a + b)}


def test_an_added_file_is_copied_listed_noted_and_found_by_name(workspace: Path) -> None:
    file = a_file(workspace.parent, a_sum(1, 2), a_sum(3, 4))
    added = studio("data", "add", str(file), workspace=workspace)
    assert (added.code, added.stderr.count("\n")) == (0, 1)  # what to do next
    assert "mine: 2 problems" in added.stdout
    assert (workspace / "datasets" / "mine.jsonl").read_bytes() == file.read_bytes()

    file.unlink()
    listed = json.loads(studio("data", "list", "--json", workspace=workspace).stdout)
    assert listed[0] == {
        "name": "mine",
        "n": 2,
        "where": "workspace",
        "path": str(workspace / "datasets" / "mine.jsonl"),
        "trouble": "",
    }
    with open_catalogue(Workspace(workspace)) as database:
        (row,) = database.table("datasets").all()
    assert (row["name"], row["n"]) == ("mine", 2)
    shown = studio("data", "preview", "mine", "-n", "1", workspace=workspace).stdout
    assert "What is 1 + 2?" in shown and "What is 3 + 4?" not in shown


def test_adding_the_same_file_again_changes_nothing_and_says_so(workspace: Path) -> None:
    file = a_file(workspace.parent, a_sum(1, 2))
    studio("data", "add", str(file), workspace=workspace)
    copy = workspace / "datasets" / "mine.jsonl"
    before = copy.stat().st_mtime_ns, copy.stat().st_ino
    again = studio("data", "add", str(file), workspace=workspace)
    assert again.code == 0
    assert "nothing changed" in again.stdout
    assert (copy.stat().st_mtime_ns, copy.stat().st_ino) == before


def test_other_content_under_a_taken_name_is_refused_and_names_the_option(workspace: Path) -> None:
    studio("data", "add", str(a_file(workspace.parent, a_sum(1, 2))), workspace=workspace)
    other = str(a_file(workspace.parent, a_sum(5, 6)))
    refused = studio("data", "add", other, workspace=workspace)
    assert (refused.code, refused.stdout) == (2, "")
    assert "--name" in refused.stderr
    assert studio("data", "add", other, "--name", "more", workspace=workspace).code == 0
    assert (workspace / "datasets" / "more.jsonl").exists()


@pytest.mark.parametrize("name", ["../escape", "a b", ".hidden"])
def test_a_name_that_is_no_file_name_is_refused(name: str, workspace: Path) -> None:
    file = str(a_file(workspace.parent, a_sum(1, 2)))
    refused = studio("data", "add", file, "--name", name, workspace=workspace)
    assert refused.code == 2
    assert "--name" in refused.stderr
    assert not list(workspace.parent.rglob("escape.jsonl"))


def test_a_file_that_cannot_be_practised_on_is_refused_with_its_line(workspace: Path) -> None:
    file = a_file(workspace.parent, a_sum(1, 2), {"answer": "7"})
    refused = studio("data", "add", str(file), workspace=workspace)
    assert refused.code == 2
    assert f"{file}:2" in refused.stderr
    assert not workspace.exists()


def test_unusual_field_names_are_renamed_in_the_copy(workspace: Path) -> None:
    row = {"level": 3, "Frage": "Wie viel ist 1 + 1?", "meta": {"Antwort": 2}}
    file = a_file(workspace.parent, row)
    options = ("--question", "Frage", "--answer", "meta.Antwort")
    added = studio("data", "add", str(file), *options, workspace=workspace)
    assert added.code == 0
    assert "question and answer" in added.stderr
    copied = json.loads((workspace / "datasets" / "mine.jsonl").read_text())
    assert (copied["question"], copied["answer"]) == ("Wie viel ist 1 + 1?", "2")
    assert copied["level"] == 3
    again = studio("data", "add", str(file), *options, workspace=workspace)
    assert "nothing changed" in again.stdout
    (problem,) = json.loads(studio("data", "preview", "mine", "--json", workspace=workspace).stdout)
    (asked,) = json.loads(
        studio("data", "preview", str(file), *options, "--json", workspace=workspace).stdout
    )
    assert problem["id"] == asked["id"]


def test_check_names_repeats_contradictions_and_gaps_by_line(workspace: Path) -> None:
    unlike = {**a_sum(3, 4), "answer": "8"}
    rows = (a_sum(1, 2), a_sum(1, 2), a_sum(3, 4), unlike, {"question": "Why?"})
    file = str(a_file(workspace.parent, *rows))
    checked = studio("data", "check", file, "--json", workspace=workspace)
    report = json.loads(checked.stdout)
    assert checked.code == 0
    assert (report["n"], report["clean"], report["without_answer"]) == (5, False, [5])
    assert (report["duplicates"], report["contradictory"]) == ([[1, 2]], [[3, 4]])
    text = studio("data", "check", file, workspace=workspace).stdout
    assert "lines 1, 2" in text and "lines 3, 4" in text and "4 of 5; none on line 5" in text
    assert "doubtful" in text


def test_a_clean_set_is_called_clean(workspace: Path) -> None:
    assert studio("data", "check", "arithmetic", workspace=workspace).stdout.endswith("clean\n")


def test_an_unknown_name_is_refused_with_the_nearest_one(workspace: Path) -> None:
    for command in ("check", "preview"):
        refused = studio("data", command, "arithmetik", workspace=workspace)
        assert (refused.code, refused.stdout) == (2, "")
        assert '"arithmetic"' in refused.stderr


def test_a_name_of_the_workspace_hides_the_bundled_one(workspace: Path) -> None:
    file = a_file(workspace.parent, a_sum(1, 2), name="arithmetic.jsonl")
    added = studio("data", "add", str(file), workspace=workspace)
    assert "hides the bundled" in added.stderr
    (shown,) = json.loads(
        studio("data", "preview", "arithmetic", "--json", workspace=workspace).stdout
    )
    assert shown["question"] == "What is 1 + 2?"
    rows = json.loads(studio("data", "list", "--json", workspace=workspace).stdout)
    assert [row["where"] for row in rows if row["name"] == "arithmetic"] == ["workspace", "hidden"]


def test_a_broken_file_among_the_data_sets_is_listed_with_its_trouble(workspace: Path) -> None:
    (workspace / "datasets").mkdir(parents=True)
    (workspace / "datasets" / "bad.jsonl").write_text("{")
    listed = studio("data", "list", workspace=workspace)
    assert listed.code == 0
    assert "bad.jsonl:1" in listed.stderr
    assert "arithmetic" in listed.stdout


def test_foreign_text_reaches_the_terminal_harmless(workspace: Path) -> None:
    file = a_file(workspace.parent, {"question": "\x1b[31mred\u202e?", "answer": "\x07"})
    shown = studio("data", "preview", str(file), workspace=workspace).stdout
    assert "\\u001b[31mred\\u202e?" in shown and "\\u0007" in shown
    assert not {"\x1b", "\u202e", "\x07"} & set(shown)


ROWS = [{**a_sum(1, 2), "level": 1}, {**a_sum(3, 4), "level": 2}]


def test_other_formats_become_jsonl_row_by_row_with_all_fields(workspace: Path) -> None:
    csv = workspace.parent / "table.csv"
    csv.write_text("question,answer,level\nWhat is 1 + 2?,3,1\nWhat is 3 + 4?,7,2\n")
    array = workspace.parent / "array.json"
    array.write_text(json.dumps(ROWS))
    for file, level in ((csv, "1"), (array, 1)):
        added = studio("data", "add", str(file), workspace=workspace)
        assert (added.code, added.stderr.count("\n")) == (0, 1)  # what to do next
        copy = workspace / "datasets" / f"{file.stem}.jsonl"
        rows = [json.loads(line) for line in copy.read_text().splitlines()]
        assert rows[0] == {**ROWS[0], "level": level} and len(rows) == 2
        again = studio("data", "add", str(file), workspace=workspace)
        assert (again.code, "nothing changed" in again.stdout) == (0, True)
        assert len(copy.read_text().splitlines()) == 2
    listed = json.loads(studio("data", "list", "--json", workspace=workspace).stdout)
    assert [(r["name"], r["n"]) for r in listed[:2]] == [("array", 2), ("table", 2)]


def test_parquet_is_added_as_jsonl(workspace: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="Parquet needs the extra `parquet`")
    from pyarrow import parquet

    file = workspace.parent / "columns.parquet"
    parquet.write_table(pyarrow.Table.from_pylist([{**ROWS[0], "tags": ["a"], "x": None}]), file)
    assert studio("data", "add", str(file), workspace=workspace).code == 0
    copied = json.loads((workspace / "datasets" / "columns.jsonl").read_text())
    assert copied == {**ROWS[0], "tags": ["a"], "x": None}


def a_folder(parent: Path) -> Path:
    folder = parent / "both"
    folder.mkdir()
    a_file(folder, *ROWS, name="train.jsonl")
    a_file(folder, ROWS[0], name="test.jsonl")
    return folder


def test_each_split_of_a_folder_is_added_under_a_name_of_its_own(workspace: Path) -> None:
    folder = a_folder(workspace.parent)
    added = studio("data", "add", str(folder), "--json", workspace=workspace)
    assert [(row["name"], row["n"]) for row in json.loads(added.stdout)] == [
        ("both-test", 1),
        ("both-train", 2),
    ]
    copy = workspace / "datasets" / "both-train.jsonl"
    assert copy.read_bytes() == (folder / "train.jsonl").read_bytes()
    one = studio("data", "add", f"{folder}:test", "--name", "held", "--json", workspace=workspace)
    assert json.loads(one.stdout)["name"] == "held"
    renamed = studio("data", "add", str(folder), "--name", "mine", workspace=workspace)
    assert "mine-test: 1 problem " in renamed.stdout and "mine-train: 2" in renamed.stdout
    found = studio("data", "check", "mine:test", "--json", workspace=workspace)
    assert (found.code, json.loads(found.stdout)["n"]) == (0, 1)


def test_a_folder_with_one_bad_split_adds_nothing(workspace: Path) -> None:
    folder = a_folder(workspace.parent)
    (folder / "train.jsonl").write_text("{}\n")
    refused = studio("data", "add", str(folder), workspace=workspace)
    assert refused.code == 2
    assert f"{folder / 'train.jsonl'}:1" in refused.stderr
    assert not (workspace / "datasets").exists()


def test_a_split_is_named_after_a_colon(workspace: Path) -> None:
    a_folder(workspace.parent)
    for name, n in (("both:test", 1), ("both:train", 2), ("both", 2)):
        checked = studio("data", "check", name, "--json", workspace=workspace)
        assert json.loads(checked.stdout)["n"] == n
    shown = studio("data", "preview", "both:test", "--json", workspace=workspace)
    assert [row["question"] for row in json.loads(shown.stdout)] == ["What is 1 + 2?"]


def test_folders_and_tables_put_among_the_data_sets_are_listed(workspace: Path) -> None:
    (workspace / "datasets").mkdir(parents=True)
    a_folder(workspace / "datasets")
    (workspace / "datasets" / "table.csv").write_text("question,answer\nq,1\n")
    a_file(workspace / "datasets", ROWS[0], name="table.jsonl")
    (workspace / "datasets" / "a.v2").mkdir(parents=True)
    (workspace / "datasets" / "a.v2" / "train-00001-of-00002.jsonl").write_text("{}")
    listed = studio("data", "list", "--json", workspace=workspace)
    rows = json.loads(listed.stdout)
    assert "train-00001-of-00002.jsonl" in listed.stderr
    assert [(r["name"], r["n"], r["where"]) for r in rows[:5]] == [
        ("a.v2", None, "workspace"),
        ("both:test", 1, "workspace"),
        ("both:train", 2, "workspace"),
        ("table", 1, "workspace"),
        ("table", 1, "hidden"),
    ]


def test_blank_questions_are_reported_by_check(workspace: Path) -> None:
    rows = (a_sum(1, 2), {"question": " ", "answer": "1"}, a_sum(3, 4))
    file = str(a_file(workspace.parent, *rows))
    checked = studio("data", "check", file, "--json", workspace=workspace)
    report = json.loads(checked.stdout)
    assert (checked.code, report["n"], report["empty"], report["clean"]) == (0, 2, [2], False)
    text = studio("data", "check", file, workspace=workspace).stdout
    assert "blank          line 2" in text
    assert text.endswith("doubtful: 1 line without a question; look before practising\n")


def test_unusual_field_names_of_a_table_are_renamed_in_the_copy(workspace: Path) -> None:
    file = workspace.parent / "table.csv"
    file.write_text("Frage,Antwort,level\nq,1,3\n")
    options = ("--question", "Frage", "--answer", "Antwort")
    assert studio("data", "add", str(file), *options, workspace=workspace).code == 0
    copied = json.loads((workspace / "datasets" / "table.jsonl").read_text())
    assert copied == {"question": "q", "answer": "1", "level": "3"}


def test_every_accepted_answer_is_shown(workspace: Path) -> None:
    row = {"question": "What is 2 + 3?", "answer": ["999", "5"]}
    file = str(a_file(workspace.parent, row))
    shown = studio("data", "preview", file, workspace=workspace).stdout
    assert "answer: 999 or 5\n" in shown
    tried = studio("try", "rehearsal", f"data.practice={file}", workspace=workspace).stdout
    assert "truth    999 or 5\n" in tried and "(5 == 5)" in tried


def test_rows_without_an_answer_are_told_with_who_refuses_them(workspace: Path) -> None:
    file = a_file(workspace.parent, a_sum(1, 2), {"question": "Why?"})
    added = studio("data", "add", str(file), workspace=workspace)
    note = "note: mine: 1 of 2 have no answer: the math and text verifiers refuse those\n"
    assert added.code == 0 and added.stderr.startswith(f"{note}next: ")


def test_check_says_that_a_file_is_a_log(workspace: Path) -> None:
    replies = [{**a_sum(1, 2), "response": reply, "model": "m"} for reply in "ab"]
    file = str(a_file(workspace.parent, *replies))
    checked = studio("data", "check", file, workspace=workspace)
    assert "2 rows are replies to 1 question (a log)\n" in checked.stdout
    report = json.loads(studio("data", "check", file, "--json", workspace=workspace).stdout)
    assert (report["n"], report["logged_rows"], report["logged_questions"]) == (1, 2, 1)
    plain = str(a_file(workspace.parent, replies[0], {**a_sum(3, 4), "response": "c"}))
    assert "log" not in studio("data", "check", plain, workspace=workspace).stdout


def test_a_number_of_many_digits_survives_being_added(workspace: Path) -> None:
    file = workspace.parent / "big.json"
    file.write_text('[{"question": "q", "answer": 12345678901234567890.5}]')
    assert studio("data", "add", str(file), workspace=workspace).code == 0
    (shown,) = json.loads(studio("data", "preview", "big", "--json", workspace=workspace).stdout)
    assert shown["answer"] == "12345678901234567890.5"


def test_check_fails_where_no_row_has_an_answer_and_says_the_next_move(workspace: Path) -> None:
    file = a_file(workspace.parent, {"question": "Why?", "solution": "1"}, {"question": "How?"})
    checked = studio("data", "check", str(file), workspace=workspace)
    assert checked.code == 2 and "answers        0 of 2" in checked.stdout
    assert "No row has an answer." in checked.stderr
    assert "doubtful: no row has an answer" in checked.stdout and "clean" not in checked.stdout
    assert "--answer NAME" in checked.stderr and "given_ground_truth=false" in checked.stderr
    named = studio("data", "check", str(file), "--answer", "solution", workspace=workspace)
    assert named.code == 0


def test_a_named_field_that_is_nowhere_is_refused_by_every_command(workspace: Path) -> None:
    file = str(a_file(workspace.parent, {"question": "Why?", "solution": "1"}))
    for command in ("add", "check", "preview"):
        refused = studio("data", command, file, "--answer", "solutoin", workspace=workspace)
        assert refused.code == 2 and 'Did you mean "solution"?' in refused.stderr
    wanted = ("data.fields={answer: solutoin}", f"data.practice={file}")
    run = studio("headless", "rehearsal", *wanted, workspace=workspace)
    assert run.code == 2 and 'Did you mean "solution"?' in run.stderr


def test_adding_tells_which_rows_contradict_each_other(workspace: Path) -> None:
    rows = (a_sum(1, 2), {"question": "What is 1  + 2?", "answer": "4"}, a_sum(3, 4))
    other = {**a_sum(3, 4), "answer": "8"}
    file = a_file(workspace.parent, *rows, other)
    added = studio("data", "add", str(file), workspace=workspace)
    note = "note: mine: questions with different answers: 2 (lines 1, 2; lines 3, 4)\n"
    assert added.code == 0 and added.stderr.startswith(note)


def test_nothing_bundled_is_warned_of_even_behind_a_set_of_its_name(workspace: Path) -> None:
    listed = studio("data", "list", workspace=workspace)
    assert "calculator-demonstrations" in listed.stdout and "note" not in listed.stderr
    file = a_file(workspace.parent, a_sum(1, 2), name="calculator-demonstrations.jsonl")
    studio("data", "add", str(file), workspace=workspace)
    assert "note" not in studio("data", "list", workspace=workspace).stderr


def test_choices_with_other_field_names_are_the_same_problem_in_the_copy(workspace: Path) -> None:
    row = {"Frage": "Which?", "choices": ["O", "A", "B"], "lösung": 1, "level": 3}
    file = str(a_file(workspace.parent, row))
    options = ("--question", "Frage", "--answer", "lösung")
    assert studio("data", "add", file, *options, workspace=workspace).code == 0
    (asked,) = json.loads(
        studio("data", "preview", file, *options, "--json", workspace=workspace).stdout
    )
    (copied,) = json.loads(studio("data", "preview", "mine", "--json", workspace=workspace).stdout)
    assert copied["question"] == asked["question"] == "Which?\n\nA. O\nB. A\nC. B"
    assert (copied["id"], copied["answer"]) == (asked["id"], "B")
    assert copied["meta"]["level"] == 3
