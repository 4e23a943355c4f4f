"""What the doctor finds lying about: leftovers of ended processes, and links."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from engines.record.run_dir import Workspace
from studio.workspace.doctor import OLD_S, diagnose
from tests.support.run_studio import studio

GONE = 2**22 + 1
"""No process has a larger number."""


def make(path: Path, *, old: bool = False) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("half")
    if old:
        os.utime(path, (time.time() - OLD_S - 60,) * 2)
    return path


def test_only_what_no_process_is_at_is_removed(practised: Path) -> None:
    run, mine = practised / "runs/rehearsal", os.getpid()
    left = [
        make(run / f".journal.jsonl.{GONE}.tmp"),
        make(practised / f".catalogue.json.{GONE}.tmp"),
        make(practised / f"archives/.rehearsal.tar.gz.{GONE}.tmp"),
        make(run / f".run.yaml.{mine}.tmp", old=True),  # its number is another process's by now
        make(practised / "datasets/.rows.jsonl.tmp", old=True),
    ]
    kept = [
        make(run / f".agent.yaml.{mine}.tmp"),
        make(practised / "datasets/.fresh.jsonl.tmp"),
        make(practised / "datasets/mine.tmp", old=True),  # of somebody else, by its name
        make(practised / "configs/.notes", old=True),
    ]
    found = {Path(each.place) for each in diagnose(Workspace(practised), repair=False).findings}
    assert found == set(left)
    assert all(path.exists() for path in left)
    assert studio("doctor", "--repair", workspace=practised).code == 0
    assert not any(path.exists() for path in left)
    assert all(path.exists() for path in kept)


@pytest.mark.parametrize("inside", [True, False])
def test_a_run_behind_a_link_is_used_and_told(
    practised: Path, tmp_path: Path, inside: bool
) -> None:
    run = practised / "runs/rehearsal"
    target = (practised if inside else tmp_path) / "moved"
    run.rename(target)
    run.symlink_to(target)
    holder = make(target / ".holder")
    (found,) = diagnose(Workspace(practised), repair=True).findings
    assert found.place == str(run) and f"it is a link to {target}" in found.cause
    assert found.grade == "note" and holder.exists(), "nothing behind a link is removed"
    before = (target / "journal.jsonl").stat().st_size
    more = ("headless", "--resume", "rehearsal", "practice.epochs=2")
    assert studio(*more, workspace=practised).code == 0
    assert (target / "journal.jsonl").stat().st_size > before


def test_a_link_that_leads_nowhere_is_told_and_hides_no_run(practised: Path) -> None:
    (practised / "runs/lost").symlink_to(practised / "nowhere")
    (found,) = diagnose(Workspace(practised), repair=True).findings
    assert "it has no journal" in found.cause and found.grade == "note"
    assert "rehearsal" in studio("runs", "list", workspace=practised).stdout
