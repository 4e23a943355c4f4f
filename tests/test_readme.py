"""What the README says to type works as it stands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

README = (Path(__file__).parents[1] / "README.md").read_text("utf-8")
BLOCKS = re.findall(r"^```bash run\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def test_the_readme_has_blocks_to_run() -> None:
    assert len(BLOCKS) >= 4


def test_the_blocks_of_the_readme_run(tmp_path: Path) -> None:
    """In one empty folder, from top to bottom, as a reader would type them."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for block in BLOCKS:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block],
            cwd=tmp_path,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, (block, done.stderr)
        assert done.stdout, block


def test_ci_runs_the_very_test_command_of_the_readme() -> None:
    block = re.search(r"^```bash test\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    assert block is not None
    assert block[1].strip().splitlines()[-1] == ".venv/bin/python -m tests"
