"""A run against the world: a full disk, places that cannot be written, other processes."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from engines.core import events as ev
from engines.record.run_dir import Workspace
from tests.bench.kill import measure
from tests.engines.record.test_journal import file_size_limit
from tests.support.forked_studio import ForkedStudio
from tests.support.processes import SMALL, STUDIO, running
from tests.support.run_studio import run_here, studio

BRIEF = (*SMALL, "practice.batch_size=2", "practice.group_size=2", "data.truncate=4")


def texts(workspace: Path, library: str = "rehearsal") -> list[str]:
    return [e.text for e in Workspace(workspace).library(library).head().experiences]


@pytest.mark.nightly
def test_a_full_disk_ends_with_exit_2_loses_nothing_and_the_run_goes_on_after(
    tmp_path: Path,
) -> None:
    wanted = tmp_path / "undisturbed"
    assert studio("headless", "rehearsal", *BRIEF, workspace=wanted).code == 0
    hit = set()
    for size in (0, 300, 700, 1_100, 1_500, 2_000, 3_000, 4_500, 6_000, 9_000, 14_000):
        workspace = tmp_path / str(size)
        with file_size_limit(size):
            full = studio("headless", "rehearsal", *BRIEF, workspace=workspace)
        if full.code == 0:
            break
        assert full.code == 2, full.stderr
        assert "Make room" in full.stderr, full.stderr
        assert "Traceback" not in full.stderr
        place = re.search(rf"{re.escape(str(workspace))}/(\S+): cannot be written", full.stderr)
        assert place, full.stderr
        hit.add(place[1])
        resumed = studio("headless", "rehearsal", *BRIEF, workspace=workspace)
        assert resumed.code == 0, resumed.stderr
        assert texts(workspace) == texts(wanted)
        assert studio("doctor", workspace=workspace).code == 0
    assert {"runs/rehearsal/run.yaml", "runs/rehearsal/journal.jsonl"} <= hit
    assert "runs/rehearsal/records/step-0001.jsonl" in hit
    assert "libraries/rehearsal/journal.jsonl" in hit


@pytest.mark.parametrize(
    "words",
    [
        ("headless", "rehearsal", *BRIEF),
        ("eval", "rehearsal", "evaluation.limit=2"),
    ],
)
def test_a_workspace_that_cannot_be_made_is_exit_2_with_its_place(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    refused = studio(*words, workspace=tmp_path / "file" / "practice", cwd=tmp_path)
    assert refused.code == 2, refused.stderr
    assert str(tmp_path / "file") in refused.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="permissions do not stop root")
def test_a_read_only_run_folder_is_exit_2_and_goes_on_once_it_is_mended(practised: Path) -> None:
    folder = practised / "runs/rehearsal"
    folder.chmod(0o500)
    more = ("headless", "rehearsal", *SMALL, "practice.epochs=2")
    try:
        refused = studio(*more, workspace=practised)
    finally:
        folder.chmod(0o700)
    assert refused.code == 2
    assert "permissions" in refused.stderr
    assert studio(*more, workspace=practised).code == 0


def started(workspace: Path, *words: str) -> ForkedStudio:
    return ForkedStudio(
        [*STUDIO, "--workspace", str(workspace), "headless", "rehearsal", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_two_runs_of_one_workspace_at_once_share_its_catalogue(tmp_path: Path) -> None:
    names = ("one", "two")
    both = [started(tmp_path, *BRIEF, "--name", name) for name in names]
    for child in both:
        _, told = child.communicate(timeout=60)
        assert child.returncode == 0, told
    listed = json.loads(studio("runs", "list", "--json", workspace=tmp_path).stdout)
    assert {row["run"]: row["status"] for row in listed} == dict.fromkeys(names, "finished")
    tables = json.loads((tmp_path / "catalogue.json").read_bytes())
    assert {row["run"] for row in tables["runs"].values()} == set(names)
    assert {row["library"] for row in tables["libraries"].values()} == set(names)
    assert studio("doctor", workspace=tmp_path).code == 0


def test_two_runs_on_one_library_both_commit_and_the_second_is_told_that_its_base_moved(
    tmp_path: Path,
) -> None:
    shared = ("library.name=shared", *BRIEF, "data.truncate=2")
    with running(tmp_path, "rehearsal", *shared, "--name", "one", "--review", "wait") as first:
        first.until("StageEntered", stage="review")
        second = run_here(
            tmp_path, "headless", "rehearsal", *shared, "library.start=shared@0", "--name", "two",
            "seed=5",
        )  # fmt: skip
        assert second.returncode == 0, second.stderr
        before = texts(tmp_path, "shared")
        assert before
        words = ("sums carefully", "borrowed tens", "stories to their end", "signs by their rank")
        typed = "".join(f"e A person's own rule about {about}.\n" for about in words)
        reviewed = run_here(tmp_path, "review", "one", typed=typed)
        assert reviewed.returncode == 0, reviewed.stderr
        first.end()
    assert set(before) <= set(texts(tmp_path, "shared"))  # nothing is lost
    commits = [c for _, c in Workspace(tmp_path).library("shared").history() if c is not None]
    assert [c.run for c in commits] == ["two", "one"]
    assert any("person's own rule" in text for text in texts(tmp_path, "shared"))
    events = [entry.event for entry in Workspace(tmp_path).run("one").entries()]
    assert any(isinstance(event, ev.LessonReturned) for event in events)
    assert studio("doctor", workspace=tmp_path).code == 0


@pytest.mark.nightly
def test_a_few_killed_runs_with_faults_end_as_one_that_was_not() -> None:
    found = measure(kills=5, seed=2, share=0.2)
    assert found["kills"] == 5
    assert found["undisturbed"]["code"] == 4  # some calls failed for good
    assert found["all_equal"], found
    assert found["replies_paid_twice"] == 0
    assert found["doubled"] == 0
