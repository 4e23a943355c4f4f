"""Settings of practice: its data, its loop, what it trains, what is measured and by what.

A section holds the engine's own settings class, and besides it the keys that other parts read.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, field_validator, model_validator

from engines.core.settings import MAX_COUNT, MAX_ROWS, setting
from engines.core.text.prompts import load_prompt
from engines.core.types import Learns
from engines.grpo.settings import GRPOSettings, SFTSettings
from engines.policies.hf_local.settings import LoraSettings
from engines.training_free.settings import LintSettings, TrainingFreeSettings
from studio.config.settings.base import (
    Float,
    Int,
    Settings,
    as_list,
    as_model,
    as_section,
    key,
    refusal,
)
from studio.config.settings.policy import EmbeddingConfig


class EvaluationConfig(Settings):
    """How progress is measured."""

    do_eval: bool = key(False, "whether to evaluate while practising")
    strategy: Literal["epoch", "steps"] = key(
        "epoch", "when to evaluate: after each epoch, or after every_steps steps"
    )
    every_steps: Int = key(1, "steps between two evaluations, where strategy is steps", ge=1)
    data: Annotated[tuple[str, ...], BeforeValidator(as_list)] = key(
        (),
        "one or more data sets, held out from practice",
        examples=["[arithmetic-heldout,arithmetic-larger]"],
    )
    limit: Int | None = key(
        None, "use only the first so many problems of each set", ge=1, le=MAX_ROWS, examples=[100]
    )
    k: Int = key(1, "tries of each problem", ge=1, le=4_096)
    temperature: Float = key(0.0, "how much those tries vary", ge=0, le=10)
    concurrency: Int | None = key(
        None,
        "rollouts at a time; null: shares practice.concurrency",
        ge=1,
        le=MAX_COUNT,
        examples=[8],
    )

    @model_validator(mode="after")
    def _validate_data(self) -> "EvaluationConfig":
        if self.do_eval and not self.data:
            cause = "evaluation is on, but evaluation.data names no data set"
            raise refusal("do_eval", cause, "Set evaluation.data, or evaluation.do_eval=false.")
        return self


class VerifierConfig(Settings):
    """What scores the tries; every other key is the verifier's own setting.

    A plain text stands for {name: text}, a list for {name: weighted, of: list}, and
    {file: FILE} for {name: function, file: FILE}.
    """

    model_config = ConfigDict(extra="allow")

    name: str = key(
        "math",
        "math, text, judge, accuracy, length_penalty, step, format or choice; function with "
        "file: FILE; weighted with of: [...]",
        min_length=1,
        examples=["text"],
    )

    @property
    def settings(self) -> dict[str, Any]:
        return dict(self.model_extra or {})

    @property
    def spec(self) -> dict[str, Any]:
        return {"name": self.name, **self.settings}


ALGORITHMS = {
    "training_free": "training_free",
    "training_free_grpo": "training_free",
    "grpo": "grpo",
    "multi_step_grpo": "grpo",  # several turns are no algorithm of their own here
    "sft": "sft",
    "both": "both",
}
"""Every name an algorithm may be given → ours."""

Algorithm = Literal["training_free", "grpo", "sft", "both"]


def parse_algorithm(value: object) -> object:
    """Our name of an algorithm. Raises ValueError: it is none of the supported ones."""
    if not isinstance(value, str):
        return value
    if value.lower() not in ALGORITHMS:
        raise ValueError(f"{value} is not supported; there are {', '.join(ALGORITHMS)}")
    return ALGORITHMS[value.lower()]


class DataConfig(Settings):
    """The problems to practise on."""

    practice: str | None = key(
        None,
        "data set to practise on: a name or a path; null: it is only evaluated",
        min_length=1,
        examples=["arithmetic"],
    )
    fields: dict[str, str] = key(
        {},
        "names of the fields, where they are not question and answer",
        examples=["'{question: prompt, answer: solution}'"],
    )
    truncate: Int | None = key(
        None, "use only the first so many problems", ge=1, le=MAX_ROWS, examples=[100]
    )
    shuffle: bool = key(True, "whether every epoch has a new order; false: the file's")

    @field_validator("fields")
    @classmethod
    def _validate_fields(cls, value: dict[str, str]) -> dict[str, str]:
        if unknown := sorted(set(value) - {"question", "answer"}):
            raise ValueError(f'"{unknown[0]}" cannot be mapped, only question and answer')
        return value


# Not slotted: a class has one slotted base, and that is the engine's.
@dataclass(frozen=True)
class _Loop:
    algorithm: Annotated[Algorithm, BeforeValidator(parse_algorithm)] = setting(
        "training_free",
        "what is learned: training_free a library of experiences, grpo and sft weights, both a "
        "library in one step and weights with it in the prompt in the next ones",
    )
    weight_steps: int = setting(
        9, "of both: weight steps after each library step; the first is one", ge=1, le=MAX_COUNT
    )
    epochs: int = setting(5, "times that every problem is practised", ge=1, le=MAX_COUNT)
    batch_size: int = setting(32, "problems in one step", ge=1, le=MAX_ROWS)
    group_size: int = setting(3, "rollouts of each problem", ge=1, le=MAX_COUNT)
    sampling: Literal["uniform", "learnable"] = setting(
        "uniform",
        "learnable: fewer rollouts of problems that were right twice, more where all failed",
    )
    dropout: float = setting(
        0.0,
        "chance that a rollout goes without an experience, so that its worth shows for free",
        ge=0,
        le=0.5,
    )
    reflect_on_worsened: int = setting(
        0,
        "held-out problems an epoch that got worse, whose tries before and after go to the "
        "reflector; a quarter of the first held-out set is apart for it, in no figure",
        ge=0,
        le=MAX_COUNT,
    )
    concurrency: int = setting(
        64, "calls of models at a time; hf:… samples whole steps", ge=1, le=MAX_COUNT
    )
    temperature: float = setting(
        0.7, "how much rollouts of a problem vary", ge=0, le=10, examples=[1.0]
    )
    task_timeout_s: float = setting(3600.0, "seconds after which a rollout ends", gt=0)
    restart_step: int | None = setting(
        None,
        "null resumes the run, 0 starts a new one, N starts one that adopts the first N steps",
        ge=0,
        examples=[0],
    )


@dataclass(frozen=True, slots=True)
class PracticeConfig(TrainingFreeSettings, _Loop):
    """How it practises."""

    agent_objective: str = setting(
        load_prompt("studio.config", "agent_objective").render(),
        "what the agent is given and gives back, as the reflector is told",
        examples=["'Input is a contract and output is its risks.'"],
    )
    learning_objective: str = setting(
        load_prompt("studio.config", "learning_objective").render(),
        "what the lessons are for, as the reflector is told",
        examples=["'Find rules that prevent wrong units.'"],
    )

    @property
    def reflects(self) -> bool:
        """Whether lessons are drawn in words, in all steps or in some."""
        return self.library_steps(1) > 0

    def library_steps(self, steps: int) -> int:
        """How many of the first so many steps learn a library; of both a cycle begins with one."""
        cycle = {"training_free": 1, "both": self.weight_steps + 1}.get(self.algorithm)
        return -(-steps // cycle) if cycle else 0

    def learns(self, step: int) -> Learns:
        """What a step learns; "" in a run that learns the same in all."""
        if self.algorithm != "both":
            return ""
        return "library" if self.library_steps(step) > self.library_steps(step - 1) else "weights"


@dataclass(frozen=True, slots=True)
class LintConfig(LintSettings):
    """What is flagged in a proposed operation before it is reviewed."""

    embedding: Annotated[EmbeddingConfig | None, BeforeValidator(as_model)] = setting(
        None,
        "model that finds duplicates in other words; null: by wording only",
        examples=["rehearsal"],
    )


@dataclass(frozen=True, slots=True)
class GRPOConfig(GRPOSettings):
    """How weights are updated."""

    reject_kl_above: float | None = setting(
        None, "updates that lead to a larger KL are rejected; null: none are", gt=0, examples=[0.1]
    )
    reject_grad_norm_above: float | None = setting(
        None, "updates with a longer gradient are rejected; null: none are", gt=0, examples=[10.0]
    )
    checkpoint_steps: int | None = setting(
        None, "steps between two checkpoints; null: one each epoch", ge=1, examples=[20]
    )
    monitor: Literal["wandb", "mlflow", "swanlab"] | None = setting(
        None, "where curves are shown besides, by that library", examples=["wandb"]
    )
    lora: Annotated[LoraSettings, as_section(LoraSettings)] = LoraSettings()


@dataclass(frozen=True)
class _Demonstrations:
    data: str | None = setting(
        None,
        "demonstrations of the stage: a data set with a field solution, completion or "
        "messages, or run:RUN for its verified rollouts",
        min_length=1,
        examples=["run:arithmetic"],
    )


@dataclass(frozen=True, slots=True)
class SFTConfig(SFTSettings, _Demonstrations):
    """Supervised fine-tuning: stages of `studio train`, learnt and distilled without a library."""

    epochs: int = setting(2, "times that every demonstration is seen", ge=1, le=MAX_COUNT)
    batch_size: int = setting(16, "demonstrations in one step", ge=1, le=MAX_ROWS)
