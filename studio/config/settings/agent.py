"""Settings of the agent that tries the problems."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from engines.core.settings import MAX_COUNT
from engines.core.text.prompts import load_prompt
from studio.config.settings.base import Int, Name, Settings, key
from studio.config.settings.policy import PolicyConfig

DEFAULT_INSTRUCTIONS = load_prompt("studio.config", "instructions").render()


class MountedExperience(Settings):
    """One experience that an enhanced agent brings along."""

    id: Name = Field(description="its stable id, such as E17")
    text: str = Field(min_length=1, description="what is put in front of the prompt")
    pinned: bool = Field(default=False, description="whether nothing may change or delete it")


class AgentConfig(Settings):
    """Who tries the problems; mountable as a file of its own."""

    name: str = key("solver", "of the agent, for people")
    instructions: str = key(DEFAULT_INSTRUCTIONS, "its system prompt")
    experiences: tuple[MountedExperience, ...] = key(
        (), "of an enhanced agent; the library that a run starts from"
    )
    kind: Literal["single_turn", "calculator"] = key(
        "single_turn", "one reply, or replies that may ask for a calculation"
    )
    max_turns: Int = key(2, "replies at most, where there is more than one", ge=1, le=MAX_COUNT)
    model: PolicyConfig | None = key(
        None, "the model the agent comes with; used where the run file sets no policy"
    )

    @field_validator("experiences")
    @classmethod
    def _validate_unique(
        cls, value: tuple[MountedExperience, ...]
    ) -> tuple[MountedExperience, ...]:
        for what in ("id", "text"):
            seen = [getattr(experience, what) for experience in value]
            if twice := [one for one in seen if seen.count(one) > 1]:
                raise ValueError(f'the {what} "{twice[0][:60]}" stands there twice')
        return value
