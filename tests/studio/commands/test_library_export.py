"""`studio library export`: every format, nothing overwritten, secrets masked, losses told."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from engines.record.formats.table import FORMATS, read_foreign
from tests.support.made_once import made_once
from tests.support.processes import SMALL
from tests.support.run_studio import Result, studio


def export(workspace: Path, kind: str, to: Path, *more: str, of: str = "rehearsal") -> Result:
    return studio(
        "library", "export", of, "--format", kind, "--to", str(to), *more, workspace=workspace
    )


@pytest.fixture
def measured(workspace: Path) -> Path:
    """A workspace whose library was measured before and after its run."""

    def make(folder: Path) -> None:
        tries = ("evaluation.do_eval=true", "evaluation.limit=8")
        done = studio("headless", "rehearsal", *SMALL, *tries, workspace=folder / "practice")
        assert done.code == 0, done.stderr

    shutil.copytree(made_once("measured", make) / "practice", workspace)
    return workspace


def texts(workspace: Path) -> list[str]:
    shown = studio("library", "show", "rehearsal", "--json", workspace=workspace)
    return [e["text"] for e in json.loads(shown.stdout)["experiences"]]


@pytest.mark.parametrize("kind", FORMATS)
def test_each_format_is_written_told_and_read_back(
    kind: str, practised: Path, tmp_path: Path
) -> None:
    to = tmp_path / "out" / ("sums" if kind == "skill" else "file")
    done = export(practised, kind, to)
    assert done.code == 0, done.stderr
    files = done.stdout.splitlines()
    assert files[0] == str(to / "SKILL.md" if kind == "skill" else to)
    assert all(Path(file).is_file() for file in files)
    assert ("left out: how its experiences came about\n" in done.stderr) == (kind != "json")
    assert [e.text for e in read_foreign(to, kind).entries] == texts(practised)
    assert export(practised, kind, to).code == 0  # the same again


def test_json_tells_files_losses_and_what_was_measured(measured: Path, tmp_path: Path) -> None:
    told = json.loads(export(measured, "ace", tmp_path / "playbook.txt", "--json").stdout)
    assert told["format"] == "ace" and told["files"] == [str(tmp_path / "playbook.txt")]
    assert told["losses"] == ["how its experiences came about"]
    assert told["evaluation"]["version"] == 2
    results = told["evaluation"]["results"]
    assert [one["data"] for one in results] == ["arithmetic-heldout", "arithmetic-larger"]
    for one in results:
        low, high = one["interval"]
        assert low <= one["mean_reward"] <= high and one["n"] == 8 and len(one["date"]) == 10
        assert (one["model"], one["scripted"], one["library_version"]) == ("rehearsal", True, 2)
        assert one["against"]["library_version"] == 0
        assert one["against"]["verdict"] in ("helps", "hurts", "cannot tell")
        words = f"{one['data']}: mean reward {one['mean_reward']:.3f} [{low:.2f}, {high:.2f}] (n=8)"
        assert words in (tmp_path / "playbook.txt").read_text()


def test_a_version_of_measured_content_has_its_results(measured: Path, tmp_path: Path) -> None:
    for change in (("edit", "rehearsal", "--add", "Check."), ("revert", "rehearsal@2")):
        assert studio("library", *change, workspace=measured).code == 0
    told = [
        json.loads(export(measured, "ace", tmp_path / of, "--json", of=of).stdout)["evaluation"]
        for of in ("rehearsal@2", "rehearsal@4")
    ]
    assert told[1]["version"] == 4 and told[0]["results"] == told[1]["results"] != []


def test_a_benchmark_compares_with_no_library(measured: Path, tmp_path: Path) -> None:
    told = json.loads(export(measured, "skill", tmp_path / "sums", "--json").stdout)
    first = told["evaluation"]["results"][0]
    summary = json.loads((tmp_path / "sums/benchmark.json").read_text())["run_summary"]
    rates = [summary[name]["pass_rate"] for name in ("with_skill", "without_skill")]
    for rate in rates:  # of 8 questions, each right or wrong
        mean = rate["mean"]
        assert rate["stddev"] == pytest.approx((mean * (1 - mean)) ** 0.5, abs=1e-4)
    assert rates[0]["mean"] == pytest.approx(first["mean_reward"], abs=1e-4)
    assert summary["delta"]["pass_rate"] == pytest.approx(first["against"]["difference"], abs=1e-4)


def test_what_stands_there_is_overwritten_only_by_force(practised: Path, tmp_path: Path) -> None:
    to = tmp_path / "prompt.txt"
    to.write_text("mine")
    refused = export(practised, "prompt", to)
    assert refused.code == 2 and "--force" in refused.stderr and to.read_text() == "mine"
    assert export(practised, "prompt", to, "--force").code == 0
    assert to.read_text() != "mine"
    journal = practised / "libraries/rehearsal/journal.jsonl"
    before = journal.read_bytes()
    for kind in ("prompt", "agents"):
        refused = export(practised, kind, journal, "--force")
        assert refused.code == 2 and "only the studio itself writes there" in refused.stderr
    assert journal.read_bytes() == before


def test_agents_md_keeps_the_rest_and_needs_no_force(practised: Path, tmp_path: Path) -> None:
    to = tmp_path / "AGENTS.md"
    to.write_bytes(b"# Rules\r\n")
    assert export(practised, "agents", to, of="rehearsal@1").code == 0
    older = to.read_bytes()
    assert export(practised, "agents", to).code == 0
    assert to.read_bytes() != older and to.read_bytes().startswith(b"# Rules\r\n\n<!--")
    assert to.read_bytes().count(b"practice-studio:begin rehearsal") == 1


def test_a_skill_takes_held_out_problems_along(practised: Path, tmp_path: Path) -> None:
    assert export(practised, "skill", tmp_path / "sums", "--evals", "3").code == 0
    evals = json.loads((tmp_path / "sums/evals/evals.json").read_text())["evals"]
    assert len(evals) == 3 and all(one["prompt"] and one["expected_output"] for one in evals)


@pytest.mark.parametrize(
    ("kind", "name", "more", "cause"),
    [
        ("skill", "Sums", (), "Write --to"),
        ("skill", "a--b", (), "called as its folder"),
        ("ace", "x", ("--evals", "3"), "only a skill"),
        ("ace", "", (), "in its way"),
        ("skill", "file", (), "in its way"),
        ("prompt", "file/x", (), ""),
        ("prompt", "x", ("--evals", "-1"), ""),
    ],
)
def test_what_cannot_be_written_is_a_user_error(
    kind: str, name: str, more: tuple[str, ...], cause: str, practised: Path, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/file").write_text("mine")
    refused = export(practised, kind, tmp_path / "out" / name, *more)
    assert refused.code == 2 and cause in refused.stderr
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["file"]
    assert (tmp_path / "out/file").read_text() == "mine"


def test_fewer_held_out_problems_than_asked_for_are_told(practised: Path, tmp_path: Path) -> None:
    done = export(practised, "skill", tmp_path / "sums", "--evals", "1000")
    found = len(json.loads((tmp_path / "sums/evals/evals.json").read_text())["evals"])
    assert f"--evals 1000: there are {found} held out\n" in done.stderr


def test_a_hyphen_is_no_file(
    practised: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused = export(practised, "json", Path("-"))
    assert refused.code == 2 and "an export is a file" in refused.stderr
    assert not Path("-").exists()


def test_an_empty_version_is_not_exported(practised: Path, tmp_path: Path) -> None:
    refused = export(practised, "json", tmp_path / "x.json", of="rehearsal@0")
    assert refused.code == 2 and "holds no experience" in refused.stderr
    assert not (tmp_path / "x.json").exists()


@pytest.mark.parametrize("kind", FORMATS)
def test_secrets_are_masked_in_each_format(kind: str, practised: Path, tmp_path: Path) -> None:
    key = "sk-proj-" + "a1B2c3D4" * 5
    version = tmp_path / "v0001.yaml"
    version.write_text(f"library: x y -->\nexperiences:\n- {{id: E1, text: 'Send {key} along.'}}\n")
    to = tmp_path / "out"
    assert export(practised, kind, to, of=str(version)).code == 0
    written = [file for file in (to, *to.rglob("*")) if file.is_file()]
    assert written and not any(key in file.read_text("utf-8") for file in written)


@pytest.mark.parametrize(
    ("rows", "cause"),
    [
        ("[{id: E1, text: a}, {id: E1, text: b}]", "the id E1 stands there twice"),
        ("[{id: ../../etc, text: a}]", "no id"),
        ("[{id: E1, text: ''}]", "its text is empty"),
    ],
)
@pytest.mark.parametrize("command", ["show", "diff"])
def test_a_library_file_with_wrong_ids_is_taken_nowhere(
    command: str, rows: str, cause: str, practised: Path, tmp_path: Path
) -> None:
    file = tmp_path / "v0001.yaml"
    file.write_text(f"library: x\nexperiences: {rows}\n")
    words = {"show": ["library", "show", str(file)], "diff": ["diff", "rehearsal@1", str(file)]}
    refused = studio(*words[command], workspace=practised)
    assert (
        refused.code == 2 and cause in refused.stderr and f"{file}: experiences[" in refused.stderr
    )
