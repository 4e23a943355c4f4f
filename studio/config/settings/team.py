"""Settings of a team: who plays which part in a try."""

from __future__ import annotations

from typing import Literal

from studio.config.settings.base import Settings, key
from studio.config.settings.policy import PolicyConfig


class TeamConfig(Settings):
    """Models of a team's fixed roles. Who plans the next step is the policy itself."""

    planner_fixed: PolicyConfig | None = key(
        None, "model that analyses the question; null: the policy", examples=["openai:gpt-4o-mini"]
    )
    executor: PolicyConfig | None = key(
        None, "model that writes commands; null: the policy", examples=["openai:gpt-4o-mini"]
    )
    verifier: PolicyConfig | None = key(
        None,
        "model that says whether enough is known; null: the policy",
        examples=["openai:gpt-4o-mini"],
    )
    generator: PolicyConfig | None = key(
        None, "model that writes the answer; null: the policy", examples=["openai:gpt-4o-mini"]
    )
    plan_as: Literal["json", "lines"] = key(
        "json",
        "how the planner states a step: as a JSON object, or as a line `TOOL: SUB-GOAL`, which "
        "small models learn sooner",
    )
    ungrounded: Literal["label", "refuse"] = key(
        "label",
        "what becomes of an answer for which no tool gave anything: label it, or refuse it, so "
        "that the try ends without an answer",
    )
