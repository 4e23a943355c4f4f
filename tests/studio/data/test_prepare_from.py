"""`studio data prepare --from`: what a folder looks like, and files that are not what is wanted."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

import pytest
from pyarrow import parquet

from engines.data.public_layouts import LAYOUTS
from tests.studio.data.test_prepare import (
    PUBLISHED,
    Rows,
    deepmath,
    nq,
    prepared,
    the_planners,
    walker,
    write_jsonl,
    write_parquet,
)
from tests.support.run_studio import Result, studio

GSM: Rows = PUBLISHED["gsm8k"]


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def prepare(workspace: Path, *args: str) -> Result:
    return studio("data", "prepare", *args, workspace=workspace)


def refused(workspace: Path, *args: str) -> str:
    ran = prepare(workspace, *args)
    assert (ran.code, ran.stdout) == (2, ""), ran.stderr
    assert not list(workspace.glob("datasets/*.parquet"))
    return ran.stderr


def write_csv(file: Path, rows: Rows) -> Path:
    with file.open("w", newline="") as text:
        writer = csv.DictWriter(text, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return file


def test_a_copy_of_the_hub_is_a_folder_too(workspace: Path, tmp_path: Path) -> None:
    hub = tmp_path / "hub"
    for folder in ("RUC-NLPIR/FlashRAG_datasets/nq", "zwhe99/DeepMath-103K/data", "AIME_2024"):
        (hub / folder).mkdir(parents=True)
    write_jsonl(hub / "RUC-NLPIR/FlashRAG_datasets/nq/train.jsonl", [nq(1), nq(2)])
    write_jsonl(hub / "RUC-NLPIR/FlashRAG_datasets/nq/test.jsonl", [nq(3)])
    write_parquet(hub / "zwhe99/DeepMath-103K/data/train-00000-of-00001.parquet", [deepmath(1)])
    write_parquet(hub / "AIME_2024/train.parquet", PUBLISHED["aime24"])
    assert prepared(workspace, "planner-182k", "--from", "hub")["n"] == 3
    told = refused(tmp_path / "other", "nq:dev", "--from", "hub")
    assert "It has no split dev; there are: test, train. Name one: nq:test." in told
    told = refused(tmp_path / "other", "nq:dev", "--from", "hub/RUC-NLPIR/FlashRAG_datasets/nq")
    assert "It has no split dev; there are: test, train." in told


def test_a_set_that_a_folder_lacks_is_named_with_how_it_may_be_called(
    workspace: Path, tmp_path: Path
) -> None:
    the_planners(tmp_path)
    (tmp_path / "aime24.parquet").unlink()
    told = refused(workspace, "planner-182k", "--from", ".")
    assert "aime24 is missing here" in told
    assert "aime24.jsonl, aime24.parquet, aime24/ or Maxwell-Jia/AIME_2024/" in told
    file = write_csv(tmp_path / "file.csv", GSM)
    assert "Give --from FOLDER" in refused(workspace, "gsm8k+math500", "--from", str(file))


def test_a_dry_run_refuses_what_the_real_run_would(workspace: Path, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", PUBLISHED["aime24"])
    write_jsonl(tmp_path / "b.jsonl", PUBLISHED["aime24"][:1])
    write_jsonl(tmp_path / "empty.jsonl", [{"problem": "", "answer": ""}])
    assert (
        "would be added as" in prepare(workspace, "aime24", "--from", "a.jsonl", "--dry-run").stdout
    )
    assert not workspace.exists()
    assert prepare(workspace, "aime24", "--from", "a.jsonl").code == 0
    again = prepare(workspace, "aime24", "--from", "a.jsonl", "--dry-run")
    assert again.stdout.startswith("aime24: nothing would be changed, ")
    again = prepare(workspace, "aime24", "--from", "a.jsonl")
    assert again.stdout.startswith("aime24: nothing changed, ")
    before = {path: path.stat().st_mtime_ns for path in workspace.rglob("*")}
    for file, cause in (
        ("b.jsonl", "exists with other content"),
        ("empty.jsonl", "No row is left"),
    ):
        other = prepare(workspace, "aime24", "--from", file, "--dry-run")
        assert (other.code, cause in other.stderr) == (2, True), other.stderr
    fetched = prepare(workspace, "aime24", "--dry-run")
    assert "unless that has other content" in fetched.stdout
    assert {path: path.stat().st_mtime_ns for path in workspace.rglob("*")} == before
    told = studio("data", "prepare", "--help", workspace=workspace).stdout
    assert "nothing is written" in " ".join(told.split()) and "nothing is asked" not in told


@pytest.mark.parametrize(
    ("name", "file", "rows", "causes"),
    [
        ("nq", "gsm.csv", GSM, ["a whole solution", "id, question, golden_answers"]),
        ("deepmath-103k", "gsm.csv", GSM, ["a whole solution"]),
        ("afm-web-rl", "gsm.csv", GSM, ["extra_info.question, extra_info.answer"]),
        ("mmlu", "x.parquet", PUBLISHED["gsm8k"], ["No row is left"]),
        ("dapo-math-17k", "x.jsonl", GSM, ["prompt[0].content, reward_model.ground_truth"]),
        ("afm-web-rl", "x.jsonl", [nq(1)], ["extra_info.question, extra_info.answer"]),
        ("nq", "x.jsonl", [nq(1), {"id": "1", "question": "who"}],
         ['x.jsonl:2: "golden_answers" is missing; the fields are: id, question.']),
    ],
)  # fmt: skip
def test_a_file_of_another_set_is_refused_with_its_fields_and_those_wanted(
    workspace: Path, tmp_path: Path, name: str, file: str, rows: Rows, causes: list[str]
) -> None:
    write = {"csv": write_csv, "parquet": write_parquet, "jsonl": write_jsonl}[file.split(".")[1]]
    write(tmp_path / file, rows)
    told = refused(workspace, name, "--from", file)
    for cause in causes:
        assert cause in told


def test_a_list_of_answers_is_natural_questions_too(workspace: Path, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "x.jsonl", [{"question": "who", "answer": ["a", "b"]}])
    prepared(workspace, "nq", "--from", "x.jsonl")
    (row,) = parquet.read_table(workspace / "datasets" / "nq.parquet").to_pylist()
    assert row["result"] == "a; b"


def test_practice_and_held_out_are_not_the_same_file_in_silence(
    workspace: Path, tmp_path: Path
) -> None:
    for file in ("gsm8k-test.jsonl", "train-00000-of-00001.jsonl", "g.jsonl", "latest.jsonl"):
        write_jsonl(tmp_path / file, GSM)
    (tmp_path / "only").mkdir()
    write_jsonl(tmp_path / "only" / "test.jsonl", GSM)
    told = refused(workspace, "gsm8k", "--from", "gsm8k-test.jsonl")
    assert "By its name it is the split test, and train is wanted. Prepare gsm8k:test" in told
    assert "split train" in refused(workspace, "gsm8k:test", "--from", "train-00000-of-00001.jsonl")
    assert "no split train; there are: test" in refused(workspace, "gsm8k", "--from", "only")
    (tmp_path / "one").mkdir()
    write_jsonl(tmp_path / "one" / "gsm8k-test.jsonl", GSM)
    write_jsonl(tmp_path / "one.json", [nq(1)])
    for wanted, split in (("gsm8k", "train"), ("gsm8k:tset", "tset")):
        told = refused(workspace, wanted, "--from", "one/")
        assert f"it is the split test, and {split} is wanted. Prepare gsm8k:test" in told
    (tmp_path / "one" / "gsm8k-test.jsonl").rename(tmp_path / "one" / "g.jsonl")
    assert prepare(workspace, "gsm8k:test", "--from", "one", "--dry-run").code == 0  # no one.json
    first = prepare(workspace, "gsm8k", "--from", "g.jsonl")
    assert "same rows" not in first.stderr
    second = prepare(workspace, "gsm8k:test", "--from", "latest.jsonl")
    assert (second.code, "note: gsm8k-test has the same rows as gsm8k:" in second.stderr) == (
        0,
        True,
    )
    (workspace / "datasets" / "gsm8k.parquet").unlink()
    third = prepare(workspace, "gsm8k:test", "--from", "gsm8k-test.jsonl")
    assert (third.code, "same rows" in third.stderr) == (0, False)


@pytest.mark.parametrize(("limit", "n", "left"), [(None, 34, 7), (20, 17, 3), (34, 34, 0)])
def test_the_ratio_of_levels_holds_in_what_is_written(
    workspace: Path, tmp_path: Path, limit: int | None, n: int, left: int
) -> None:
    levels = ["easy"] * 12 + ["medium"] * 14 + ["hard"] * 15
    write_jsonl(tmp_path / "w.jsonl", [walker(n, at) for n, at in enumerate(levels)])
    more = ("--limit", str(limit)) if limit else ()
    told = prepared(workspace, "webwalkerqa", "--from", "w.jsonl", "--levels", "4:7:6", *more)
    made = parquet.read_table(workspace / "datasets" / "webwalkerqa.parquet").to_pylist()
    counts = [[row["level"] for row in made].count(level) for level in ("easy", "medium", "hard")]
    assert counts == [n // 17 * times for times in (4, 7, 6)]
    assert told["parts"][0]["left_out"].get("beyond the ratio of levels", 0) == left
    none = prepare(
        workspace, "webwalkerqa", "--from", "w.jsonl", "--levels", "4:7:6", "--limit", "9"
    )
    assert "no whole round of 4:7:6 in 12 easy, 14 medium, 15 hard" in none.stderr
    assert "EASY:MEDIUM:HARD" in prepare(
        workspace, "webwalkerqa", "--from", "w.jsonl", "--levels", "0:0:0"
    ).stderr  # fmt: skip


def test_what_is_said_of_a_set_is_a_sentence(workspace: Path, tmp_path: Path) -> None:
    write_parquet(tmp_path / "d.parquet", [deepmath(1), deepmath(2)])
    told = prepare(workspace, "deepmath-103k-solutions", "--from", "d.parquet").stdout
    assert "deepmath-103k-solutions: 6 problems added as " in told
    assert "deepmath-103k-solutions: 6 problems from 2 rows of " in told


def test_an_unknown_name_lists_all_and_a_missing_one_is_told(workspace: Path) -> None:
    told = refused(workspace, "bogus")
    assert all(name in told for name in ("planner-182k", *LAYOUTS)) and "more" not in told
    told = refused(workspace, "aime24+")
    assert "data set '': No such public data set is known." in told


def test_the_guide_names_every_column(workspace: Path) -> None:
    guide = files("studio").joinpath("guide/data.md").read_text("utf-8")
    table = next(part for part in guide.split("\n\n") if "columns that a file must have" in part)
    for name in LAYOUTS:
        assert f"`{name}`" in table


REACH = """
import logging, os, sys, types
import datasets, huggingface_hub
class Refused(Exception):
    response = types.SimpleNamespace()
