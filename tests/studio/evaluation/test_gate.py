"""`studio gate`: open operations of a run are tried, and the review shows what came of it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from engines.pipeline.reviewers.human import HumanReviewer
from engines.record.lock import write_lock
from engines.record.run_dir import Workspace
from tests.support.harness import practised
from tests.support.run_studio import studio

OPEN = ("practice.epochs=1", "practice.group_size=3")


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A run whose first lesson waits for a person; no process of it goes on."""
    folder = tmp_path / "practice"
    asyncio.run(practised(folder, *OPEN, reviewers=[HumanReviewer(0.01)]))
    return folder


def calls(workspace: Path) -> int:
    return Workspace(workspace).run("rehearsal").state().total_usage.calls


def test_what_it_takes_and_could_see_is_told_before(workspace: Path) -> None:
    before = calls(workspace)
    told = studio("gate", "rehearsal", "--dry-run", workspace=workspace)
    assert "on 24 problems, 4 tries each at most: " in told.stdout
    assert "would likely show 0." in told.stdout
    facts = json.loads(
        studio("gate", "rehearsal", "--dry-run", "--k", "8", "--json", workspace=workspace).stdout
    )
    assert facts["k"] == 8 and facts["smallest_effect"] < 0.25
    assert calls(workspace) == before


def test_each_verdict_is_journalled_and_stands_in_the_review(workspace: Path) -> None:
    done = studio("gate", "rehearsal", "op1.1", "--problems", "16", workspace=workspace)
    assert done.code == 0, done.stderr
    assert "op1.1 add: helps, +0." in done.stdout and "on 16 problems" in done.stdout
    review = studio("review", workspace=workspace, typed="q\n").stdout
    assert "flag      helps: +0." in review
    state = Workspace(workspace).run("rehearsal").state()
    assert [one.operations for one in state.effects] == [("op1.1",)]
    assert state.spent_on["gate"].calls == state.effects[0].effect.usage.calls
    assert state.status == "held"


def test_what_was_tried_is_not_tried_again_and_other_problems_are(workspace: Path) -> None:
    first = studio("gate", "rehearsal", "op1.1", "--json", workspace=workspace)
    paid = calls(workspace)
    again = studio("gate", "rehearsal", "op1.1", "--json", workspace=workspace)
    assert json.loads(again.stdout) == json.loads(first.stdout) and calls(workspace) == paid
    other = studio("gate", "rehearsal", "op1.1", "--data", "math-tools", workspace=workspace)
    assert other.code == 0 and "cannot tell" in other.stdout and calls(workspace) > paid


def test_a_run_with_nothing_open_says_so(workspace: Path) -> None:
    asyncio.run(practised(workspace, *OPEN, review="auto"))
    done = studio("gate", "rehearsal", workspace=workspace)
    assert (done.code, done.stdout) == (0, "run rehearsal: no open operation changes a wording\n")


def test_a_held_out_set_and_too_few_problems_are_refused(workspace: Path) -> None:
    few = studio("gate", "rehearsal", "--problems", "3", workspace=workspace)
    assert few.code == 2 and "review.gate.problems" in few.stderr
    names = ("--problems", "20", "--data", "arithmetic-heldout")
    seen = studio("gate", "rehearsal", *names, workspace=workspace)
    assert seen.code == 2 and "proves nothing any more" in seen.stderr


def test_a_run_that_somebody_else_holds_is_left_alone(workspace: Path) -> None:
    with write_lock(workspace / "runs/rehearsal", who="somebody"):
        done = studio("gate", "rehearsal", workspace=workspace)
    assert done.code == 2 and "runs/rehearsal" in done.stderr
    assert Workspace(workspace).run("rehearsal").state().effects == []


def test_a_run_that_tries_says_before_what_it_takes_and_could_see(tmp_path: Path) -> None:
    folder, gated = tmp_path / "practice", "review.gate={problems: 16, k: 2}"
    words = ("headless", "rehearsal", *OPEN, "data.truncate=24", gated)
    dry = json.loads(studio(*words, "--dry-run", "--json", workspace=folder).stdout)
    stages = {one["stage"]: one for one in dry["stages"]}
    # 3 steps: 32 tries without any operation, and of two operations half as many each
    assert stages["gate"]["calls"]["likely"] == 3 * (32 + 32)
    run = studio(*words, "evaluation.do_eval=false", workspace=folder)
    told = "gate: 1 operation on 16 problems, 2 tries each at most: 64 rollouts or fewer; would"
    assert told in run.stderr and run.stderr.index(told) < run.stderr.index("step 1 of")
    assert "step 1: op1.1 tried: " in run.stderr
