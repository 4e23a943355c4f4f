"""What the README says to type works as it stands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

README = (Path(__file__).parents[1] / "README.md").read_text("utf-8")
BLOCKS = re.findall(r"^```bash run\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One empty folder for all blocks, in which they are run from top to bottom."""
    return tmp_path_factory.mktemp("readme")


def test_the_readme_has_blocks_to_run() -> None:
    assert len(BLOCKS) >= 4


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_a_block_of_the_readme_runs(number: int, folder: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", BLOCKS[number]],
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_ci_runs_the_very_test_command_of_the_readme() -> None:
    block = re.search(r"^```bash test\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    assert block is not None
    assert block[1].strip().splitlines()[-1] == ".venv/bin/python -m tests"
