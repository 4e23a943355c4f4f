"""What the README says to type works as it stands, and the bundled policy really learns by it.

One seed of each claim of learning; `tests/bench` and the README tell of more. n and the bounds are
those that the product promises, so a change that spoils learning fails here.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.made_once import made_once
from tests.support.run_studio import studio

README = (Path(__file__).parents[1] / "README.md").read_text("utf-8")
BLOCKS = re.findall(r"^```bash run\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def read_through() -> Path:
    """The workspace of a reader who typed every block, from top to bottom in one folder."""
    return made_once("readme", type_blocks) / "practice"


def type_blocks(folder: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for block in BLOCKS:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block],
            cwd=folder,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, (block, done.stderr)
        assert done.stdout, block


def test_the_readme_has_blocks_to_run() -> None:
    assert len(BLOCKS) >= 4


def test_the_blocks_of_the_readme_run(read_through: Path) -> None:
    assert (read_through / "runs").is_dir()


def evaluations(workspace: Path, run: str) -> list[dict[str, Any]]:
    shown = studio("runs", "show", run, "--json", workspace=workspace)
    assert shown.code == 0, shown.stderr
    found: list[dict[str, Any]] = json.loads(shown.stdout)["evaluations"]
    return found


def test_thirty_steps_of_grpo_raise_the_heldout_reward_by_more_than_a_third(
    read_through: Path,
) -> None:
    before, after = evaluations(read_through, "grpo-tiny")
    assert before["n"] == after["n"] == 512
    assert after["mean_reward"] - before["mean_reward"] >= 0.35
    assert before["interval"][1] < after["interval"][0]
    assert (before["policy_version"], after["policy_version"]) == (0, 30)


def test_a_library_helps_the_frozen_policy_more_than_a_neutral_one(
    read_through: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lessons are drawn by the rehearsal, which reads nothing but the tries."""
    # What is known needs no model, which takes seconds to open.
    monkeypatch.setattr("studio.evaluation.evaluate.open_roles", pytest.fail)
    before, after = evaluations(read_through, "tiny")
    assert before["n"] == after["n"] == 128 * 8
    assert after["mean_reward"] - before["mean_reward"] >= 0.30
    words = ("eval", "tiny", "--library", "tiny", "--baseline", "neutral", "--json")
    done = studio(*words, workspace=read_through)
    assert done.code == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["reused"] == 2 * 128 * 8  # as the README had it measured
    (compared,) = found["sets"]
    assert compared["comparison"]["difference"] >= 0.25


def test_what_a_run_measured_of_frozen_weights_is_not_measured_again(read_through: Path) -> None:
    books = (path.read_text("utf-8") for path in read_through.glob("evaluations/*/scores.jsonl"))
    scores = [json.loads(line)["e"] for book in books for line in book.splitlines()]
    outside = [score for score in scores if not score["payer"]]
    assert len(outside) == 128 * 8  # a neutral library's: runs paid for all others


def test_ci_runs_the_very_test_command_of_the_readme() -> None:
    block = re.search(r"^```bash test\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    assert block is not None
    assert block[1].strip().splitlines()[-1] == ".venv/bin/python -m tests"
