"""Curves of a run that trains no weights, read back as TensorBoard reads them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from engines.record.run_dir import Workspace
from tests.support.processes import SMALL
from tests.support.run_studio import studio


def curves(workspace: Path) -> dict[str, dict[int, float]]:
    read = EventAccumulator(str(Workspace(workspace).runs()[-1].path / "tensorboard"))
    read.Reload()
    return {
        tag: {point.step: round(point.value, 5) for point in read.Scalars(tag)}
        for tag in read.Tags()["scalars"]
    }


@pytest.mark.filterwarnings("ignore")
def test_each_step_has_its_figures_and_a_resumed_run_goes_on_with_them(workspace: Path) -> None:
    words = ("rehearsal", *SMALL[:4], "evaluation.limit=2", "evaluation.k=2", "tensorboard=true")
    words += ("evaluation.data=arithmetic-heldout",)
    assert studio("headless", *words, workspace=workspace).code == 0
    assert studio("headless", *words, "practice.epochs=2", workspace=workspace).code == 0
    found, run = curves(workspace), Workspace(workspace).runs()[-1]
    state = run.state()
    assert found["practice/reward"] == {
        step: round(one.rewards.mean or 0.0, 5) for step, one in state.steps.items()
    }
    assert [*found["practice/reward"]] == [1, 2, 3, 4]
    for step, one in state.steps.items():
        groups = {name: found[f"groups/{name}"].get(step, 0) for name in one.groups}
        assert groups == dict(one.groups)
        share = one.groups["used"] / sum(one.groups.values())
        assert found["practice/informative"][step] == round(share, 5)
        applied = sum(outcome.applied for outcome in one.outcomes)
        assert found["operations/applied"][step] == applied
        assert found["operations/rejected"][step] == len(one.outcomes) - applied
        assert found["practice/seconds"][step] > 0
    library = Workspace(workspace).library("rehearsal").head()
    assert found["practice/experiences"][4] == len(library.experiences) > 0
    assert found["practice/tokens"][4] <= state.total_usage.tokens
    means = {e.step: round(e.mean or 0.0, 5) for e in state.evaluations}
    assert found["held-out/arithmetic-heldout"] == means
    passed = found["held-out-pass@2/arithmetic-heldout"]
    assert all(passed[step] >= means[step] for step in means)


def test_curves_are_written_where_they_are_asked_for_alone(practised: Path) -> None:
    assert not (Workspace(practised).runs()[-1].path / "tensorboard").exists()


def test_without_tensorboard_a_run_file_that_asks_for_curves_is_refused(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "tensorboard"]:
        monkeypatch.setitem(sys.modules, name, None)
    refused = studio("headless", "rehearsal", *SMALL, "tensorboard=true", workspace=workspace)
    assert refused.code == 2 and "[tensorboard]" in refused.stderr
    assert not (workspace / "runs").exists()
