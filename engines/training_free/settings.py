"""What a run file can say about how lessons are drawn, and when one is flagged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from engines.core.settings import derived, setting
from engines.core.types import Sampling


@dataclass(frozen=True, slots=True)
class TrainingFreeSettings:
    """Settings of the training-free engine.

    `given_ground_truth` False hides truth and rewards and keeps every group. `replies` is how
    the reflector replies.
    """

    agent_objective: str
    learning_objective: str
    experiences_per_query: int = setting(1, "lessons that one group may propose", ge=1)
    given_ground_truth: bool = setting(
        True, "whether the reflector sees answers and rewards; false hides them"
    )
    summarise: Literal["auto", "always", "never"] = setting(
        "auto", "whether rollouts are summarised before they are compared; auto: only long ones"
    )
    summarise_above_chars: int = setting(
        2000, "characters from which summarise: auto calls a rollout long", ge=1
    )
    proposals_per_call: int = setting(
        8, "proposals that one call consolidates; more are merged first", ge=2, le=100
    )
    operations_per_call: int = setting(
        200, "operations that one reply may hold; more are refused", ge=1, le=10_000
    )
    library_limit: int | None = setting(
        50, "experiences in the library at most; null: no limit", ge=1
    )
    replies: Sampling = derived(Sampling())


@dataclass(frozen=True, slots=True)
class LintSettings:
    """When a flag is raised. `duplicate_at` holds for texts and for their embeddings."""

    duplicate_at: float = setting(0.8, "similarity from which two texts say the same", gt=0, le=1)
    leak_words: int = setting(8, "words in a row that give a question away", ge=3)
    max_words: int = setting(60, "words of an experience before it is too long", ge=1)
