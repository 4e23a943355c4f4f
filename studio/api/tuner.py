"""The names of AgentScope's tuner (1.0.19) on the studio's own practice, GRPO and evaluation."""

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

from engines.agents import function, loops
from engines.agents.agentscope_classes import Msg as Msg
from engines.core.codec import JsonMapping, JsonObject
from engines.core.errors import ConfigError
from engines.core.types import Completion, Message, Sampling
from engines.data.rows import open_table
from engines.data.source import DataSource
from engines.policies.chat.endpoint import EndpointSettings
from engines.policies.open import PREFIXES, open_policy
from studio.api import practise
from studio.config.source import Source
from studio.data.catalogue import find_data
from studio.evaluation.evaluate import EvalPlan, load_eval, plan_eval
from studio.render.lines import to_stderr
from studio.run.new_or_resume import RunRequest, load_plan

ChatModelBase = function.ChatModel
KEY = "OPENAI_API_KEY"
JUDGE = ("task", "response", "auxiliary_models")
ALGORITHMS: Mapping[str, Mapping[str, str]] = {
    "multi_step_grpo": {},
    "grpo": {},
    "dr_grpo": {"aggregation": "dr_grpo", "advantage_scale": "none"},
    "dapo": {"aggregation": "dapo"},
}
"""Each `algorithm_type` that there is, with what it sets of `grpo`."""
MONITORS = (OURS := "tensorboard", "wandb", "mlflow", "swanlab")
LEVELS = {"light": 1, "medium": 2, "heavy": 4}
"""Epochs of practice by `optimization_level`."""
avg_time_judge, avg_token_consumption_judge = "time_avg", "tokens_avg"
"""Instead of a judge of `select_model`: the figure that is to be least."""
WIDEST = 100.0
"""Rewards by which models are compared may be as far from 0."""
Function = Callable[..., Any]


@dataclass(frozen=True)
class WorkflowOutput:
    """What a workflow made of a task; with a reward no judge is needed."""

    response: Any = None
    reward: float | None = None
    metrics: Mapping[str, float] | None = None


@dataclass(frozen=True)
class JudgeOutput:
    reward: float
    metrics: Mapping[str, float] | None = None


