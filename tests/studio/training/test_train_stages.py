"""`studio train --stage`: fine-tuning, practice after it, and what is left of a library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engines.core.library import Experience, Library
from engines.record.run_dir import Workspace
from tests.support.run_studio import Result, studio

FEW = (
    "policy.local.threads=1",
    "policy.max_tokens=60",
    "data.truncate=8",
    "practice.batch_size=4",
    "practice.group_size=4",
    "practice.epochs=1",
    "evaluation.limit=4",
    "sft.epochs=1",
    "sft.batch_size=64",
)
NOTHING_HELD_OUT = ("evaluation.do_eval=false", "evaluation.data=[]")


def train(stage: str, *words: str, workspace: Path, preset: str = "grpo-tiny") -> Result:
    pytest.importorskip("peft", reason="needs the extra grpo")
    return studio("train", preset, "--stage", stage, *FEW, *words, workspace=workspace)


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_fine_tuning_and_then_practice_from_its_weights(workspace: Path) -> None:
    first = train("sft", workspace=workspace)
    assert first.code == 0, first.stderr
    # 128 demonstrations in batches of 64.
    assert "step 2/2 loss 0.0" in first.stderr
    assert "(n=64), |g| " in first.stderr
    assert "policy v2" in first.stderr
    assert "reward n" not in first.stdout + first.stderr
    assert "group" not in first.stdout
    assert "loss        first step 1 " in first.stdout

    both = train("all", "--json", workspace=workspace)
    assert both.code == 0, both.stderr
    assert "stage sft is done (run grpo-tiny-sft): it is not repeated" in both.stderr
    events = [json.loads(line) for line in both.stdout.splitlines()]
    assert [e["run"] for e in events if e["kind"] == "Summary"] == ["grpo-tiny"]
    adapter = Workspace(workspace).run("grpo-tiny").state().settings["policy.adapter"]
    assert adapter.startswith("grpo-tiny-sft/checkpoints/")
    assert adapter.endswith("global_step_2")

    shown = studio("runs", "show", "grpo-tiny-sft", workspace=workspace)
    assert "STEP  LOSS" in shown.stdout
    assert "groups" not in shown.stdout
    # What practice begins with is what fine-tuning ended with: the same weights, the same score.
    told = studio("runs", "show", "--json", "grpo-tiny-sft", workspace=workspace).stdout
    before = [e["mean_reward"] for e in json.loads(told)["evaluations"]][-1]
    after = next(e["mean"] for e in events if e["kind"] == "EvaluationFinished")
    assert before == after

    again = train("all", workspace=workspace)
    assert again.code == 0
    assert "run grpo-tiny is finished" in again.stderr
    changed = train("all", "sft.learning_rate=0.001", workspace=workspace)
    assert changed.code == 2
    assert "sft.learning_rate: 0.003" in changed.stderr


def test_what_a_library_achieved_is_learnt_without_it(workspace: Path) -> None:
    tip = Experience("E1", "Carry: when a column makes ten or more, carry one.")
    Workspace(workspace).library("tips").create(Library("tips", 0, (tip,), 2), None)
    practised = studio(
        "headless", "tiny", *FEW[:-2], "evaluation.do_eval=false", "library.start=tips@0",
        workspace=workspace,
    )  # fmt: skip
    assert practised.code in (0, 4), practised.stderr

    done = train(
        "distil", "--json", "sft.data=run:tiny", "library.start=tips@0", "evaluation.k=1",
        workspace=workspace, preset="tiny",
    )  # fmt: skip
    assert done.code == 0, done.stderr
    (data,) = (workspace / "datasets").glob("tiny-distil-*.jsonl")
    taken = rows(data)
    assert taken
    assert all("carry one" not in str(row["messages"]) for row in taken)
    assert {row["messages"][0]["role"] for row in taken} == {"user"}
    assert all(row["solution"].endswith(f"#### {row['answer']}") for row in taken)
    assert all(row["completion_ids"] for row in taken)

    *_, left = (json.loads(line) for line in done.stdout.splitlines())
    assert (left["kind"], left["run"]) == ("EffectLeft", "tiny-distil")
    (found,) = left["sets"]
    assert [found[side]["n"] for side in ("without", "with_library", "trained")] == [4, 4, 4]
    state = json.loads(studio("runs", "show", "--json", "tiny-distil", workspace=workspace).stdout)
    assert found["trained"]["mean"] == state["evaluations"][-1]["mean_reward"]
    assert state["library_after"] == 0
    assert studio("library", "show", "tiny-distil", workspace=workspace).stdout.count("E1") == 0


@pytest.mark.parametrize(
    ("stage", "words", "told"),
    [
        ("sft", ["sft.data=null"], "sft.data names none"),
        ("sft", ["sft.data=nowhere"], 'data set "nowhere": It is not found'),
        ("sft", ["sft.data=run:nobody"], "run nobody: there is none"),
        ("sft", ["sft.data=bad.jsonl"], "bad.jsonl:2: it shows no reply"),
        ("sft", ["policy.model=rehearsal"], "training needs a policy whose weights are here"),
        ("distil", [], "what a library achieved is in the rollouts of a run"),
        ("distil", ["sft.data=run:x", *NOTHING_HELD_OUT], "nothing is held out"),
        ("all", ["practice.algorithm=training_free"], "Set practice.algorithm=grpo"),
        ("all", ["data.practice=nowhere"], 'data set "nowhere": It is not found'),
        ("all", ["--restart-step", "3"], "the steps of two runs"),
        ("both", [], "'both' is not one of"),
    ],
)
def test_a_stage_that_cannot_begin_says_why_and_leaves_nothing(
    stage: str, words: list[str], told: str, workspace: Path
) -> None:
    (workspace.parent / "bad.jsonl").write_text('{"question": "a", "answer": 1}\n{"question": "b"}')
    refused = studio("train", "grpo-tiny", "--stage", stage, *words, workspace=workspace)
    assert refused.code == 2
    assert told in refused.stderr
    assert not (workspace / "runs").exists()


def test_problems_without_demonstrations_are_refused_before_a_run_begins(workspace: Path) -> None:
    pytest.importorskip("peft", reason="needs the extra grpo")
    for words in ([], ["--dry-run"]):
        refused = studio(
            "headless", "grpo-tiny", *FEW, *words, "practice.algorithm=sft", workspace=workspace
        )
        assert refused.code == 2
        assert "skills.jsonl, row 1: no demonstration stands beside" in refused.stderr
        assert not (workspace / "runs").exists()
