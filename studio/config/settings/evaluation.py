"""Settings of what is measured and of what scores it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from engines.core.settings import MAX_COUNT, MAX_ROWS
from studio.config.settings.base import Float, Int, Settings, as_list


class EvaluationConfig(Settings):
    """How progress is measured."""

    do_eval: bool = Field(default=False, description="evaluate while practising")
    strategy: Literal["epoch", "steps"] = Field(
        default="epoch", description="after each epoch or k steps"
    )
    every_steps: Int = Field(default=1, ge=1, description="k, where strategy is steps")
    data: Annotated[tuple[str, ...], BeforeValidator(as_list)] = Field(
        default=(), description="one or more data sets, held out from practice"
    )
    limit: Int | None = Field(
        default=None, ge=1, le=MAX_ROWS, description="use only the first so many of each"
    )
    k: Int = Field(default=1, ge=1, le=4_096, description="tries a problem")
    temperature: Float = Field(default=0.0, ge=0, le=10, description="of those tries")
    concurrency: Int | None = Field(
        default=None,
        ge=1,
        le=MAX_COUNT,
        description="rollouts at a time; null: shares practice.concurrency",
    )

    @model_validator(mode="after")
    def _validate_data(self) -> EvaluationConfig:
        if self.do_eval and not self.data:
            raise PydanticCustomError(
                "unmet",
                "evaluation is on, but evaluation.data names no data set",
                {"at": "do_eval", "move": "Set evaluation.data, or evaluation.do_eval=false."},
            )
        return self


class VerifierConfig(Settings):
    """What scores the tries; every other key is the verifier's own setting.

    A plain text stands for {name: text}, a list for {name: weighted, of: list}, and
    {file: FILE} for {name: function, file: FILE}.
    """

    model_config = ConfigDict(extra="allow")

    name: str = Field(
        default="math",
        min_length=1,
        description="math, text, judge, accuracy, length_penalty, step or format; function with "
        "file: FILE; weighted with of: [...]",
    )

    @property
    def settings(self) -> dict[str, Any]:
        return dict(self.model_extra or {})

    @property
    def spec(self) -> dict[str, Any]:
        return {"name": self.name, **self.settings}
