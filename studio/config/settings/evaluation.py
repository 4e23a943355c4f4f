"""Settings of what is measured and of what scores it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, model_validator

from engines.core.settings import MAX_COUNT, MAX_ROWS
from studio.config.settings.base import Float, Int, Settings, as_list, key, refusal


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
    def _validate_data(self) -> EvaluationConfig:
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
