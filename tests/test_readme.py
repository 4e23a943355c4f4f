"""What README and manual say to type works as it stands, and the bundled policy really learns.

One seed of each claim of learning; `tests/bench` and the manual tell of more. Steps, held-out
problems and bounds are those that the product promises, so a change that spoils learning fails
here. Each problem is tried less often than the manual says, which measured its figures with more.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark import ParameterSet

from studio.guide import TOPICS
from tests.support.made_once import made_once
from tests.support.run_studio import studio
from tests.support.studio_command import studio_command

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")


def blocks_of(page: str) -> list[str]:
    path = ROOT / ("README.md" if page == "readme" else f"studio/guide/{page}.md")
    return re.findall(r"^```bash run\n(.*?)^```", path.read_text("utf-8"), re.MULTILINE | re.DOTALL)


ADDED = {
    "studio train grpo-tiny practice.epochs=1 grpo.schedule=constant": (
        "practice.group_size=4 policy.local.threads=1"
    ),
    "studio headless tiny": "evaluation.k=2 policy.local.threads=1",
    "studio eval tiny --library tiny --baseline neutral": "evaluation.k=2 policy.local.threads=1",
}
"""To commands of the manual that sample from weights: fewer tries, which is half a minute less,
and one thread, since other tests run beside them; it samples the same."""
BLOCKS = {page: found for page in ("readme", *TOPICS) if (found := blocks_of(page))}


def read_through(page: str) -> Path:
    """The workspace of a reader who typed every block of a page, from top to bottom."""
    return made_once(f"typed-{page}", partial(type_blocks, page)) / "practice"


def type_blocks(page: str, folder: Path) -> None:
    """The first session begins with nothing; whoever reads on has read the README."""
    if page not in ("readme", "first-session"):
        shutil.copytree(read_through("readme"), folder / "practice", symlinks=True)
    with ExitStack() as stack:
        places = [str(Path(sys.executable).parent), os.environ["PATH"]]
        if page != "readme":  # which has what is installed
            places.insert(0, str(stack.enter_context(studio_command())))
        for block in BLOCKS[page]:
            type_block(block, folder, os.pathsep.join(places))


def type_block(block: str, folder: Path, path: str) -> None:
    lines = [f"{line} {ADDED.get(line, '')}".rstrip() for line in block.splitlines()]
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", "\n".join(lines)],
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, (block, done.stderr)
    assert done.stdout or done.stderr, block


def page_case(page: str) -> ParameterSet:
    """A page whose blocks train or sample weights takes a minute or two."""
    return pytest.param(page, marks=pytest.mark.nightly if page in ("weights", "models") else ())


@pytest.mark.parametrize("page", [page_case(page) for page in BLOCKS])
def test_the_blocks_of_a_page_run(page: str) -> None:
    assert (read_through(page) / "runs").is_dir()


def evaluations(workspace: Path, run: str) -> list[dict[str, Any]]:
    shown = studio("runs", "show", run, "--json", workspace=workspace)
    assert shown.code == 0, shown.stderr
    found: list[dict[str, Any]] = json.loads(shown.stdout)["evaluations"]
    return found


@pytest.mark.nightly
def test_thirty_steps_of_grpo_raise_the_heldout_reward_by_more_than_a_third() -> None:
    before, after = evaluations(read_through("weights"), "grpo-tiny")
    assert before["n"] == after["n"] == 512
    assert after["mean_reward"] - before["mean_reward"] >= 0.35
    assert before["interval"][1] < after["interval"][0]
    assert (before["policy_version"], after["policy_version"]) == (0, 30)


@pytest.mark.nightly
def test_a_library_helps_the_frozen_policy_more_than_a_neutral_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The lessons are drawn by the rehearsal, which reads nothing but the tries."""
    # What is known needs no model, which takes seconds to open.
    monkeypatch.setattr("studio.run.models.open_roles", pytest.fail)
    workspace = read_through("models")
    before, after = evaluations(workspace, "tiny")
    assert before["n"] == after["n"] == 128 * 2
    assert after["mean_reward"] - before["mean_reward"] >= 0.30
    words: tuple[str, ...] = (
        "eval",
        "tiny",
        "--library",
        "tiny",
        "--baseline",
        "neutral",
        "--json",
    )
    words += tuple(ADDED[" ".join(("studio", *words[:-1]))].split())
    done = studio(*words, workspace=workspace)
    assert done.code == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["reused"] == 2 * 128 * 2  # as the README had it measured
    (compared,) = found["sets"]
    assert compared["comparison"]["difference"] >= 0.25


@pytest.mark.nightly
def test_what_a_run_measured_of_frozen_weights_is_not_measured_again() -> None:
    found = read_through("models").glob("evaluations/*/scores.jsonl")
    books = (path.read_text("utf-8") for path in found)
    scores = [json.loads(line)["e"] for book in books for line in book.splitlines()]
    outside = [score for score in scores if not score["payer"]]
    assert len(outside) == 128 * 2  # a neutral library's: runs paid for all others


def test_the_manual_still_has_the_commands_to_which_something_is_added() -> None:
    lines = {line for blocks in BLOCKS.values() for block in blocks for line in block.splitlines()}
    assert ADDED.keys() <= lines


def test_ci_runs_the_very_test_command_of_the_readme() -> None:
    block = re.search(r"^```bash test\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    assert block is not None
    assert block[1].strip().splitlines()[-1] == ".venv/bin/python -m tests"