class Hub:
    def dataset_info(self, name, timeout):
        if Refused.response.status_code == 0:
            raise OSError("no name")
def load(*args, **kwargs):
    logging.getLogger("huggingface_hub.utils").warning("raw")
    raise ValueError("cannot") from Refused("refused")
huggingface_hub.HfApi = Hub
datasets.load_dataset = load
from studio.cli import main
_, workspace, *asked = sys.argv
for each in asked:
    status, name = each.split(" ")
    if not os.fork():
        Refused.response.status_code = int(status)
        sys.argv = ["studio", "--workspace", workspace, "data", "prepare", name]
        main()
    print("\f", os.waitstatus_to_exitcode(os.wait()[1]), file=sys.stderr, flush=True)
"""


def reach(workspace: Path, *asked: str) -> list[str]:
    """What is told of each `STATUS NAME`: in a process for each, which share a slow import."""
    ran = subprocess.run(
        [sys.executable, "-c", REACH, str(workspace), *asked],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stdout) == (0, ""), ran.stderr
    told = ran.stderr.split("\f 2\n")
    assert [part.count("\n") for part in told] == [*([1] * len(asked)), 0], ran.stderr
    assert "raw" not in ran.stderr, ran.stderr
    return told[:-1]


def test_without_a_network_it_is_said_so_once_and_all_sets_are_named(workspace: Path) -> None:
    if find_spec("datasets") is None:
        pytest.skip("needs the extra datasets")
    told, unreached, failed, forbidden, split = reach(
        workspace, "0 planner-182k", "0 gpqa", "500 gpqa", "403 gpqa", "500 gsm8k:dev"
    )
    assert "cannot be reached. nq has the columns" in told and "--from FILE" in told
    assert "FlashRAG_datasets" in told and "golden_answers" in told
    assert "cannot be reached" in unreached and "cannot be fetched: cannot" in failed
    assert "HF_TOKEN" in forbidden
    assert "openai/gsm8k/main:dev cannot be fetched" in split


def test_a_preview_shows_what_was_said_before_the_question(workspace: Path, tmp_path: Path) -> None:
    turns = [("system", "Be\nterse."), ("user", "First? " + "word " * 60), ("assistant", "One."),
             ("user", "Then?"), ("assistant", "Two.")]  # fmt: skip
    talk = {"messages": [{"role": role, "content": text} for role, text in turns]}
    (tmp_path / "talks.jsonl").write_text(json.dumps(talk))
    assert studio("data", "add", "talks.jsonl", "--as-chat", workspace=workspace).code == 0
    shown = studio("data", "preview", "talks", workspace=workspace).stdout.splitlines()
    assert shown[1] == "    system: Be terse."
    assert shown[2].startswith("    user: First? word") and shown[2].endswith("…")
    assert shown[3:6] == ["    assistant: One.", "    Then?", "    answer: Two."]
