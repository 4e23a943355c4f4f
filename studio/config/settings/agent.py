"""Settings of the agent that tries the problems."""

from __future__ import annotations

from collections import Counter
from typing import Literal

from pydantic import Field, field_validator

from engines.core.settings import MAX_COUNT
from engines.core.text.prompts import load_prompt
from studio.config.settings.base import Int, Name, Settings, key
from studio.config.settings.policy import PolicyConfig

DEFAULT_INSTRUCTIONS = load_prompt("studio.config", "instructions").render()


class MountedExperience(Settings):
    """One experience that an enhanced agent brings along."""

    id: Name = Field(description="stable id of the experience, such as E17")
    text: str = Field(min_length=1, description="what is put in front of the prompt")
    pinned: bool = Field(default=False, description="whether nothing may change or delete it")


class AgentConfig(Settings):
    """Who tries the problems; mountable as a file of its own."""

    name: str = key("solver", "what the agent is called", examples=["careful"])
    instructions: str = key(
        DEFAULT_INSTRUCTIONS, "system prompt of the agent", examples=["'Show every step.'"]
    )
    experiences: tuple[MountedExperience, ...] = key(
        (),
        "what an enhanced agent has learned, each with id and text; a run starts from it",
        examples=["'[{id: E1, text: Check the units.}]'"],
    )
    cite: bool = key(
        True, "whether the agent is asked to name experiences that help, as [E3], in its reasoning"
    )
    kind: Literal["single_turn", "calculator"] = key(
        "single_turn", "how it answers: in one reply, or in several that may ask for a calculation"
    )
    max_turns: Int = key(
        2, "replies of a try at most, where an agent gives several", ge=1, le=MAX_COUNT
    )
    model: PolicyConfig | None = key(
        None, "model that the agent comes with; used where the run file sets no policy"
    )

    @field_validator("experiences")
    @classmethod
    def _validate_unique(
        cls, value: tuple[MountedExperience, ...]
    ) -> tuple[MountedExperience, ...]:
        for what in ("id", "text"):
            counts = Counter(getattr(experience, what) for experience in value)
            if twice := [one for one, n in counts.items() if n > 1]:
                raise ValueError(f'the {what} "{twice[0][:60]}" stands there twice')
        return value
