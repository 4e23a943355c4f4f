"""Workspaces for tests of commands."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.made_once import made_once
from tests.support.processes import SMALL
from tests.support.run_studio import studio


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A workspace that does not exist yet."""
    return tmp_path / "practice"


@pytest.fixture(scope="session")
def practised_once() -> Path:
    def make(folder: Path) -> None:
        done = studio("headless", "rehearsal", *SMALL, workspace=folder / "practice")
        assert done.code == 0, done.stderr

    return made_once("practised", make) / "practice"


@pytest.fixture
def practised(practised_once: Path, workspace: Path) -> Path:
    """A workspace of one's own in which run `rehearsal` is finished."""
    shutil.copytree(practised_once, workspace)
    return workspace
