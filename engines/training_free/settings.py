"""What a run file can say about how lessons are drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from engines.core.types import Sampling


@dataclass(frozen=True, slots=True)
class TrainingFreeSettings:
    """Settings of the training-free engine.

    `given_ground_truth` False hides truth and rewards and keeps every group.
    `summarise` "auto" summarises only attempts longer than `summarise_above_chars`.
    """

    agent_objective: str
    learning_objective: str
    experiences_per_query: int = 1
    given_ground_truth: bool = True
    summarise: Literal["auto", "always", "never"] = "auto"
    summarise_above_chars: int = 6000
    library_limit: int | None = 50
    sampling: Sampling = Sampling()  # noqa: RUF009 - frozen
