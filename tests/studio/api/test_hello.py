"""HelloAgents' tool: the documented calls run on the tiny policy, and reply with JSON always."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engines.record.run_dir import Workspace
from studio.api.hello import RLTrainingTool, run_pipeline
from tests.studio.api import rewards
from tests.support.run_studio import studio

GSM8K = [
    ("Natalia sold 48 clips in April and half as many in May. How many?", "48/2=24\n#### 72"),
    ("Compute 66 + 86.", "6+6=12\n#### 152"),
    ("Compute 78 - 19.", "78-19=59\n#### 59"),
]
SHORT = {"max_new_tokens": 40, "num_epochs": 1, "batch_size": 2}


@pytest.fixture
def tool(workspace: Path) -> RLTrainingTool:
    """With GSM8K in the workspace, in its own form."""
    folder = workspace / "datasets" / "gsm8k"
    folder.mkdir(parents=True)
    rows = [json.dumps({"question": q, "answer": a}) + "\n" for q, a in GSM8K]
    (folder / "train.jsonl").write_text("".join(rows))
    (folder / "test.jsonl").write_text("".join(rows[1:]))
    return RLTrainingTool(workspace)


def reply(tool: RLTrainingTool, **asked: Any) -> dict[str, Any]:
    text = tool.run(asked)
    assert isinstance(text, str)
    found: dict[str, Any] = json.loads(text)
    assert found["status"] in ("success", "error")
    return found


def test_data_sets_are_loaded_in_both_forms(tool: RLTrainingTool) -> None:
    found = reply(tool, action="load_dataset", format="sft", split="train", max_samples=100)
    assert found["status"] == "success"
    assert (found["dataset_size"], found["sample_keys"]) == (3, ["prompt", "completion"])
    assert found["doubts"] is None
    model = "Qwen/Qwen3-0.6B"
    found = reply(
        tool, action="load_dataset", format="rl", split="test", max_samples=1, model_name=model
    )
    assert (found["split"], found["dataset_size"]) == ("test", 1)
    assert found["sample"]["ground_truth"].endswith("152")
    tiny = reply(tool, action="load_dataset", model_name="tiny")
    assert (tiny["format"], tiny["dataset_size"]) == ("sft", 100)


@pytest.mark.parametrize(
    ("asked", "verifier"),
    [
        ({}, {"name": "accuracy"}),
        (
            {"reward_type": "length_penalty", "penalty_weight": 0.001},
            {"name": "length_penalty", "max_length": 1024, "penalty_weight": 0.001},
        ),
        ({"reward_type": "step", "step_bonus": 0.1}, {"name": "step", "step_bonus": 0.1}),
    ],
)
def test_rewards_are_verifiers(
    tool: RLTrainingTool, asked: dict[str, Any], verifier: dict[str, Any]
) -> None:
    found = reply(tool, action="create_reward", **asked)
    assert found["verifier"] == verifier
    assert found["description"]


def test_fine_tuning_then_grpo_then_evaluation(
    tool: RLTrainingTool, workspace: Path, tmp_path: Path
) -> None:
    pytest.importorskip("peft", reason="needs the extra grpo")
    sft, grpo = str(tmp_path / "output/sft"), str(tmp_path / "output/grpo")
    given: dict[str, Any] = {"action": "train", **SHORT}
    first = reply(
        tool, **given, algorithm="sft", model_name="tiny", output_dir=sft, max_samples=4,
        use_lora=True,
    )  # fmt: skip
    assert first["status"] == "success", first
    assert (first["output_dir"], first["num_samples"], first["use_lora"]) == (sft, 4, True)
    assert Path(sft, "adapter_model.safetensors").exists()

    reply(tool, action="create_reward", reward_type="step")
    second = reply(
        tool, **given, algorithm="grpo", model_name=sft, output_dir=grpo, max_samples=2,
        num_generations=2,
    )  # fmt: skip
    assert second["status"] == "success", second
    assert Path(grpo, "config.json").exists(), "without use_lora the whole model"
    settings = Workspace(workspace).run(second["run"]).state().settings
    assert settings["policy.adapter"] == sft
    assert settings["verifier"] == {"name": "step", "step_bonus": 0.1}
    assert settings["grpo.learning_rate"] == 1e-5

    for path in (sft, grpo):
        found = reply(
            tool, action="evaluate", model_path=path, max_samples=4, use_lora=path == sft,
            max_new_tokens=40,
        )  # fmt: skip
        assert found["status"] == "success", found
        assert found["num_samples"] == 4
        assert found["accuracy"] == f"{float(found['average_reward']):.2%}"


def test_own_rows_and_an_own_reward(tool: RLTrainingTool, workspace: Path, tmp_path: Path) -> None:
    pytest.importorskip("peft", reason="needs the extra grpo")
    rows = [{"question": q, "answer": a.rpartition(" ")[2]} for q, a in GSM8K]
    found = reply(
        tool, action="train", algorithm="grpo", model_name="tiny", dataset=rows, max_samples=2,
        custom_reward=rewards.tolerant_reward, output_dir=str(tmp_path / "out"),
        num_generations=2, use_lora=True, **SHORT,
    )  # fmt: skip
    assert found["status"] == "success", found
    state = Workspace(workspace).run(found["run"]).state()
    assert state.settings["verifier"]["function"] == "tolerant_reward"
    assert state.steps_finished == 1
    assert not state.lost


def test_each_argument_of_a_training_is_a_setting(
    tool: RLTrainingTool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[dict[str, Any]] = []
    monkeypatch.setattr(tool, "_carry_out", lambda run, tuning: made.append(run))
    given = {**SHORT, "max_samples": 2, "learning_rate": 1e-3, "lora_r": 4, "lora_alpha": 8}
    given |= {"output_dir": str(tmp_path / "out"), "num_generations": 3, "batch_size": 6}
    for algorithm in ("sft", "grpo"):
        reply(tool, action="train", algorithm=algorithm, **given)
    sft, grpo = made
    lora, loop = {"lora": {"rank": 4, "alpha": 8}}, {"epochs": 1, "batch_size": 6}
    assert (sft["policy"]["max_tokens"], sft["grpo"]) == (40, lora)
    assert len(Path(sft["sft"].pop("data")).read_text().splitlines()) == 2
    assert sft["sft"] == {**loop, "learning_rate": 1e-3}
    assert (grpo["grpo"], grpo["data"]["truncate"]) == ({**lora, "learning_rate": 1e-3}, 2)
    assert grpo["practice"].items() >= {**loop, "group_size": 3}.items()


def test_a_pipeline_repeats_what_is_asked_for_otherwise(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(RLTrainingTool, "reply_to", lambda _, one: asked.append(one) or {})
    file = tmp_path / "config.json"
    for limit in (4, 5):
        stages = {"sft": {"max_samples": 3}, "eval": {"max_samples": limit}}
        file.write_text(json.dumps({"output_dir": str(tmp_path / "out"), **stages}))
        run_pipeline(file, workspace)
    done = [("load_dataset", 3), ("train", 3), ("evaluate", 4), ("evaluate", 5)]
    assert [(one["action"], one["max_samples"]) for one in asked] == done


def test_the_documented_reward() -> None:
    """Last number; error below 0.01, 1 and 5; a little for shown steps; 1 at most."""
    texts = ["Step 1: 40 + 2\n42", "it is 42.5", "45", "90", "none"]
    found = rewards.tolerant_reward(texts, ground_truth=["42"] * 5)
    assert found == [1.0, 0.8, 0.5, 0.0, 0.0]


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({}, "There are load_dataset, create_reward, train, evaluate"),
        ({"action": "traim"}, 'Did you mean "train"'),
        ({"action": "train", "algorithm": "ppo"}, "There are sft, grpo"),
        ({"action": "train", "algorithm": "sft", "lr": 1}, "Supported: algorithm, model_name"),
        ({"action": "train"}, "algorithm"),
        ({"action": "train", "algorithm": "sft", "output_dir": "."}, "is not empty"),
        ({"action": "evaluate", "model_path": "tiny", "k": 3}, "Supported: model_path"),
        ({"action": "load_dataset", "format": "dpo"}, "There are sft, rl"),
        ({"action": "load_dataset", "split": "dev"}, "There are train, test"),
        ({"action": "create_reward", "reward_type": "style"}, "accuracy, length_penalty, step"),
        ({"action": "load_dataset", "dataset": "nowhere"}, "nowhere"),
        ({"action": "evaluate", "model_path": 3}, "TypeError"),
    ],
)
def test_what_is_wrong_is_said_in_json(
    tool: RLTrainingTool, asked: dict[str, Any], told: str
) -> None:
    found = reply(tool, **asked)
    assert found["status"] == "error"
    assert told in found["message"]


def test_a_pipeline_feeds_each_stage_to_the_next(workspace: Path, tmp_path: Path) -> None:
    pytest.importorskip("peft", reason="needs the extra grpo")
    out = tmp_path / "out"
    config = {
        "model": {"base_model": "tiny"},
        "output_dir": str(out),
        "sft": {**SHORT, "max_samples": 4},
        "grpo": {**SHORT, "max_samples": 2, "num_generations": 2},
        "eval": {"max_samples": 4, "max_new_tokens": 40},
    }
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    done = studio("train", "--pipeline", str(file), "--json", workspace=workspace)
    assert done.code == 0, done.stderr
    results = json.loads(done.stdout)
    assert [*results] == ["data", "sft", "sft_eval", "grpo", "grpo_eval"]
    assert results["grpo"]["model_name"] == results["sft"]["output_dir"] == str(out / "sft")
    assert results["grpo_eval"]["model_path"] == str(out / "grpo")
    assert json.loads((out / "results.json").read_text()) == results
    again = studio("train", "--pipeline", str(file), workspace=workspace)
    assert "stage" not in again.stderr, "what is done is not repeated"
    assert again.stdout.splitlines()[-1].startswith("grpo_eval: ")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "cannot be read as JSON"),
        ('{"modell": {}}', 'Did you mean "model"'),
        ('{"model": {"name": "tiny"}}', "There are base_model"),
        ('{"sft": {"lr": 1}, "model": {"base_model": "tiny"}}', "'lr'"),
    ],
)
def test_a_pipeline_that_cannot_be_used_is_refused(
    text: str, told: str, workspace: Path, tmp_path: Path
) -> None:
    file = tmp_path / "config.json"
    file.write_text(text)
    refused = studio("train", "--pipeline", str(file), workspace=workspace)
    assert refused.code == 2
    assert told in refused.stderr
    assert not (workspace / "runs").exists()


def test_conversations_are_previewed_and_checked(workspace: Path, tmp_path: Path) -> None:
    file = tmp_path / "chat.jsonl"
    turns = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]
    file.write_text(json.dumps({"messages": turns}) + "\n" + json.dumps({"messages": turns[:1]}))
    shown = studio("data", "preview", str(file), "--json", workspace=workspace)
    assert [row["answer"] for row in json.loads(shown.stdout)] == ["4", None]
    report = json.loads(studio("data", "check", str(file), "--json", workspace=workspace).stdout)
    assert report["without_answer"] == [2]
