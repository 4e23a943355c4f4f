"""A workspace of another user: read as far as that is allowed, refused by name where it is not."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.forked_studio import STUDIO

OWNER = 65_534
_DROP_FROM_BOUNDS = 24
_OVERRIDES = (0, 1, 2, 3)  # what lets root pass by owners and modes
_LIBC = ctypes.CDLL(None)


class Done(NamedTuple):
    code: int
    stdout: str
    stderr: str


def obey_modes() -> None:
    """In a child: be a user like any other, also as root."""
    for capability in _OVERRIDES:
        _LIBC.prctl(_DROP_FROM_BOUNDS, capability, 0, 0, 0)


@pytest.fixture
def theirs(practised: Path) -> Iterator[Path]:
    """A workspace of somebody else where we are root; else ours, with modes that are as strict."""
    if os.geteuid() == 0:
        for path in (practised, *practised.rglob("*")):
            os.chown(path, OWNER, OWNER)
    yield practised
    for path in (practised, practised / "runs/rehearsal"):  # so that it can be removed
        path.chmod(0o700)


def allow(workspace: Path, folders: int, files: int) -> None:
    for path in workspace.rglob("*"):
        path.chmod(folders if path.is_dir() else files)
    workspace.chmod(folders)


def stranger(workspace: Path, *words: str) -> Done:
    done = subprocess.run(
        [*STUDIO, "--workspace", str(workspace), *words],
        preexec_fn=obey_modes,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return Done(done.returncode, done.stdout, done.stderr)


def test_what_may_not_be_read_is_refused(theirs: Path) -> None:
    theirs.chmod(0o000)
    for words in (("runs", "list"), (), ("headless", "rehearsal"), ("doctor",)):
        done = stranger(theirs, *words)
        assert (done.code, done.stdout) == (2, ""), words
        assert f"workspace {theirs}: it cannot be read. Mend its permissions" in done.stderr
        assert "--workspace DIR" in done.stderr


def test_what_may_be_read_is_read_and_nothing_is_written(theirs: Path, tmp_path: Path) -> None:
    allow(theirs, 0o555, 0o444)
    before = {path: path.stat().st_mtime_ns for path in theirs.rglob("*")}
    for words in (
        ("runs", "list"),
        ("runs", "show", "rehearsal"),
        ("runs", "show", "rehearsal", "--step", "1"),
        (),
        ("ctl", "status"),
        ("report", "rehearsal"),
        ("library", "show", "rehearsal"),
        ("query", "carry"),
        ("runs", "archive", "rehearsal", "--to", str(tmp_path / "copy.tar.gz")),
    ):
        done = stranger(theirs, *words)
        assert done.code == 0 and (done.stdout or done.stderr), (words, done)
    for words in (
        ("headless", "--resume", "rehearsal", "practice.epochs=2"),
        ("review", "rehearsal"),
        ("runs", "rm", "rehearsal", "--yes"),
        ("library", "label", "rehearsal@1", "mine"),
    ):
        done = stranger(theirs, *words)
        assert done.code == 2 and "cannot be written (Permission denied). Make" in done.stderr, (
            words
        )
        assert "first reply" not in done.stderr, "no model is asked for nothing"
    assert {path: path.stat().st_mtime_ns for path in theirs.rglob("*")} == before


def test_a_run_that_may_not_be_read_hides_no_other(theirs: Path) -> None:
    allow(theirs, 0o755, 0o644)
    (theirs / "runs/rehearsal").chmod(0o000)
    listed = stranger(theirs, "runs", "list")
    assert listed.code == 0 and "rehearsal" in listed.stdout
    shown = stranger(theirs, "runs", "show", "rehearsal")
    assert shown.code == 2 and "journal.jsonl: cannot be read (Permission denied)" in shown.stderr
    assert stranger(theirs, "doctor").code == 2


def test_a_shared_workspace_needs_no_catalogue_of_another(theirs: Path) -> None:
    allow(theirs, 0o777, 0o644)
    for name in ("catalogue.json", ".catalogue.lock"):
        if os.geteuid() == 0:
            (theirs / name).chmod(0o600)
    done = stranger(theirs, "headless", "rehearsal", "--name", "ours", "data.truncate=4")
    assert done.code == 0, done.stderr
    assert "ours" in stranger(theirs, "runs", "list").stdout
