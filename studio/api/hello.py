"""HelloAgents' `RLTrainingTool` on the studio's own engines; each training is a run.

The usual data set `gsm8k` has to be added to the workspace; the bundled model `tiny` has its own.
"""

import inspect
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from filecmp import cmp
from pathlib import Path
from typing import Any

from engines.core import codec, errors
from engines.core.codec import JsonMapping, JsonObject
from engines.data.dataset import check_rows, doubts_line, read_numbered_problems
from engines.data.source import DataSource
from engines.grpo.checkpoint.folders import Kind, check_target
from engines.grpo.loss.sft_data import demonstration_row, read_demonstrations
from engines.record.appender import make_folder, write_atomic
from engines.verifiers.open import KINDS
from studio.api import practise, tuner
from studio.api.practise import one_of, place_of
from studio.config.source import Source
from studio.data.catalogue import bundled_folder, find_data
from studio.errors import describe_error
from studio.render.lines import to_stderr
from studio.run.new_or_resume import RunPlan, RunRequest, load_plan
from studio.training.export import prepare_export
from studio.training.stages import tuning_request

MODEL = "Qwen/Qwen3-0.6B"
TINY = {"sft train": "skills-demonstrations", "rl train": "skills"}


class RLTrainingTool:
    """`run({"action": …})` replies with JSON text always, also where something is wrong."""

    def __init__(self, workspace: practise.Folder = None) -> None:
        self._workspace, self._say = practise.open_workspace(workspace, to_stderr)
        self._reward: JsonObject = {"name": "accuracy"}

    def run(self, parameters: JsonMapping) -> str:
        try:
            reply = {"status": "success", **self.reply_to(parameters)}
        except Exception as error:
            described = describe_error(error)
            message = described[0] if described else f"{type(error).__name__}: {error}"
            reply = {"status": "error", "message": message}
        return json.dumps(reply, ensure_ascii=False)

    def reply_to(self, parameters: JsonMapping) -> JsonObject:
        """The same as values. Raises StudioError: the parameters are wrong, or a stage fails."""
        given = dict(parameters)
        actions = ("load_dataset", "create_reward", "train", "evaluate")
        action = one_of("action", str(given.pop("action", "")), actions)
        perform = getattr(self, action)
        signature = inspect.signature(perform)
        try:
            signature.bind(**given)
        except TypeError as error:
            raise errors.ConfigError(
                action, f"{error}.", f"Supported: {', '.join(signature.parameters)}."
            ) from error
        made: JsonObject = perform(**given)
        return made

    def load_dataset(
        self,
        format: str = "sft",
        split: str = "train",
        max_samples: int | None = 100,
        model_name: str = MODEL,
        dataset: str | None = None,
    ) -> JsonObject:
        """How many rows there are, the fields that a stage sees, and what is doubtful in them."""
        source = self._find(model_name, dataset, split, one_of("format", format, ("sft", "rl")))
        problems = read_numbered_problems(source, needs_answer=format == "rl", limit=max_samples)
        rows = [{"prompt": one.question, "ground_truth": one.answer} for _, one in problems]
        if format == "sft":
            shown = read_demonstrations(source, limit=max_samples)
            rows = [{"prompt": one.question, "completion": one.reply} for one in shown]
        found = {"dataset": str(source), "dataset_size": len(rows), "sample_keys": [*rows[0]]}
        doubts = doubts_line(check_rows(problems))
        return {"format": format, "split": split, **found, "sample": rows[0], "doubts": doubts}

    def create_reward(
        self,
        reward_type: str = "accuracy",
        max_length: int = 1024,
        penalty_weight: float = 0.001,
        step_bonus: float = 0.1,
    ) -> JsonObject:
        """Choose the reward of the trainings that follow."""
        one_of("reward_type", reward_type, ("accuracy", "length_penalty", "step"))
        own: JsonObject = {"step": {"step_bonus": step_bonus}}
        own["length_penalty"] = {"max_length": max_length, "penalty_weight": penalty_weight}
        self._reward = {"name": reward_type, **own.get(reward_type, {})}
        about = {"reward_type": reward_type, "description": KINDS[reward_type].about}
        return {**about, "verifier": self._reward}

    def train(
        self,
        algorithm: str,
        model_name: str = MODEL,
        output_dir: str = "./output",
        max_samples: int | None = None,
        num_epochs: int = 3,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        use_lora: bool = False,
        lora_r: int = 16,
        lora_alpha: int = 32,
        num_generations: int = 8,
        max_new_tokens: int = 512,
        dataset: str | Sequence[JsonMapping] | None = None,
        custom_reward: Callable[..., Any] | None = None,
    ) -> JsonObject:
        """Train as a new run; `output_dir` gets the adapter, or without `use_lora` all of it."""
        tuning = one_of("algorithm", algorithm, ("sft", "grpo")) == "sft"
        check_target(folder := Path(output_dir).expanduser())
        rate = {"learning_rate": learning_rate or (2e-5 if tuning else 1e-5)}
        loop = {"epochs": num_epochs, "batch_size": batch_size or (4 if tuning else 2)}
        data = self._data(model_name, dataset, tuning, max_samples)
        run = self._policy(model_name, max_new_tokens) | {"verifier": self._reward}
        run["exp_id"] = "".join(c if c.isalnum() else "-" for c in folder.resolve().name)
        run["grpo"] = {"lora": {"rank": lora_r, "alpha": lora_alpha}}
        if custom_reward is not None:
            file, _, name = place_of(custom_reward).rpartition(":")
            run["verifier"] = {"file": file, "function": name}
        if tuning:
            run["sft"] = {"data": data, **rate, **loop}
        else:
            run["data"] = {"practice": data, "truncate": max_samples}
            run["grpo"] |= rate
            sampled = {"group_size": num_generations, "temperature": 1.0}
            run["practice"] = {"algorithm": "grpo", **sampled, **loop}
        plan, made = self._carry_out(run, tuning)
        export: Kind = "adapter" if use_lora else "merged"
        prepare_export(self._workspace, made.run, folder, export, step=None, best=False).write()
        named = {"algorithm": algorithm, "model_name": model_name, "output_dir": output_dir}
        facts = {"num_samples": len(plan.problems[:max_samples]), "num_epochs": num_epochs}
        ran = {"use_lora": use_lora, "run": made.run, "exit_code": made.exit_code}
        return {**named, **facts, **ran}

    def evaluate(
        self,
        model_path: str,
        max_samples: int | None = 100,
        use_lora: bool = False,
        dataset: str | None = None,
        max_new_tokens: int = 512,
    ) -> JsonObject:
        """Accuracy on the test split; whether `model_path` is an adapter shows by itself."""
        source = self._find(model_path, dataset, "test", "rl")
        run = self._policy(model_path, max_new_tokens) | {"exp_id": "hello"}
        run["evaluation"] = {"data": [str(source)], "limit": max_samples}
        found = practise.evaluate(run, workspace=self._workspace.path, tell=self._say)
        (rate,) = found.after.values()
        mean, interval = rate.mean, rate.interval and [rate.interval.low, rate.interval.high]
        shown = ("unknown",) * 2 if mean is None else (f"{mean:.2%}", f"{mean:.4f}")
        facts = {"num_samples": rate.n, "interval": interval, "exit_code": found.exit_code}
        named = dict(zip(("accuracy", "average_reward"), shown, strict=True))
        return {"model_path": model_path, **facts, **named}

    def _carry_out(self, run: JsonObject, tuning: bool) -> tuple[RunPlan, practise.Result]:
        source = Source((), practise.find_or_write(run, self._workspace))
        asked = RunRequest(workspace=self._workspace, source=source, restart_step="0")
        plan = load_plan(tuning_request(asked, asked.load(), "sft") if tuning else asked, self._say)
        return plan, practise.run_in_thread(practise.carry_out(plan, self._say))

    def _policy(self, model: str, max_tokens: int) -> JsonObject:
        """The model in a run file: a folder may hold an adapter, whose base is then the model."""
        folder = Path(model).expanduser().resolve()
        named: JsonObject = {"model": tuner.policy_name(model, "hf"), "max_tokens": max_tokens}
        if (config := folder / "adapter_config.json").is_file():
            base = json.loads(config.read_bytes())["base_model_name_or_path"]
            named |= {"model": f"hf:{base}", "adapter": str(folder)}
        return {"policy": named, "agent": {"instructions": ""} if _is_tiny(model) else {}}

    def _find(self, model: str, dataset: str | None, split: str, format: str) -> DataSource:
        name, wanted = dataset or "gsm8k", one_of("split", split, ("train", "test"))
        if dataset is None and _is_tiny(model):
            name = TINY.get(f"{format} {split}", "skills-heldout")
        found = find_data(name, self._workspace)
        return found if found.split is None else replace(found, split=wanted)

    def _data(self, model: str, dataset: Any, tuning: bool, max_samples: int | None) -> str:
        """The data of a training as a run file names it, with rows that were given written down."""
        rows = dataset
        if dataset is None or isinstance(dataset, str):
            source = self._find(model, dataset, "train", "sft" if tuning else "rl")
            if not tuning or max_samples is None:
                return str(source)
            rows = map(demonstration_row, read_demonstrations(source, limit=max_samples))
        text = b"".join(codec.dumps(dict(row)) + b"\n" for row in [*rows][:max_samples])
        path = self._workspace.datasets / f"hello-{codec.digest_bytes(text, 4)}.jsonl"
        make_folder(path.parent)
        write_atomic(path, text)
        return str(path)


