"""`studio train grpo-team --stage all`: the planner of a team learns, and nobody else."""

from __future__ import annotations

from pathlib import Path

import pytest

from engines.core import events as ev
from engines.pipeline.evaluation.statistics import paired_interval_of
from engines.record.ledger import read_record
from engines.record.run_dir import Workspace
from tests.support.run_studio import studio

pytestmark = pytest.mark.nightly
SHORT = (
    "policy.local.threads=1",
    "data.truncate=48",
    "practice.group_size=4",
    "grpo.learning_rate=0.0015",  # of few steps
    "sft.epochs=2",
    "evaluation.limit=64",
    "tensorboard=false",
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("peft", reason="needs the extra grpo")
    folder = tmp_path_factory.mktemp("team") / "practice"
    done = studio("train", "grpo-team", "--stage", "all", *SHORT, workspace=folder)
    assert done.code == 0, done.stderr
    # Loss and mean reward of each update, and how many parameters are trained.
    assert "parameters are trained" in done.stdout
    assert done.stderr.count("reward ") >= 6
    return folder


def test_the_planner_alone_learns_which_plan_pays(trained: Path) -> None:
    run = Workspace(trained).run("grpo-team")
    events = [entry.event for entry in run.entries()]
    before, after = (e for e in events if isinstance(e, ev.EvaluationFinished))
    changes = [
        (later[0] or 0.0) - (earlier[0] or 0.0)
        for later, earlier in zip(after.rewards, before.rewards, strict=True)
    ]
    # Above nothing, and no more: how far depends on how a processor rounds.
    assert before.n == after.n == 64 and paired_interval_of(changes).low > 0
    for done in [e for e in events if isinstance(e, ev.RolloutFinished)][:8]:
        records = [read_record(run.records, ref) for ref in done.refs]
        said = [(r.reply.speaker, r.policy, bool(r.reply.token_ids)) for r in records]
        planned = [row for row in said if row[0] == "planner_main"]
        assert planned and all(row[1:] == ("hf:tiny", True) for row in planned)
        others = [row for row in said if row[0] not in ("planner_main", "")]
        assert others and all(row[1:] == ("rehearsal", False) for row in others)


def test_one_command_shows_the_same_problem_before_and_after(trained: Path) -> None:
    words = ("try", "grpo-team", "--versus", "grpo-team", "policy.local.threads=1")
    before, after = studio(*words, workspace=trained).stdout.split("== after\n")
    # From where the run began, which is what fine-tuning made, to what it has learned.
    assert "model    hf:tiny with adapter" in before and "/runs/grpo-team-sft/" in before
    assert "model    hf:tiny with adapter" in after and "/runs/grpo-team/" in after
    assert "[planner_main] calculator: " in before and "[planner_main] calculator: " in after
    assert "== before reward 0" in after
    unknown = studio("try", "grpo-team", "--versus", "nobody", workspace=trained)
    assert unknown.code == 2 and "run nobody" in unknown.stderr
