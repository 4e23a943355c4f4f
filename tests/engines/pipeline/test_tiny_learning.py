"""The bundled policy really learns: in the weights, and from experiences in its prompt.

One seed of each; `tests/bench` and the README tell of more. n and the bounds are those that the
product promises, so a change that spoils learning fails here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.run_studio import studio

ONE = "policy.local.threads=1"
CONSTANT = "grpo.schedule=constant"  # as the first 30 steps of the whole run nearly have it


def summary(workspace: Path, *words: str) -> dict[str, Any]:
    done = studio(*words, ONE, "--json", workspace=workspace)
    assert done.code == 0, done.stderr
    last: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert last["kind"] == "Summary"
    return last


def test_thirty_steps_of_grpo_raise_the_heldout_reward_by_more_than_a_third(
    tmp_path: Path,
) -> None:
    found = summary(tmp_path / "practice", "train", "grpo-tiny", "practice.epochs=1", CONSTANT)
    before, after = found["evaluations"]
    assert before["n"] == after["n"] == 512
    assert after["mean"] - before["mean"] >= 0.35
    assert before["interval"][1] < after["interval"][0]
    assert found["training"]["policy_version"] == 30


def test_a_library_helps_the_frozen_policy_more_than_a_neutral_one(tmp_path: Path) -> None:
    """The lessons are drawn by the rehearsal, which reads nothing but the tries."""
    workspace = tmp_path / "practice"
    small = ("evaluation.limit=64",)
    found = summary(workspace, "headless", "tiny", *small)
    before, after = found["evaluations"]
    assert before["n"] == after["n"] == 64 * 8
    assert after["mean"] - before["mean"] >= 0.30
    words = ("eval", "tiny", "--library", "tiny", "--baseline", "neutral", "--json", *small)
    done = studio(*words, ONE, workspace=workspace)
    assert done.code == 0, done.stderr
    (compared,) = json.loads(done.stdout)["sets"]
    assert compared["comparison"]["difference"] >= 0.25