@dataclass(frozen=True)
class DatasetConfig:
    """A file, or a folder in Hugging Face's form; `name` is a folder in it."""

    path: str
    name: str | None = None
    split: str | None = "train"
    total_epochs: int = 1
    total_steps: int | None = None

    def preview(self, n: int = 5) -> list[Any]:
        """Print the first n rows as they stand in the file, and return them."""
        rows = [row for _, _, row in islice(open_table(self._source()).rows, n)]
        print(json.dumps(rows, indent=2, ensure_ascii=False, default=str))
        return rows

    def as_setting(self) -> str:
        return str(self._source())

    def loop(self, batch_size: int) -> tuple[int, int | None, int]:
        """Epochs, the problems that are practised (None: all), and the steps they make."""
        a_pass = math.ceil(sum(1 for _ in open_table(self._source()).rows) / batch_size)
        steps = self.total_steps or a_pass * self.total_epochs
        if steps > a_pass and steps % a_pass:
            raise ConfigError(
                "total_steps",
                f"{steps} steps are no whole passes.",
                f"Give a multiple of the {a_pass} steps of a pass over the data.",
            )
        return max(1, steps // a_pass), steps * batch_size if steps < a_pass else None, steps

    def _source(self) -> DataSource:
        path = Path(self.path, self.name or "").expanduser()
        if self.split not in (None, "train") and not path.is_dir():
            raise ConfigError("split", f"{self.path} has no splits.", "Leave it out.")
        name = f"{path}:{self.split}" if self.split and path.is_dir() else str(path)
        return find_data(name, practise.open_workspace()[0])


@dataclass(frozen=True)
class TunerModelConfig:
    """The window is the model's own; `max_model_len` bounds a reply, as `max_tokens` does."""

    model_path: str
    max_model_len: int = 16384
    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 8192
    base_url: str | None = None

    def as_setting(self) -> JsonObject:
        return {
            "model": policy_name(self.model_path, "hf"),
            "temperature": self.temperature,
            "top_p": self.top_p if self.top_p < 1 else None,
            "max_tokens": min(self.max_tokens, self.max_model_len),
            "base_url": self.base_url,
        }


@dataclass(frozen=True)
class AlgorithmConfig:
    algorithm_type: str = "multi_step_grpo"
    learning_rate: float = 1e-6
    group_size: int = 8
    batch_size: int = 32
    save_interval_steps: int = 100
    eval_interval_steps: int = 100


@dataclass(frozen=True)
class PromptTuneConfig:
    """`lm_model_name` draws the lessons; the workflow's own model replies."""

    lm_model_name: str = "openai:gpt-4o-mini"
    optimization_level: str = "light"
    eval_num_threads: int = 16
    compare_performance: bool = True


def policy_name(name: str, otherwise: str) -> str:
    """A model as a run file names it, wherever that lies; without a prefix it is of a kind."""
    named = name if name.partition(":")[0] in PREFIXES else f"{otherwise}:{name}"
    folder = Path(named.removeprefix("hf:")).expanduser()
    is_folder = named.startswith("hf:") and named != "hf:tiny" and folder.is_dir()
    return f"hf:{folder.resolve()}" if is_folder else named


class OpenAIChatModel(ChatModelBase):
    """A model behind an endpoint, or `rehearsal`, for workflows that run outside a tuning.

    Within one its calls are recorded like all of the try. `client_kwargs` may hold a `base_url`,
    `generate_kwargs` temperature, top_p and max_tokens.
    """

    def __init__(
        self,
        model_name: str,
        api_key: str | None = None,
        client_kwargs: JsonMapping | None = None,
        generate_kwargs: JsonMapping | None = None,
    ) -> None:
        super().__init__(model_name, self._complete)
        self._key = api_key or os.environ.get(KEY)
        self._url = (client_kwargs or {}).get("base_url") or os.environ.get("OPENAI_BASE_URL")
        self._drawn = dict(generate_kwargs or {})

    def as_setting(self) -> JsonObject:
        """The model as a run file names it. A run takes its key from the environment."""
        if self._key != os.environ.get(KEY):
            raise ConfigError(
                self.model_name,
                "no file may hold its key, and the environment has another one.",
                f"Export it as {KEY}.",
            )
        name = policy_name(self.model_name, "openai")
        return {"model": name, "base_url": self._url, **self._drawn}

    async def _complete(self, asked: Sequence[Message], tools: Sequence[JsonMapping]) -> Completion:
        sampling = Sampling(**{"temperature": None, **self._drawn})
        endpoint = EndpointSettings(base_url=self._url, api_key=self._key)
        policy = open_policy(policy_name(self.model_name, "openai"), endpoint)
        try:
            if (within := function.current_try.get(None)) is not None:
                return await within.ask(asked, tools=tools, by=(policy, sampling))
            return await policy.complete(asked, replace(sampling, tools=tuple(tools)))
        finally:
            await policy.aclose()  # the next call may come from another event loop


def tune(
    *,
    workflow_func: Function,
    judge_func: Function | None = None,
    train_dataset: DatasetConfig | None = None,
    eval_dataset: DatasetConfig | None = None,
    model: TunerModelConfig | None = None,
    auxiliary_models: Mapping[str, TunerModelConfig] | None = None,
    algorithm: AlgorithmConfig | None = None,
    project_name: str | None = None,
    experiment_name: str | None = None,
    monitor_type: str | None = None,
    config_path: str | None = None,
    workspace: practise.Folder = None,
) -> practise.Result:
    """Train the workflow's model by GRPO, or have it practise where its weights are not here.

    With `config_path` that run file says everything but the two functions. Without
    `experiment_name` a tuning begins anew.
    """
    own = _functions(workflow_func, judge_func, function.WORKFLOW)
    if config_path is not None:
        given = {"agent.function": own["agent"]["function"], "verifier": own["verifier"]}
        return _practise(str(config_path), workspace, given, anew=False)
    if train_dataset is None or model is None:
        missing = "train_dataset" if train_dataset is None else "model"
        raise ConfigError("tune", f"{missing} is missing.", "Give it, or a config_path.")
    project = project_name or "AgentScope"
    own["exp_id"] = f"{project}-{experiment_name}" if experiment_name else project
    others = {name: one.as_setting() for name, one in (auxiliary_models or {}).items()}
    if judge_func and len(others) > 1 and "judge" not in others:
        raise ConfigError(
            "auxiliary_models",
            "a judge asks one model, and it cannot be told which of these.",
            'Call it "judge".',
        )
    own["agent"]["models"], judges = others, [*others.values()]
    own |= {"judge": others.get("judge", judges[0])} if judge_func and judges else {}
    chosen = algorithm or AlgorithmConfig()
    own |= _training(model, train_dataset, eval_dataset, chosen, monitor_type)
    return _practise(own, workspace, {}, anew=not experiment_name)


def _training(
    model: TunerModelConfig,
    train: DatasetConfig,
    held_out: DatasetConfig | None,
    algorithm: AlgorithmConfig,
    monitor: str | None,
) -> JsonObject:
    """What a run file says of a tuning, besides its functions."""
    kind = practise.one_of("algorithm_type", algorithm.algorithm_type.lower(), ALGORITHMS)
    service = (
        monitor if monitor and practise.one_of("monitor_type", monitor, MONITORS) != OURS else None
    )
    policy = model.as_setting()
    temperature, trains = policy.pop("temperature"), policy["model"].startswith("hf:")
    if service and not trains:
        raise ConfigError(
            "monitor_type",
            f"{policy['model']} is not trained, so there are no curves to show.",
            "Leave it out.",
        )
    epochs, truncate, steps = train.loop(algorithm.batch_size)
    sizes = {"batch_size": algorithm.batch_size, "group_size": algorithm.group_size}
    method = "grpo" if trains else "training_free"
    saved = {"learning_rate": algorithm.learning_rate}
    saved["checkpoint_steps"] = algorithm.save_interval_steps
    run: JsonObject = {
        "policy": policy,
        "data": {"practice": train.as_setting(), "truncate": truncate},
        "practice": {"algorithm": method, "epochs": epochs, "temperature": temperature, **sizes},
        "grpo": {**saved, "monitor": service, **ALGORITHMS[kind]},
    }
    if held_out is not None:
        every = {"every_steps": min(algorithm.eval_interval_steps, steps), "strategy": "steps"}
        measured = {"do_eval": True, "data": [held_out.as_setting()], "temperature": temperature}
        run["evaluation"] = measured | every
    return run


def tune_prompt(
    *,
    workflow: Function,
    init_system_prompt: str,
    judge_func: Function | None = None,
    train_dataset: DatasetConfig,
    eval_dataset: DatasetConfig | None = None,
    config: PromptTuneConfig | None = None,
    project_name: str = "prompt",
    workspace: practise.Folder = None,
) -> str:
    """Practise by `workflow(task, system_prompt)`; returns the prompt with what was learned."""
    config = config or PromptTuneConfig()
    level = practise.one_of("optimization_level", config.optimization_level, LEVELS)
    own = _functions(workflow, judge_func, function.PROMPT_WORKFLOW)
    own["agent"] |= {"instructions": init_system_prompt, "cite": False}
    own |= {"exp_id": project_name, "data": {"practice": train_dataset.as_setting()}}
    own["policy"] = policy_name(config.lm_model_name.replace("/", ":", 1), "openai")
    own["practice"] = {"epochs": LEVELS[level], "concurrency": config.eval_num_threads}
    if eval_dataset is not None and config.compare_performance:
        own["evaluation"] = {"do_eval": True, "data": [eval_dataset.as_setting()]}
    learned = _practise(own, workspace, {}, anew=True).library
    guidance = practise.find_library(learned, workspace=workspace).prompt(cite=False)
    return loops.system_messages(init_system_prompt, guidance)[0].content


def select_model(
    *,
    workflow_func: Function,
    judge_func: Function | str,
    train_dataset: DatasetConfig,
    candidate_models: Sequence[OpenAIChatModel],
    project_name: str = "select",
    workspace: practise.Folder = None,
) -> tuple[OpenAIChatModel, dict[str, float]]:
    """The model with the highest mean reward, or the least time or tokens, and its figures."""
    folder, say = practise.open_workspace(workspace, to_stderr)
    by, judge = (judge_func, None) if isinstance(judge_func, str) else ("reward", judge_func)
    own = _functions(workflow_func, judge, function.WORKFLOW)
    own["verifier"] |= {"range": [-WIDEST, WIDEST]}
    if judge is None:  # any reply counts
        own["verifier"] = {"name": "format", "pattern": "."}
    own |= {"exp_id": project_name, "evaluation": {"data": [train_dataset.as_setting()]}}
    found: list[tuple[OpenAIChatModel, dict[str, float]]] = []
    for model in candidate_models:
        if not isinstance(model, OpenAIChatModel):
            raise ConfigError(
                "candidate_models",
                f"{type(model).__name__} is no model that can be asked.",
                "Give each as OpenAIChatModel(NAME).",
            )
        file = practise.find_or_write({**own, "policy": model.as_setting()}, folder)
        loaded = load_eval(Source((), file), folder.path)
        plan = plan_eval(loaded, folder, library=None, baseline=None)
        practise.run_in_thread(practise.measure_plan(plan, say))
        figures = _figures(plan)
        found += [(model, figures)] if figures else []
        say(f"{model.model_name}: {figures or 'no reply could be judged'}")
    if not found:
        raise ConfigError(
            "select_model",
            "no reply of any model could be judged.",
            "Try the workflow and the judge on one task.",
        )
    return max(found, key=lambda one: one[1][by] if judge else -one[1][by])


def _figures(plan: EvalPlan) -> dict[str, float]:
    """Means over all judged tries; empty where there are none."""
    (book,) = plan.score_books().values()
    tried = [book.find(content, index) for content in plan.contents for index in range(plan.k)]
    if not (scores := [score for score in tried if score is not None]):
        return {}
    names = sorted({name for score in scores for name in score.metrics})
    return {
        "reward": round(fmean(2 * WIDEST * score.reward - WIDEST for score in scores), 9),
        "n": len(scores),
        "time_avg": fmean(score.elapsed_s for score in scores),
        "tokens_avg": fmean(score.usage.tokens for score in scores),
        **{f"{n}_avg": fmean(s.metrics[n] for s in scores if n in s.metrics) for n in names},
    }


def _practise(
    runfile: practise.RunFile, workspace: practise.Folder, given: JsonMapping, anew: bool
) -> practise.Result:
    folder, say = practise.open_workspace(workspace, to_stderr)
    source = Source(practise.as_overrides(given), practise.find_or_write(runfile, folder))
    say(f"run file: {source.runfile}")
    asked = RunRequest(workspace=folder, source=source, restart_step="0" if anew else None)
    return practise.run_in_thread(practise.carry_out(load_plan(asked, say), say))


def _functions(workflow: Function, judge: Function | None, form: Sequence[str]) -> JsonObject:
    """Agent and verifier of a run file."""
    function.check_parameters(workflow, form)
    agent = {"function": practise.place_of(workflow), "instructions": ""}
    if judge is None:
        return {"agent": agent, "verifier": {"name": "own_reward"}}
    function.check_parameters(judge, JUDGE)
    file, _, name = practise.place_of(judge).rpartition(":")
    verifier = {"name": "function", "file": file, "function": name}
    return {"agent": agent, "verifier": verifier}