def _is_tiny(model: str) -> bool:
    """Whether it is the bundled model, or was made from it."""
    tokenizer = Path(model).expanduser() / "tokenizer.json"
    bundled = bundled_folder() / "tiny" / "tokenizer.json"
    return model in ("tiny", "hf:tiny") or (tokenizer.is_file() and cmp(tokenizer, bundled))


def run_pipeline(file: Path, workspace: practise.Folder = None) -> JsonObject:
    """Data, fine-tuning, GRPO from what that made, both evaluated; what is done is not repeated.

    Raises StudioError: the file cannot be used, or a stage fails.
    """
    try:
        config = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise errors.ConfigError(
            str(file), f"it cannot be read as JSON ({error}).", "Mend it."
        ) from error
    for name in config:
        one_of(str(file), name, ("model", "sft", "grpo", "eval", "output_dir"))
    model, sft, grpo = (config.get(name, {}) for name in ("model", "sft", "grpo"))
    for name in model:
        one_of(f"{file}: model", name, ["base_model"])
    folder, base = Path(config.get("output_dir", "output")), model.get("base_model", MODEL)
    first = {"model_name": base, "output_dir": str(folder / "sft"), "use_lora": True, **sft}
    then = {"model_name": first["output_dir"], "output_dir": str(folder / "grpo"), **grpo}
    look = {name: sft[name] for name in ("max_samples", "dataset") if name in sft}
    measure = {"action": "evaluate", **config.get("eval", {})}
    stages = {
        "data": {"action": "load_dataset", "model_name": base, **look},
        "sft": {"action": "train", "algorithm": "sft", **first},
        "sft_eval": {"model_path": first["output_dir"], **measure},
        "grpo": {"action": "train", "algorithm": "grpo", **then},
        "grpo_eval": {"model_path": then["output_dir"], **measure},
    }
    kept, tool = folder / "results.json", RLTrainingTool(workspace)
    results: JsonObject = json.loads(kept.read_bytes()) if kept.is_file() else {}
    for name, asked in stages.items():
        stage = name.removesuffix("_eval")
        if stage != "data" and stage not in config:
            continue
        if results.get(name, {}).get("asked") != asked:
            to_stderr(f"stage {name}")
            results[name] = {"asked": asked, **tool.reply_to(asked)}
            make_folder(folder)
            write_atomic(kept, codec.dumps(results))
    return results
