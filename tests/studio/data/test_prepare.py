"""`studio data prepare`: each public layout, as its authors publish it, becomes the common one."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy
import pyarrow
import pytest
from pyarrow import parquet

from engines.data.dataset import read_problems
from engines.data.public_layouts import LAYOUTS, join_answers
from engines.data.rows import open_table
from engines.record.derived.catalogue import open_catalogue
from engines.record.run_dir import Workspace
from tests.support.run_studio import studio

ROOT = Path(__file__).parents[3]
Rows = list[dict[str, Any]]
WRAPPED = (
    "Solve the following math problem step by step. The last line of your response should be of "
    "the form Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n{}"
    '\n\nRemember to put your answer on its own line after "Answer:".'
)


def dapo(question: str, answer: str, index: str = "a") -> dict[str, Any]:
    return {
        "data_source": "math_dapo",
        "prompt": [{"role": "user", "content": WRAPPED.format(question)}],
        "ability": "MATH",
        "reward_model": {"ground_truth": answer, "style": "rule-lighteval/MATH_v2"},
        "extra_info": {"index": index},
    }


def walker(n: int, level: str) -> dict[str, Any]:
    info = {"difficulty_level": level, "lang": "en", "type": "multi_source", "domain": "game"}
    more = {"hop": "multi-source", "source_website": ["https://a.example"], "golden_path": ["a"]}
    address = "https://a.example/"
    return {
        "question": f"{level} {n}?",
        "answer": f"a{n}",
        "root_url": address,
        "info": info | more,
    }


def gpqa(n: int) -> dict[str, Any]:
    wrong = {f"Incorrect Answer {k}": f"wrong {n}{k}" for k in (1, 2, 3)}
    about = {"Explanation": "since", "Subdomain": "Optics", "Record ID": f"rec{n}"}
    return {"Question": f"Which light {n}?", "Correct Answer": f"right {n}", **wrong, **about}


def deepmath(n: int) -> dict[str, Any]:
    solutions = {f"r1_solution_{k}": f"way {k} to {n}" for k in (1, 2, 3)}
    about = {"difficulty": float(n % 3) + 4.5, "topic": "Mathematics -> Algebra"}
    return {"question": f"Find {n}. ", "final_answer": f"{n}", **about, **solutions}


def nq(n: int) -> dict[str, Any]:
    return {"id": f"train_{n}", "question": f"who was {n}", "golden_answers": [f"a{n}", f"b{n}"]}


PUBLISHED: dict[str, Rows] = {
    "aime24": [
        {"ID": "2024-I-1", "Problem": "Find x.", "Solution": "x is 7.", "Answer": 7},
        {"ID": "2024-I-2", "Problem": "Find y.", "Solution": "y is 25.", "Answer": 25},
    ],
    "aime25": [
        {"id": 0, "problem": "Find z.", "answer": "70", "solution": "z = 70", "url": "u", "year": 1}
    ],
    "dapo-math-17k": [dapo("One?", "1"), dapo("Two?", "2"), dapo("One?", "1"), dapo("Two?", "3")],
    "deepmath-103k": [deepmath(1), deepmath(2)],
    "deepmath-103k-solutions": [deepmath(1), {**deepmath(2), "r1_solution_2": None}],
    "nq": [nq(1), {"id": "train_1", "question": "is it so?", "golden_answers": ["yes"]}],
    "webwalkerqa": [walker(1, "easy"), walker(2, "hard")],
    "afm-web-rl": [
        {"data_source": "web", "extra_info": {"question": "Who?", "answer": ["me"], "index": 4}},
        {"data_source": "web", "extra_info": {"question": "What?", "answer": ["a", "b"]}},
    ],
    "gsm8k": [{"question": "How many?", "answer": "She has <<1000+200=1200>>.\n#### 1,200"}],
    "math500": [
        {"problem": "Add.", "solution": "So \\boxed{3}.", "answer": "3", "subject": "Algebra",
         "level": 2, "unique_id": "test/algebra/1.json"}
    ],
    "gpqa": [gpqa(1)],
    "mmlu": [
        {"question": "Group?", "subject": "biology", "choices": ["A", "B", "AB", "0"], "answer": 1}
    ],
}  # fmt: skip


def common(
    at: int, question: str, result: str, source: str, idx: int | None = None
) -> dict[str, Any]:
    about = {"ground_truth": result, "idx": at if idx is None else idx}
    return {"id": at, "question": question, "chain": "", "result": result, "source": source,
            "extra_info": about}  # fmt: skip


PREPARED: dict[str, Rows] = {
    "aime24": [
        common(0, "Find x.", "7", "aime24") | {"solution": "x is 7."},
        common(1, "Find y.", "25", "aime24") | {"solution": "y is 25."},
    ],
    "aime25": [common(0, "Find z.", "70", "aime25") | {"solution": "z = 70"}],
    "dapo-math-17k": [common(n, f"{w}?", str(n + 1), "dapo-math-17k")
                      for n, w in enumerate(("One", "Two"))],
    "deepmath-103k": [
        common(n - 1, f"Find {n}.", str(n), "mathhard")
        | {"difficulty": n + 4.5, "topic": "Mathematics -> Algebra"}
        for n in (1, 2)
    ],
    "deepmath-103k-solutions": [
        common(at, f"Find {n}.", str(n), "mathhard", n - 1)
        | {"difficulty": n + 4.5, "topic": "Mathematics -> Algebra", "solution": f"way {k} to {n}"}
        for at, (n, k) in enumerate([(1, 1), (1, 2), (1, 3), (2, 1), (2, 3)])
    ],
    "nq": [common(0, "who was 1?", "a1; b1", "nq"), common(1, "is it so?", "yes", "nq")],
    "webwalkerqa": [
        common(at, f"{level} {at + 1}?", f"a{at + 1}", "webwalkerqa")
        | {"level": level, "root_url": "https://a.example/", "lang": "en", "type": "multi_source",
           "domain": "game"}
        for at, level in enumerate(("easy", "hard"))
    ],
    "afm-web-rl": [common(0, "Who?", "me", "afm-web-rl")],
    "gsm8k": [common(0, "How many?", "1200", "gsm8k") | {"solution": "She has <<1000+200=1200>>."}],
    "math500": [
        common(0, "Add.", "3", "math500")
        | {"solution": "So \\boxed{3}.", "subject": "Algebra", "level": "2"}
    ],
    "mmlu": [
        common(0, "Group?", "B", "mmlu")
        | {"options": ["A", "B", "AB", "0"], "answer_index": 1, "subject": "biology"}
    ],
}  # fmt: skip


def write_parquet(file: Path, rows: Rows) -> Path:
    parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    return file


def write_jsonl(file: Path, rows: Rows) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return file


def prepared(workspace: Path, *args: str) -> dict[str, Any]:
    ran = studio("data", "prepare", *args, "--json", workspace=workspace)
    assert ran.code == 0, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout)[0]
    return found


def test_a_wrong_answer_is_told_by_the_name_of_its_field(workspace: Path, tmp_path: Path) -> None:
    row = {"question": "Group?", "subject": "s", "choices": ["A", "B"], "answer": 7}
    path = write_jsonl(tmp_path / "m.jsonl", [row])
    done = studio("data", "prepare", "mmlu", "--from", str(path), workspace=workspace)
    assert done.code == 2 and "\"answer\" is '7', which is none of the 2" in done.stderr


@pytest.mark.parametrize("name", PREPARED)
@pytest.mark.parametrize("write", [write_parquet, write_jsonl])
def test_a_published_layout_becomes_the_common_one(
    workspace: Path, tmp_path: Path, name: str, write: Any
) -> None:
    file = write(tmp_path / ("x.parquet" if write is write_parquet else "x.jsonl"), PUBLISHED[name])
    told = prepared(workspace, name, "--from", str(file))
    made = workspace / "datasets" / f"{name}.parquet"
    assert parquet.read_table(made).to_pylist() == PREPARED[name]
    assert (told["n"], told["path"]) == (len(PREPARED[name]), str(made))
    assert told["digest"] == hashlib.blake2b(made.read_bytes(), digest_size=16).hexdigest()
    with open_catalogue(Workspace(workspace)) as database:
        (row,) = database.table("datasets").all()
    size = made.stat().st_size
    assert dict(row) == {"name": name, "path": f"datasets/{name}.parquet", "n": told["n"],
                         "bytes": size, "digest": told["digest"]}  # fmt: skip
    problems = read_problems(made)
    assert [p.answer for p in problems] == [row["result"].split("; ")[0] for row in PREPARED[name]]


def test_every_known_layout_is_tested_here() -> None:
    assert set(PUBLISHED) == set(LAYOUTS) == {*PREPARED, "gpqa"}


def test_options_of_gpqa_stand_in_an_order_that_tells_nothing(
    workspace: Path, tmp_path: Path
) -> None:
    with (tmp_path / "gpqa_diamond.csv").open("w", newline="") as file:
        rows = [gpqa(n) for n in range(40)]
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    prepared(workspace, "gpqa", "--from", str(tmp_path / "gpqa_diamond.csv"))
    made = parquet.read_table(workspace / "datasets" / "gpqa.parquet").to_pylist()
    places = [row["answer_index"] for row in made]
    assert set(places) == {0, 1, 2, 3}
    for n, row in enumerate(made):
        assert row["options"][row["answer_index"]] == f"right {n}"
        assert row["result"] == "ABCD"[row["answer_index"]]
        assert (len(row["options"]), row["subject"]) == (4, "Optics")


def test_what_is_left_out_is_counted_and_a_repeat_keeps_its_first_answer(
    workspace: Path, tmp_path: Path
) -> None:
    dapo_file = write_parquet(tmp_path / "dapo.parquet", PUBLISHED["dapo-math-17k"])
    told = prepared(workspace, "dapo-math-17k", "--from", str(dapo_file))
    assert told["parts"][0]["left_out"] == {"repeats": 1, "repeats with another answer": 1}
    afm = write_parquet(tmp_path / "afm.parquet", PUBLISHED["afm-web-rl"])
    shown = studio("data", "prepare", "afm-web-rl", "--from", str(afm), workspace=workspace).stdout
    assert "2 rows of" in shown and "1 with several answers left out" in shown


@pytest.mark.parametrize(
    ("given", "joined"),
    [
        (["Paris", " Lyon "], "Paris; Lyon"),
        (("a", None, float("nan"), "", "b"), "a; b"),
        (numpy.array(["x", "y"]), "x; y"),
        (numpy.array("x"), "x"),
        (" 18 ", "18"),
        (18.0, "18"),
        (0, "0"),
        (numpy.float64("nan"), ""),
        (None, ""),
        ([], ""),
    ],
)
def test_answers_of_any_kind_become_one_text(given: Any, joined: str) -> None:
    assert join_answers("here", given) == joined


def the_planners(folder: Path) -> None:
    (folder / "nq").mkdir()
    write_jsonl(folder / "nq" / "train.jsonl", [nq(n) for n in range(7)])
    write_jsonl(folder / "nq" / "dev.jsonl", [nq(99)])
    (folder / "deepmath-103k" / "data").mkdir(parents=True)
    for shard in range(2):
        rows = [deepmath(n) for n in range(5 * shard, 5 * shard + 5)]
        name = f"train-{shard:05}-of-00002.parquet"
        write_parquet(folder / "deepmath-103k" / "data" / name, rows)
    write_parquet(folder / "aime24.parquet", PUBLISHED["aime24"])


def test_planner_is_both_sets_joined_shuffled_and_numbered_anew(
    workspace: Path, tmp_path: Path
) -> None:
    the_planners(tmp_path)
    told = prepared(workspace, "planner-182k", "--from", str(tmp_path))
    both = [common(n, f"who was {n}?", f"a{n}; b{n}", "nq") for n in range(7)]
    both += [common(n, f"Find {n}.", str(n), "mathhard") for n in range(10)]
    order = numpy.random.Generator(numpy.random.PCG64(42)).permutation(17)
    expected = [both[at] | {"id": n} for n, at in enumerate(order)]
    table = parquet.read_table(workspace / "datasets" / "planner-182k.parquet")
    assert table.to_pylist() == expected
    assert table.schema.names == ["id", "question", "chain", "result", "source", "extra_info"]
    assert (told["n"], told["seed"]) == (17, 42)
    held_out = parquet.read_table(workspace / "datasets" / "aime24.parquet").to_pylist()
    assert held_out == PREPARED["aime24"]

    run = ("data.practice=planner-182k", "evaluation.data=aime24", "practice.batch_size=4")
    plan = studio("headless", "rehearsal", *run, "--dry-run", "--json", workspace=workspace)
    assert plan.code == 0, plan.stderr

    other = prepared(workspace, "nq+deepmath-103k", "--from", str(tmp_path), "--seed", "7")
    assert (other["name"], other["digest"] != told["digest"]) == ("nq-deepmath-103k", True)


def test_a_shuffle_is_that_of_the_datasets_library() -> None:
    datasets = pytest.importorskip("datasets")
    from engines.data.public_layouts import shuffled

    rows = [{"n": n} for n in range(50)]
    assert shuffled(rows, 42) == datasets.Dataset.from_list(rows).shuffle(seed=42).to_list()


def test_webwalker_follows_the_ratio_of_its_levels_in_every_beginning(
    workspace: Path, tmp_path: Path
) -> None:
    levels = random.Random(3).sample(["easy"] * 12 + ["medium"] * 14 + ["hard"] * 15, 41)
    file = write_jsonl(tmp_path / "w.jsonl", [walker(n, at) for n, at in enumerate(levels)])
    about = ("webwalkerqa", "--from", str(file), "--levels", "4:7:6")
    prepared(workspace, *about, "--limit", "34", "--name", "w34")
    made = parquet.read_table(workspace / "datasets" / "w34.parquet").to_pylist()
    pattern = ["easy"] * 4 + ["medium"] * 7 + ["hard"] * 6
    assert [row["level"] for row in made] == pattern * 2
    assert len({row["question"] for row in made}) == 34
    prepared(workspace, *about, "--name", "all")
    whole = parquet.read_table(workspace / "datasets" / "all.parquet").to_pylist()
    assert [r["question"] for r in whole[:34]] == [r["question"] for r in made]
    assert [row["level"] for row in whole] == pattern * 2


def test_solutions_of_deepmath_are_read_as_demonstrations(workspace: Path, tmp_path: Path) -> None:
    from engines.grpo.loss.sft_data import read_demonstrations

    file = write_parquet(tmp_path / "d.parquet", PUBLISHED["deepmath-103k-solutions"])
    prepared(workspace, "deepmath-103k-solutions", "--from", str(file))
    shown = read_demonstrations(workspace / "datasets" / "deepmath-103k-solutions.parquet")
    assert [(one.question, one.reply, one.answer) for one in shown] == [
        ("Find 1.", "way 1 to 1", "1"), ("Find 1.", "way 2 to 1", "1"),
        ("Find 1.", "way 3 to 1", "1"), ("Find 2.", "way 1 to 2", "2"),
        ("Find 2.", "way 3 to 2", "2"),
    ]  # fmt: skip


def test_the_same_again_changes_nothing_and_other_content_is_refused(
    workspace: Path, tmp_path: Path
) -> None:
    file = write_parquet(tmp_path / "a.parquet", PUBLISHED["aime24"])
    assert prepared(workspace, "aime24", "--from", str(file))["new"]
    made = workspace / "datasets" / "aime24.parquet"
    before = made.stat().st_ino
    assert not prepared(workspace, "aime24", "--from", str(file))["new"]
    assert made.stat().st_ino == before
    other = write_parquet(tmp_path / "b.parquet", PUBLISHED["aime24"][:1])
    again = studio("data", "prepare", "aime24", "--from", str(other), workspace=workspace)
    assert (again.code, made.stat().st_ino) == (2, before)
    assert "exists with other content" in again.stderr and "--name" in again.stderr
    # Neither may hide the other behind one name.
    mine = write_jsonl(tmp_path / "aime24.jsonl", [{"question": "q", "answer": "a"}])
    added = studio("data", "add", str(mine), workspace=workspace)
    assert (added.code, "exists with other content" in added.stderr) == (2, True)
    assert {path.name for path in made.parent.iterdir()} == {made.name, ".prepare.lock"}


def test_nothing_of_planner_is_written_where_its_validation_set_is_taken(
    workspace: Path, tmp_path: Path
) -> None:
    the_planners(tmp_path)
    one = write_parquet(tmp_path / "one.parquet", PUBLISHED["aime24"][:1])
    prepared(workspace, "aime24", "--from", str(one))
    refused = studio(
        "data", "prepare", "planner-182k", "--from", str(tmp_path), workspace=workspace
    )
    assert (refused.code, "aime24.parquet exists" in refused.stderr) == (2, True)
    assert not (workspace / "datasets" / "planner-182k.parquet").exists()


def test_a_dry_run_counts_and_writes_nothing(workspace: Path, tmp_path: Path) -> None:
    the_planners(tmp_path)
    assert prepared(workspace, "planner-182k", "--from", str(tmp_path), "--dry-run")["n"] == 17
    named = studio("data", "prepare", "gpqa", "--dry-run", workspace=workspace)
    assert (named.code, "Idavidrein/gpqa/gpqa_diamond:train" in named.stdout) == (0, True)
    assert not workspace.exists()


WRONG: dict[str, tuple[tuple[str, ...], str]] = {
    "no such set": (("dapo",), "dapo-math-17k"),
    "one of them is none": (("nq+nothing",), "nothing"),
    "no such file": (
        ("nq", "--from", "nowhere/"),
        'data set "nowhere/": It is not found',
    ),
    "another layout": (("deepmath-103k", "--from", "nq.jsonl"), '"final_answer" is missing'),
    "one file for two": (("planner-182k", "--from", "nq.jsonl"), "Give --from FOLDER with nq"),
    "a part that is missing": (("planner-182k", "--from", "."), "deepmath-103k"),
    "levels of what has none": (("nq", "--levels", "4:7:6"), "no column level"),
    "no ratio": (("webwalkerqa", "--levels", "4:7"), "EASY:MEDIUM:HARD"),
    "a name with a way out": (("nq", "--from", "nq.jsonl", "--name", "../x"), "--name NAME"),
    "nothing left": (("nq", "--from", "empty.jsonl"), "No row is left"),
    "a broken line": (("nq", "--from", "broken.jsonl"), "broken.jsonl:1"),
    "no mark in gsm8k": (("gsm8k", "--from", "gsm.jsonl"), "####"),
    "an answer that is none of the options": (("mmlu", "--from", "mmlu.jsonl"), "none of the 2"),
    "half a surrogate": (("deepmath-103k-solutions", "--from", "half.jsonl"), "another kind"),
    "another kind": (("deepmath-103k", "--from", "kind.jsonl"), "kind"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_prepared_is_refused_and_leaves_nothing(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_jsonl(tmp_path / "nq.jsonl", [nq(1)])
    write_jsonl(tmp_path / "empty.jsonl", [{"question": " ", "golden_answers": []}])
    (tmp_path / "broken.jsonl").write_text("{\n")
    write_jsonl(tmp_path / "gsm.jsonl", [{"question": "q", "answer": "7"}])
    write_jsonl(tmp_path / "mmlu.jsonl", [{"question": "q", "choices": ["a", "b"], "answer": 5}])
    write_jsonl(tmp_path / "kind.jsonl", [{**deepmath(1), "difficulty": "hard"}])
    half = {"question": "q", "final_answer": "1", "r1_solution_1": "\ud800"}
    write_jsonl(tmp_path / "half.jsonl", [half])
    args, told = WRONG[case]
    refused = studio("data", "prepare", *args, workspace=workspace)
    assert (refused.code, refused.stdout) == (2, ""), refused.stderr
    assert told in refused.stderr
    assert not list(workspace.glob("datasets/*.parquet")) + list(workspace.glob("datasets/.*.tmp"))


FETCH = """
import sys
sys.modules["datasets"] = None
from studio.cli import main
main()
"""


def test_without_the_library_the_layout_the_page_and_the_option_are_named(workspace: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", FETCH, "--workspace", str(workspace), "data", "prepare", "gpqa"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stdout) == (2, "")
    for part in ("--from FILE", "Incorrect Answer 1", "huggingface.co/datasets/Idavidrein/gpqa"):
        assert part in ran.stderr
    assert not list(workspace.glob("datasets/*.parquet"))


def test_a_parquet_file_with_the_usual_other_names_is_read(workspace: Path, tmp_path: Path) -> None:
    rows = [{"question": "Find 1.", "answer": "1"}, {"question": "Find 2.", "answer": "2"}]
    prepared(workspace, "deepmath-103k", "--from", str(write_parquet(tmp_path / "d.parquet", rows)))
    made = parquet.read_table(workspace / "datasets" / "deepmath-103k.parquet").to_pylist()
    assert [row["result"] for row in made] == ["1", "2"]


def test_solutions_that_are_not_wanted_are_not_read(tmp_path: Path) -> None:
    file = write_parquet(tmp_path / "d.parquet", [deepmath(1)])
    rows = open_table(file, LAYOUTS["deepmath-103k"].read).rows
    assert [set(row) for _, _, row in rows] == [{"question", "final_answer", "difficulty", "topic"}]


def test_a_fetch_takes_what_the_library_gives(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    folder = tmp_path / "Maxwell-Jia" / "AIME_2024"
    folder.mkdir(parents=True)
    write_parquet(folder / "train.parquet", PUBLISHED["aime24"])
    kept = {"HF_HOME": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "1"}
    ran = subprocess.run(
        [sys.executable, "-m", "studio", "--workspace", str(tmp_path / "practice"), "data",
         "prepare", "aime24"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT), **kept},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    made = parquet.read_table(tmp_path / "practice" / "datasets" / "aime24.parquet")
    assert made.to_pylist() == PREPARED["aime24"]
    lacking = subprocess.run(
        [sys.executable, "-m", "studio", "--workspace", str(tmp_path / "practice"), "data",
         "prepare", "math500"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT), **kept},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (lacking.returncode, lacking.stdout) == (2, "")
    assert "HuggingFaceH4/MATH-500:test cannot be fetched" in lacking.stderr
    assert "--from FILE" in lacking.stderr and "unique_id" in lacking.stderr


def test_no_name_of_a_public_set_hides_a_bundled_one(workspace: Path, tmp_path: Path) -> None:
    from studio.data.catalogue import bundled_folder
    from studio.data.prepare import PLANNER

    bundled = {path.stem for path in bundled_folder().iterdir()}
    assert bundled.isdisjoint({PLANNER, *LAYOUTS})
    file = write_jsonl(tmp_path / "x.jsonl", PUBLISHED["nq"])
    named = ("nq", "--from", str(file), "--name", "arithmetic")
    ran = studio("data", "prepare", *named, workspace=workspace)
    assert "it hides the bundled data set arithmetic" in ran.stderr


def test_a_kill_leaves_nothing_that_the_next_try_minds(workspace: Path, tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "x.jsonl", PUBLISHED["nq"])
    (workspace / "datasets").mkdir(parents=True)
    (workspace / "datasets" / ".nq.parquet.tmp").write_bytes(b"PAR1 half")
    listed = json.loads(studio("data", "list", "--json", workspace=workspace).stdout)
    assert {row["where"] for row in listed} == {"bundled"}
    assert prepared(workspace, "nq", "--from", str(file))["n"] == 2
    assert not (workspace / "datasets" / ".nq.parquet.tmp").exists()
