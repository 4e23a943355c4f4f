"""A run is packed, verified, removed only when asked, and comes back as it was."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from engines.core.errors import RecordError
from engines.record.lock import write_lock
from engines.record.run_dir import Workspace
from studio.workspace.archive import archive_run
from tests.support.processes import SMALL, running
from tests.support.run_studio import studio

MADE_ANEW = {"index.json", "catalogue.json", ".lock", ".holder"}


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and path.name not in MADE_ANEW
    }


@pytest.fixture
def run(practised: Path) -> Path:
    return practised / "runs/rehearsal"


def test_a_run_comes_back_byte_for_byte(practised: Path, run: Path) -> None:
    before, state = contents(run), Workspace(practised).run("rehearsal").state()
    done = studio("runs", "archive", "rehearsal", "--remove", "--json", workspace=practised)
    told = json.loads(done.stdout)
    file = practised / "archives/rehearsal.tar.gz"
    assert (told["run"], told["file"], told["removed"]) == ("rehearsal", str(file), True)
    assert told["digest"] == hashlib.sha256(file.read_bytes()).hexdigest()
    assert told["unpacked_bytes"] > told["bytes"] == file.stat().st_size
    assert not run.exists() and file.stat().st_mode & 0o077 == 0
    back = studio("runs", "restore", "rehearsal", workspace=practised)
    assert (back.code, contents(run)) == (0, before), back.stderr
    assert Workspace(practised).run("rehearsal").state() == state
    assert studio("doctor", workspace=practised).code == 0


def test_without_the_flag_the_run_stays(practised: Path, run: Path, tmp_path: Path) -> None:
    to = tmp_path / "copy.tgz"
    done = studio("runs", "archive", "rehearsal", "--to", str(to), workspace=practised)
    assert done.code == 0 and "still in the workspace" in done.stdout
    assert run.exists() and not (practised / "archives").exists()
    whole = to.read_bytes()
    again = studio("runs", "archive", "rehearsal", "--to", str(to), workspace=practised)
    assert again.code == 0 and to.read_bytes() == whole, "it holds the run as it is"
    to.write_bytes(whole[:-2_000])
    again = studio("runs", "archive", "rehearsal", "--to", str(to), workspace=practised)
    assert again.code == 2 and "it exists already" in again.stderr
    to.write_bytes(whole)
    other = tmp_path / "other"
    assert studio("runs", "restore", str(to), workspace=other).code == 0
    assert contents(other / "runs/rehearsal") == contents(run)


def test_a_file_that_is_written_while_it_is_packed_keeps_the_run(
    practised: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = tarfile.TarFile.add

    def write_first(tar: tarfile.TarFile, name: Path, *args: Any, **options: Any) -> None:
        if Path(name).name == "journal.jsonl":
            with Path(name).open("ab") as journal:
                journal.write(b"x")
        add(tar, name, *args, **options)

    monkeypatch.setattr(tarfile.TarFile, "add", write_first)
    workspace = Workspace(practised)
    with pytest.raises(RecordError, match="not what was packed"):
        archive_run(workspace.run("rehearsal"), workspace, remove=True)
    assert run.exists() and not list((practised / "archives").iterdir())


def test_an_archived_run_is_listed_and_keeps_its_name(practised: Path) -> None:
    assert studio("runs", "archive", "rehearsal", "--remove", workspace=practised).code == 0
    listed = json.loads(studio("runs", "list", "--json", workspace=practised).stdout)
    assert [(row["run"], row["status"]) for row in listed] == [("rehearsal", "archived")]
    assert "studio runs restore rehearsal" in studio("runs", "list", workspace=practised).stdout
    assert "studio headless rehearsal" in studio(workspace=practised).stdout
    shown = studio("runs", "show", "rehearsal", workspace=practised)
    assert shown.code == 2 and "studio runs restore rehearsal" in shown.stderr
    assert Workspace(practised).new_run_dir("rehearsal").run == "rehearsal-2"


def test_an_archived_run_is_removed_with_its_file(practised: Path) -> None:
    assert studio("runs", "archive", "rehearsal", "--remove", workspace=practised).code == 0
    refused = studio("runs", "rm", "rehearsal", workspace=practised)
    assert refused.code == 2 and list((practised / "archives").glob("*"))
    done = studio("runs", "rm", "rehearsal", "--yes", workspace=practised)
    assert done.code == 0 and "removed the archive of run rehearsal" in done.stderr
    assert not list((practised / "archives").glob("*"))
    assert "rehearsal" not in studio("runs", "list", workspace=practised).stdout


def test_of_an_archive_that_was_moved_only_the_note_is_removed(practised: Path) -> None:
    assert studio("runs", "archive", "rehearsal", "--remove", workspace=practised).code == 0
    moved = practised / "moved.tgz"
    (practised / "archives" / "rehearsal.tar.gz").rename(moved)
    done = studio("runs", "rm", "rehearsal", "--yes", workspace=practised)
    assert done.code == 0 and "its archive was not at" in done.stderr and moved.exists()
    assert studio("runs", "restore", str(moved), workspace=practised).code == 0


def test_what_is_needed_is_not_removed(practised: Path) -> None:
    forked = studio(*("headless", "rehearsal", *SMALL, "--restart-step", "1"), workspace=practised)
    assert forked.code == 0, forked.stderr
    refused = studio("runs", "archive", "rehearsal", "--remove", workspace=practised)
    assert refused.code == 2 and "rehearsal-2" in refused.stderr
    (practised / "configs").mkdir()
    (practised / "configs/mine.yaml").write_text("policy: {adapter: run:rehearsal-2@1}\n")
    refused = studio("runs", "archive", "rehearsal-2", "--remove", workspace=practised)
    assert refused.code == 2 and "mine.yaml names its weights" in refused.stderr
    assert studio("runs", "archive", "rehearsal-2", workspace=practised).code == 0


def test_open_decisions_keep_a_run(workspace: Path) -> None:
    held = studio(
        *("headless", "rehearsal", *SMALL, "--review", "wait", "review.hold_s=0.01"),
        workspace=workspace,
    )
    assert held.code == 3, held.stderr
    refused = studio("runs", "archive", "rehearsal", "--remove", workspace=workspace)
    assert refused.code == 2 and "studio review rehearsal" in refused.stderr


def test_a_living_run_is_refused_by_name(tmp_path: Path) -> None:
    with running(tmp_path, "rehearsal", *SMALL, "--review", "wait") as process:
        process.until("LessonProposed")
        refused = studio("runs", "archive", "rehearsal", workspace=tmp_path)
    assert refused.code == 2 and "run rehearsal: its process is alive" in refused.stderr


def test_a_run_that_somebody_writes_to_is_not_packed(practised: Path, run: Path) -> None:
    with write_lock(run):
        refused = studio("runs", "archive", "rehearsal", workspace=practised)
    assert refused.code == 2 and "is writing here" in refused.stderr
    assert not list(practised.glob("archives/*"))


def test_a_damaged_archive_restores_nothing(practised: Path, run: Path, tmp_path: Path) -> None:
    file = practised / "archives/rehearsal.tar.gz"
    assert studio("runs", "archive", "rehearsal", "--remove", workspace=practised).code == 0
    whole = file.read_bytes()
    for at in (10, len(whole) // 2, len(whole) - 1_000):
        file.write_bytes(whole[:at])
        refused = studio("runs", "restore", "rehearsal", workspace=practised)
        assert refused.code == 2 and "not the file that was written" in refused.stderr
        refused = studio("runs", "restore", str(file), workspace=practised)
        assert refused.code == 2 and str(file) in refused.stderr
    assert not run.exists() and not list(practised.glob(".*.tmp"))
    file.write_bytes(whole)
    assert studio("runs", "restore", "rehearsal", workspace=practised).code == 0
    again = studio("runs", "restore", "rehearsal", workspace=practised)
    assert again.code == 2 and "a run of that name is in the workspace" in again.stderr


@pytest.mark.parametrize("name", ["../x", "{outside}", "./x", "", "no journal"])
def test_an_archive_writes_nothing_but_a_run(practised: Path, tmp_path: Path, name: str) -> None:
    outside = tmp_path / "outside"
    outside.write_text("whole")
    name = name.format(outside=outside)
    contents = {name: b"evil", **({} if name == "no journal" else {"journal.jsonl": b""})}
    listed = {n: [len(c), hashlib.sha256(c).hexdigest()] for n, c in contents.items()}
    files = {f"nice/{name}": content for name, content in contents.items()}
    files = {"manifest.json": json.dumps({"run": "nice", "files": listed}).encode(), **files}
    with tarfile.open(tmp_path / "hostile.tar.gz", "w:gz") as tar:
        for path, content in files.items():
            entry = tarfile.TarInfo(path)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    before = sorted(practised.rglob("*"))
    done = studio("runs", "restore", str(tmp_path / "hostile.tar.gz"), workspace=practised)
    assert (done.code, outside.read_text()) == (2, "whole")
    assert "it is no archive of a run, or damaged" in done.stderr
    assert sorted(practised.rglob("*")) == before


def test_of_a_linked_run_only_the_link_goes(practised: Path, run: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    run.rename(outside)
    run.symlink_to(outside)
    before = contents(outside)
    assert studio("runs", "show", "rehearsal", workspace=practised).code == 0
    done = studio("runs", "archive", "rehearsal", "--remove", workspace=practised)
    assert done.code == 0, done.stderr
    assert contents(outside) == before and not os.path.lexists(run)
    assert studio("runs", "restore", "rehearsal", workspace=practised).code == 0
    assert contents(run) == before and not run.is_symlink()


def test_removing_a_linked_run_says_what_stays(practised: Path, run: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    run.rename(outside)
    run.symlink_to(outside)
    done = studio("runs", "rm", "rehearsal", "--yes", workspace=practised)
    assert done.code == 0 and f"it was a link: {outside} stays" in done.stderr
    assert (outside / "journal.jsonl").exists() and not (outside / ".holder").exists()
    assert not list(practised.glob(".removed-*"))
