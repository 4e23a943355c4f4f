"""Temporary folders of processes: who keeps them, and who removes what was left."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from engines.process.start import ScratchFolder, remove_stale

MAKE = """
import os, signal
from engines.process.start import ScratchFolder
folder = ScratchFolder("studio-test-")
open(f"{folder.path}/file", "w").write("x")
print(folder.path, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    remove_stale.cache_clear()


def let_age(path: str) -> None:
    long_ago = time.time() - 3600
    os.utime(path, (long_ago, long_ago))


def test_the_folder_of_a_killed_process_is_removed_at_the_next_start(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    made = subprocess.run([sys.executable, "-c", MAKE], env=environment, stdout=subprocess.PIPE)
    left = made.stdout.decode().strip()
    assert made.returncode == -9 and os.listdir(left) == ["file"]
    let_age(left)
    folder = ScratchFolder("studio-test-")
    assert os.listdir(tmp_path) == [os.path.basename(folder.path)]
    folder.remove()
    assert not os.listdir(tmp_path)


def test_folders_that_are_held_or_new_and_those_of_others_stay(tmp_path: Path) -> None:
    held = ScratchFolder("studio-test-")
    let_age(held.path)
    (tmp_path / "studio-test-new").mkdir()
    (tmp_path / "other").mkdir()
    let_age(str(tmp_path / "other"))
    remove_stale.cache_clear()
    remove_stale("studio-test-")
    names = {os.path.basename(held.path), "studio-test-new", "other"}
    assert set(os.listdir(tmp_path)) == names
    held.remove()
