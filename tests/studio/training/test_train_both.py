"""`studio train` where steps take turns between a library and weights, on the bundled policy."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from engines.core import events as ev
from engines.record.run_dir import RunDir
from engines.record.yaml_text import load_yaml
from tests.support.run_studio import Result, studio

QUICK = (
    "policy.local.threads=1",
    "data.truncate=12",
    "practice.batch_size=4",
    "practice.group_size=4",
    "practice.weight_steps=1",
    "practice.epochs=1",
    "evaluation.limit=4",
    "tensorboard=false",
    "sft.epochs=1",
)


def train(workspace: Path, *words: str) -> Result:
    return studio("train", "both-tiny", *QUICK, *words, workspace=workspace)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """Steps 1 and 3 learn the library, step 2 weights."""
    workspace = tmp_path_factory.mktemp("both") / "practice"
    done = train(workspace)
    assert done.code == 0, done.stderr
    return workspace, done


def shown(workspace: Path, *words: str) -> Any:
    return json.loads(
        studio("runs", "show", "both-tiny", "--json", *words, workspace=workspace).stdout
    )


def test_runs_show_tells_which_steps_learned_what(trained: tuple[Path, Result]) -> None:
    workspace, done = trained
    facts = shown(workspace)
    assert [step["learns"] for step in facts["steps"]] == ["library", "weights", "library"]
    assert facts["training"]["updates"]["library_step"] == 2
    assert list(RunDir(workspace / "runs/both-tiny").state().training) == [2]
    assert facts["library_after"] > 0
    text = studio("runs", "show", "both-tiny", workspace=workspace).stdout
    assert "library step, " in text and "changed: v1" in text
    assert "every weight update within its bounds and every operation that fits" in done.stderr
    assert "step 1: library v1" in done.stderr and "step 2/3 reward" in done.stderr
    first = studio("runs", "show", "both-tiny", "--step", "1", workspace=workspace).stdout
    assert "committed: library v1" in first and "weight update" not in first
    second = studio("runs", "show", "both-tiny", "--step", "2", workspace=workspace).stdout
    assert "weight update" in second


def test_weights_and_library_are_measured_each_without_the_other(
    trained: tuple[Path, Result],
) -> None:
    workspace, done = trained
    facts = shown(workspace)
    cells = {(c["weights"], c["with_library"]): c for c in facts["cells"]}
    assert len(cells) == len(facts["cells"]) == 4
    assert {c["n"] for c in cells.values()} == {4}
    assert all(
        low <= c["mean_reward"] <= high for c in cells.values() for low, high in [c["interval"]]
    )
    before, after = facts["evaluations"]
    assert cells["first", False]["mean_reward"] == before["mean_reward"]
    assert cells["trained", True]["mean_reward"] == after["mean_reward"]
    assert cells["first", False]["against_neither"] is None
    assert cells["trained", True]["against_neither"]["questions"] == 4
    added = cells["trained", True]["against_one"]
    alone = {"library": cells["first", True], "weights": cells["trained", False]}
    for name, one in added.items():  # what the weights add to the library, and the other way
        rise = after["mean_reward"] - alone[name.split()[-1]]["mean_reward"]
        assert one["difference"] == pytest.approx(rise)
    assert len(added) == 2 and cells["first", True]["against_one"] == {}
    for name in ("first weights, no library", "trained weights, library v"):
        assert name in done.stdout
        assert any(name in cell["name"] for cell in facts["cells"])


@pytest.mark.parametrize(
    ("kind", "step"), [(ev.LessonProposed, 1), (ev.LessonCommitted, 3), (ev.CellMeasured, 3)]
)
def test_a_run_that_was_cut_ends_with_the_same_weights_and_library(
    trained: tuple[Path, Result], tmp_path: Path, kind: type[object], step: int
) -> None:
    whole, place = trained[0] / "runs/both-tiny", tmp_path / "practice"
    shutil.copytree(trained[0], place)
    run = place / "runs/both-tiny"
    events = [entry.event for entry in RunDir(whole).entries()]
    at = next(n for n, e in enumerate(events, 1) if isinstance(e, kind) and e.step == step)  # type: ignore[attr-defined]
    kept = (run / "journal.jsonl").read_bytes().splitlines(keepends=True)[:at]
    (run / "journal.jsonl").write_bytes(b"".join(kept))
    if not any(isinstance(event, ev.CheckpointSaved) for event in events[:at]):
        shutil.rmtree(run / "checkpoints")
    if step == 1:  # what the library holds came later
        library = place / "libraries/both-tiny"
        created = (library / "journal.jsonl").read_bytes().splitlines(keepends=True)[:1]
        shutil.rmtree(library)
        library.mkdir()
        (library / "journal.jsonl").write_bytes(created[0])
        for file in (run / "records").glob("step-000[23].jsonl"):
            file.unlink()
    done = train(place)
    assert done.code == 0, done.stderr
    assert "other figures" not in done.stderr

    def learned(folder: Path) -> list[bytes]:
        (weights,) = folder.glob("checkpoints/*/*/global_step_3/adapter_model.safetensors")
        return [weights.read_bytes(), (folder / "agent.yaml").read_bytes()]

    assert learned(run) == learned(whole)
    before, after = RunDir(whole).state(), RunDir(run).state()
    assert [c.result.rewards for c in after.cells] == [c.result.rewards for c in before.cells]


def test_the_exported_folder_holds_the_adapter_and_the_agent_that_mounts_it(
    trained: tuple[Path, Result], tmp_path: Path
) -> None:
    workspace, _ = trained
    for kind in ("adapter", "merged"):
        folder = tmp_path / kind
        done = studio("export", "both-tiny", f"--{kind}", "--to", str(folder), workspace=workspace)
        assert done.code == 0, done.stderr
        assert f"{folder / 'agent.yaml'}" in done.stderr
        agent = load_yaml((folder / "agent.yaml").read_text("utf-8"))
        own = load_yaml((workspace / "runs/both-tiny/agent.yaml").read_text("utf-8"))
        assert agent["experiences"] == own["experiences"] != []
        assert own["model"]["adapter"] == "run:both-tiny"
        wanted = ("hf:tiny", str(folder)) if kind == "adapter" else (f"hf:{folder}", None)
        assert (agent["model"]["model"], agent["model"].get("adapter")) == wanted
        mounted = studio(
            "eval", "tiny", "--agent", str(folder / "agent.yaml"), "evaluation.limit=2",
            "evaluation.k=1", "--json", workspace=workspace,
        )  # fmt: skip
        assert mounted.code == 0, mounted.stderr


def test_a_problem_is_shown_before_and_after_both_were_learned(
    trained: tuple[Path, Result],
) -> None:
    asked = ("try", "both-tiny", "--versus", "both-tiny", *QUICK)
    done = studio(*asked, workspace=trained[0])
    assert done.code == 0, done.stderr
    before, after = done.stdout.split("== after")
    assert "library  none" in before and "with adapter" not in before
    assert "[E1]" in after and "with adapter" in after


def test_distilling_takes_both_from_the_newest_run(trained: tuple[Path, Result]) -> None:
    workspace, _ = trained
    done = train(workspace, "--stage", "distil", "--json")
    assert done.code == 0, done.stderr
    *_, left = (json.loads(line) for line in done.stdout.splitlines())
    assert left["run"] == "both-tiny-distil"
    cells = {(c["weights"], c["with_library"]): c for c in left["cells"]}
    assert len(cells) == 4
    (found,) = left["sets"]  # it begins with the trained weights
    assert found["without"]["mean"] == cells["trained", False]["mean_reward"]
    assert found["with_library"]["mean"] == cells["trained", True]["mean_reward"]


def test_what_cannot_be_done_with_it_is_said(tmp_path: Path) -> None:
    for words, said in (
        (["--stage", "distil"], "there is no such run"),
        (["policy.model=rehearsal"], "weights are here"),
        (["practice.weight_steps=0"], "weight_steps"),
    ):
        done = train(tmp_path / "practice", *words)
        assert (done.code, said in done.stderr) == (2, True), done.stderr


def test_changing_the_cycle_of_a_run_is_refused(
    trained: tuple[Path, Result], tmp_path: Path
) -> None:
    shutil.copytree(trained[0], tmp_path / "practice")
    done = train(tmp_path / "practice", "practice.epochs=2", "practice.weight_steps=2")
    assert done.code == 2
    assert "practice.weight_steps: 1 → 2" in done.stderr
