"""AgentScope's tuner: its documented examples run, and what is not supported says so."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engines.core.errors import ConfigError, PolicyError, StudioError
from engines.core.events import RolloutFinished, RolloutJudged
from engines.record.ledger import read_trajectory
from engines.record.run_dir import RunDir, Workspace
from studio.api.practise import Result
from studio.api.tuner import (
    AlgorithmConfig,
    DatasetConfig,
    Msg,
    OpenAIChatModel,
    PromptTuneConfig,
    TunerModelConfig,
    WorkflowOutput,
    avg_time_judge,
    avg_token_consumption_judge,
    select_model,
    tune,
    tune_prompt,
)
from studio.config.loading import load_run
from tests.studio.api import documented
from tests.studio.api.documented import example_judge_function, example_workflow_function

TRAIN = [
    ("What is 2 + 2?", "4"),
    ("What is 48 + 37?", "85"),
    ("What is 91 - 45?", "46"),
    ("What is 6 + 5 * 4?", "26"),
]


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    folder = tmp_path / "my_dataset"
    folder.mkdir()
    rows = [json.dumps({"question": q, "answer": a, "level": 1}) + "\n" for q, a in TRAIN]
    (folder / "train.jsonl").write_text("".join(rows))
    (folder / "test.jsonl").write_text("".join(rows[1:3]))
    return folder


def tuned(dataset: Path, workspace: Path, **changed: Any) -> Result:
    """A tuning as documented, on the rehearsal unless changed."""
    given: dict[str, Any] = {
        "workflow_func": example_workflow_function,
        "judge_func": example_judge_function,
        "model": TunerModelConfig(model_path="rehearsal", max_model_len=16384),
        "train_dataset": DatasetConfig(path=str(dataset), split="train"),
        "algorithm": AlgorithmConfig(
            algorithm_type="multi_step_grpo", group_size=4, batch_size=32, learning_rate=1e-6
        ),
        "workspace": workspace,
    }
    return tune(**{**given, **changed})


def run_file_of(result: Result, workspace: Path) -> RunDir:
    return Workspace(workspace).run(result.run)


def test_a_preview_prints_the_first_rows(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = DatasetConfig(path=str(dataset), split="train").preview(n=2)
    assert json.loads(capsys.readouterr().out) == rows
    assert [row["answer"] for row in rows] == ["4", "85"]
    assert len(DatasetConfig(path=str(dataset), split="test").preview()) == 2
    one_file = DatasetConfig(path=str(dataset / "test.jsonl"))
    assert one_file.preview(1)[0]["question"] == TRAIN[1][0]
    with chdir(dataset.parent):
        assert DatasetConfig(path="my_dataset").preview(1) == rows[:1]
    with pytest.raises(StudioError, match="valid"):
        DatasetConfig(path=str(dataset), split="valid").preview()


def test_workflow_and_judge_run_on_one_task_before_any_tuning() -> None:
    task = {"question": "What is 123 plus 456?", "answer": "579"}
    output = asyncio.run(example_workflow_function(task, OpenAIChatModel("rehearsal")))
    assert isinstance(output.response, Msg)
    assert output.response.get_text_content()
    judged = asyncio.run(example_judge_function(task, Msg("agent", "It is 579", "assistant")))
    assert judged.reward == 1.0


def test_a_model_that_is_asked_practises_without_weights(
    dataset: Path, workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    held_out = DatasetConfig(path=str(dataset), split="test")
    found = tuned(dataset, workspace, eval_dataset=held_out, project_name="sums")
    assert found.exit_code == 0
    assert (found.run, *found.after) == ("sums", "my_dataset-test")
    printed = capsys.readouterr()
    assert printed.out == ""
    file = printed.err.splitlines()[0].removeprefix("run file: ")
    config = load_run(file, [], workspace).config
    assert (config.practice.algorithm, config.practice.group_size) == ("training_free", 4)
    run = run_file_of(found, workspace)
    tried = [e.event for e in run.entries() if isinstance(e.event, RolloutFinished)]
    system, asked, reply = read_trajectory(run.records, tried[-1].refs)
    assert system.content.startswith("You are a helpful math problem solving agent.")
    assert asked.content in {question for question, _ in TRAIN}
    assert reply.role == "assistant"


def test_weights_that_are_here_are_trained_by_grpo(dataset: Path, workspace: Path) -> None:
    pytest.importorskip("peft", reason="needs the extra grpo")
    model = TunerModelConfig(model_path="hf:tiny", max_model_len=40)
    found = tuned(dataset, workspace, model=model, monitor_type="tensorboard")
    again = tuned(dataset, workspace, model=model, experiment_name="b")
    assert (found.run, again.run) == ("AgentScope", "AgentScope-b")
    (experiment,) = (workspace / "runs/AgentScope/checkpoints/AgentScope").iterdir()
    assert experiment.name.startswith("Experiment-2")
    assert (experiment / "global_step_1/adapter_model.safetensors").exists()
    assert list((experiment / "monitor/tensorboard").iterdir())
    state = run_file_of(found, workspace).state()
    assert state.trains_weights
    assert state.settings["grpo.learning_rate"] == 1e-6
    assert state.settings["practice.algorithm"] == "grpo"


def test_each_argument_is_a_setting(
    dataset: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("studio.api.tuner._practise", lambda run, *_, anew: (run, anew))
    data, url = DatasetConfig(path=str(dataset)), "http://127.0.0.1:1/v1"
    model = TunerModelConfig("rehearsal", 900, temperature=0.5, top_p=0.8, base_url=url)
    given = {"algorithm": AlgorithmConfig("dr_grpo", 2e-5, 4, 2, 3), "eval_dataset": data}
    others = {"critic": TunerModelConfig("rehearsal:critic"), "judge": model}
    given |= {"model": model, "auxiliary_models": others, "experiment_name": "b"}
    run, anew = tuned(dataset, workspace, **given)  # type: ignore[misc]
    policy = {"model": "rehearsal", "top_p": 0.8, "max_tokens": 900, "base_url": url}
    assert (run["policy"], run["judge"], anew) == (policy, {**policy, "temperature": 0.5}, False)
    loss = {"aggregation": "dr_grpo", "advantage_scale": "none", "monitor": None}
    assert run["grpo"] == {**loss, "learning_rate": 2e-5, "checkpoint_steps": 3}
    assert run["practice"]["temperature"] == run["evaluation"]["temperature"] == 0.5
    assert run["evaluation"]["every_steps"] == 2  # of four rows: 100 would never come


@pytest.mark.parametrize(
    ("given", "n", "expected"),
    [
        ({}, 2, (1, None, 2)),
        ({"total_epochs": 3}, 2, (3, None, 6)),
        ({"total_steps": 1}, 2, (1, 2, 1)),
        ({"total_steps": 6}, 2, (3, None, 6)),
        ({"total_steps": 3}, 3, None),
    ],
)
def test_steps_are_whole_passes(
    dataset: Path, given: dict[str, int], n: int, expected: tuple[int, int | None, int] | None
) -> None:
    config = DatasetConfig(path=str(dataset), **given)
    if expected is None:
        with pytest.raises(ConfigError, match="Give a multiple of the 2 steps"):
            config.loop(n)
    else:
        assert config.loop(n) == expected


def test_a_workflow_may_ask_others_and_reward_itself(dataset: Path, workspace: Path) -> None:
    critic = {"critic": TunerModelConfig(model_path="rehearsal:critic", max_tokens=300)}
    found = tuned(
        dataset,
        workspace,
        workflow_func=documented.rewarding_workflow,
        judge_func=None,
        auxiliary_models=critic,
    )
    assert found.exit_code == 0
    events = [entry.event for entry in run_file_of(found, workspace).entries()]
    verdicts = [one.verdict for one in events if isinstance(one, RolloutJudged)]
    assert {verdict.reward for verdict in verdicts} == {1.0}
    assert verdicts[0].metrics == {"own.asked": 2.0, "own.reward": 1.0}
    records = "".join(
        path.read_text() for path in (run_file_of(found, workspace).records).iterdir()
    )
    assert records.count('"policy":"rehearsal:critic"') == 4 * 4


def test_a_judge_may_ask_an_auxiliary_model(dataset: Path, workspace: Path) -> None:
    critic = {"critic": TunerModelConfig(model_path="rehearsal:critic")}
    found = tuned(dataset, workspace, judge_func=documented.asking_judge, auxiliary_models=critic)
    assert found.exit_code == 0
    records = "".join(
        path.read_text() for path in (run_file_of(found, workspace).records).iterdir()
    )
    assert '"purpose":"judge"' in records
    assert '"policy":"rehearsal:critic"' in records


def test_a_config_bypasses_the_arguments(dataset: Path, workspace: Path, tmp_path: Path) -> None:
    file = tmp_path / "expert.yaml"
    file.write_text(
        f"policy: rehearsal\ndata: {{practice: '{dataset}:train', truncate: 2}}\n"
        "practice: {epochs: 1, group_size: 2}\n"
    )
    found = tune(
        workflow_func=example_workflow_function,
        judge_func=example_judge_function,
        config_path=str(file),
        workspace=workspace,
    )
    assert found.run == "expert"
    assert run_file_of(found, workspace).state().settings["agent.kind"] == "function"


def test_each_argument_of_a_prompt_tuning_is_a_setting(
    dataset: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[dict[str, Any]] = []
    learned = SimpleNamespace(library="learned", prompt=lambda *, cite: "" if cite else "E1")
    monkeypatch.setattr(
        "studio.api.tuner._practise", lambda run, *_, anew: runs.append(run) or learned
    )
    monkeypatch.setattr("studio.api.practise.find_library", lambda *_, **__: learned)
    data = DatasetConfig(path=str(dataset))
    for compared in (True, False):
        made = tune_prompt(
            workflow=documented.prompt_workflow,
            init_system_prompt="Be exact.",
            train_dataset=data,
            eval_dataset=data,
            config=PromptTuneConfig("openai/m", "heavy", 3, compared),
            workspace=workspace,
        )
        assert made == "Be exact.\n\nE1"
    run = runs[0]
    assert (run["policy"], run["practice"]["concurrency"]) == ("openai:m", 3)
    assert run["agent"].items() >= {"instructions": "Be exact.", "cite": False}.items()
    assert ["evaluation" in run for run in runs] == [True, False]


def test_a_prompt_is_tuned_by_practice(dataset: Path, workspace: Path) -> None:
    init = "You are an agent. Please solve the math problem given to you."
    tuned_prompt = tune_prompt(
        workflow=documented.prompt_workflow,
        init_system_prompt=init,
        judge_func=example_judge_function,
        train_dataset=DatasetConfig(path=str(dataset)),
        eval_dataset=DatasetConfig(path=str(dataset), split="test"),
        config=PromptTuneConfig(lm_model_name="rehearsal", optimization_level="medium"),
        workspace=workspace,
    )
    assert tuned_prompt.startswith(init)
    run = Workspace(workspace).run("prompt")
    state = run.state()
    assert state.library_version > 0
    assert "\n\n## Experiences from earlier practice\n" in tuned_prompt
    assert [found.step for found in state.evaluations] == [0, 1, 2]
    tried = [e.event for e in run.entries() if isinstance(e.event, RolloutFinished)]
    last = read_trajectory(run.records, tried[-1].refs)
    assert last[0].content.startswith(f"{init}\n\n## Experiences")
    assert last[-1].role == "assistant"


def test_the_best_model_is_selected(dataset: Path, workspace: Path) -> None:
    candidates = [
        OpenAIChatModel("rehearsal"),
        OpenAIChatModel("rehearsal:long", generate_kwargs={"max_tokens": 5}),
    ]

    def select(judge: Callable[..., Any] | str) -> tuple[OpenAIChatModel, dict[str, float]]:
        return select_model(
            workflow_func=example_workflow_function,
            judge_func=judge,
            train_dataset=DatasetConfig(path=str(dataset)),
            candidate_models=candidates,
            workspace=workspace,
        )

    best, figures = select(documented.translation_judge)
    assert best is candidates[0]
    assert figures["n"] == 4
    assert figures["reward"] == 100 * figures["bleu_avg"] > 0
    fewest, figures = select(avg_token_consumption_judge)
    assert fewest is candidates[1]
    quickest, found = select(avg_time_judge)
    assert quickest in candidates
    assert found["time_avg"] >= 0


def test_a_monitor_gets_the_curves(
    dataset: Path, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("peft", reason="needs the extra grpo")
    (tmp_path / "wandb.py").write_text(
        "calls = []\n"
        "def init(**given): calls.append(('init', given['project'], given['name']))\n"
        "def log(figures, step):\n"
        "    calls.append(('log', sorted(figures), step))\n"
        "    if len(calls) > 1: raise OSError('no network')\n"
        "def finish(): calls.append(('finish',))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    model = TunerModelConfig(model_path="hf:tiny", max_model_len=30)
    found = tuned(dataset, workspace, model=model, monitor_type="wandb")
    assert found.exit_code == 0, "a monitor that fails never stops a run"
    begun, logged = sys.modules["wandb"].calls  # type: ignore[attr-defined]
    assert begun == ("init", "AgentScope", "AgentScope")
    assert logged[2] == 1
    assert "train/grad_norm" in logged[1]


def test_an_auxiliary_model_is_another_one_than_that_in_training(
    dataset: Path, workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("peft", reason="needs the extra grpo")
    same = TunerModelConfig(model_path="tiny", max_model_len=20)
    found = tuned(
        dataset,
        workspace,
        workflow_func=documented.rewarding_workflow,
        judge_func=None,
        model=same,
        auxiliary_models={"critic": same},
        algorithm=AlgorithmConfig("grpo", batch_size=2, group_size=2),
        train_dataset=DatasetConfig(path=str(dataset), total_steps=1),
    )
    assert found.exit_code == 0
    assert capsys.readouterr().err.count("loading hf:tiny") == 2
    assert run_file_of(found, workspace).state().trains_weights


def test_a_missing_extra_is_named_before_anything_is_written(
    dataset: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engines.policies.open.find_spec", lambda name: None)
    with pytest.raises(PolicyError, match=r"torch.*peft.*Install the extra: "):
        tuned(dataset, workspace, model=TunerModelConfig(model_path="tiny"))
    assert not (workspace / "runs").exists()


def test_names_of_models_and_projects(
    dataset: Path, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_model").mkdir()
    monkeypatch.chdir(tmp_path)
    for given, named in (
        ("Qwen/Qwen3-0.6B", "hf:Qwen/Qwen3-0.6B"),
        ("./my_model", f"hf:{tmp_path / 'my_model'}"),
        ("tiny", "hf:tiny"),
        ("openai:gpt-4o-mini", "openai:gpt-4o-mini"),
    ):
        assert TunerModelConfig(given).as_setting()["model"] == named
    with pytest.raises(ConfigError, match="exp_id"):
        tuned(dataset, workspace, project_name="my/project")


SUPPORTED = "Supported: task, model, auxiliary_models."


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"workflow_func": documented.greedy_workflow}, f'"\\*\\*more.*{SUPPORTED}'),
        ({"workflow_func": documented.plain_workflow}, "not async"),
        ({"workflow_func": documented.prompt_workflow}, f'"system_prompt.*{SUPPORTED}'),
        ({"judge_func": documented.odd_judge}, "Supported: task, response, auxiliary_models."),
        ({"algorithm": AlgorithmConfig("ppo")}, "multi_step_grpo, grpo, dr_grpo, dapo"),
        ({"monitor_type": "neptune"}, "tensorboard, wandb, mlflow, swanlab"),
        ({"monitor_type": "wandb"}, "no curves"),
        (
            {"auxiliary_models": dict.fromkeys("ab", TunerModelConfig("rehearsal"))},
            "a judge asks one model",
        ),
        ({"model": None}, "model is missing"),
        ({"train_dataset": None}, "train_dataset is missing"),
    ],
)
def test_what_is_not_supported_is_refused_with_what_is(
    changed: dict[str, Any], told: str, dataset: Path, workspace: Path
) -> None:
    with pytest.raises(ConfigError, match=told):
        tuned(dataset, workspace, **changed)
    assert not workspace.exists()


def test_a_monitor_that_is_not_installed_names_its_package(dataset: Path, workspace: Path) -> None:
    model = TunerModelConfig(model_path="hf:tiny")
    with pytest.raises(ConfigError, match="pip install mlflow"):
        tuned(dataset, workspace, model=model, monitor_type="mlflow")
    assert not (workspace / "runs").exists()


def test_functions_that_no_file_holds_are_refused(dataset: Path, workspace: Path) -> None:
    async def inner(task: dict, model: Any) -> WorkflowOutput:
        return WorkflowOutput()

    with pytest.raises(ConfigError, match="%%writefile"):
        tuned(dataset, workspace, workflow_func=inner)


def test_no_file_holds_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-abcdefghijkl1234")
    assert "api_key" not in OpenAIChatModel("m", api_key="sk-abcdefghijkl1234").as_setting()
    with pytest.raises(ConfigError, match="Export it"):
        OpenAIChatModel("m", api_key="sk-another").as_setting()
