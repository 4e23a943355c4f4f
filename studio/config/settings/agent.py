"""Settings of the agent that tries the problems."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from engines.agents.open import KINDS
from engines.core.settings import MAX_COUNT
from engines.core.text.prompts import load_prompt
from engines.core.tools import Network
from studio.config.settings.base import Int, Name, Settings, as_list, as_model, key, refusal
from studio.config.settings.policy import PolicyConfig
from studio.config.settings.team import TeamConfig
from studio.config.settings.tool import SHIPPED_TOOLS, Texts, ToolConfig

DEFAULT_INSTRUCTIONS = load_prompt("studio.config", "instructions").render()


class MountedExperience(Settings):
    """One experience that an enhanced agent brings along."""

    id: Name = Field(description="stable id of the experience, such as E17")
    text: str = Field(min_length=1, description="what is put in front of the prompt")
    pinned: bool = Field(default=False, description="whether nothing may change or delete it")


_OWN = ("OPENAI_", "ANTHROPIC_", "STUDIO_", "HOME", "TMPDIR")
"""What the names of variables begin with that only a program's gateway and folder decide."""
if TYPE_CHECKING:
    KindName = str
else:
    KindName = Literal[tuple(KINDS)]


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
    kind: KindName = key(
        "single_turn",
        "how it answers: in one reply, in several that may ask for a calculation or call tools, as "
        "a team, or as a program or function of one's own; follows from team, tools, command or "
        "function",
        examples=["calculator"],
    )
    max_turns: Int = key(
        2,
        "replies of a try at most, where an agent gives several, or steps of a team; "
        f"{KINDS['tools'].max_turns} with tools, {KINDS['team'].max_turns} in a team",
        ge=1,
        le=MAX_COUNT,
    )
    tools: Annotated[tuple[ToolConfig, ...], BeforeValidator(as_list)] = key(
        (),
        f"what an agent of kind tools may call: {', '.join(SHIPPED_TOOLS)}, FILE.py:FUNCTION, or "
        "an MCP server",
        examples=["[python]"],
    )
    team: TeamConfig | None = key(
        None, "who plays which part in a team that plans, commands, verifies and answers"
    )
    tool_protocol: Literal["auto", "native", "text"] = key(
        "auto",
        "how tools are called: by the endpoint's own calls, or in fenced blocks of text; auto: "
        "native where the model is asked over a network",
    )
    context_tokens: Int | None = key(
        24_000,
        "tokens of a conversation with tools at most, the oldest results left out first; null: "
        "no limit",
        ge=256,
    )
    sandbox: Literal["required", "resource-limits-only"] = key(
        "required",
        "what contains programs: required stops a run where a machine has no sandbox; "
        "resource-limits-only accepts limits on time and memory alone",
    )
    command: Texts = key(
        (),
        "program and arguments that try a problem, such as [python, my_agent.py]",
        examples=["'[python, my_agent.py]'"],
    )
    function: str | None = key(
        None,
        "function that tries a problem, FILE.py:NAME or MODULE:NAME: async (problem, model), or "
        "a workflow, async (task, model) or (task, system_prompt)",
        pattern=r".:\w+$",
        examples=["my_agent.py:solve"],
    )
    problem_as: Literal["stdin", "argument", "file"] = key(
        "stdin", "how a program gets the question"
    )
    answer_from: str = key(
        "last_line",
        "where a program's answer is: last_line or stdout of its output, or file:NAME",
        pattern=r"^(last_line|stdout|file:[^/]+)$",
        examples=["file:answer.txt"],
    )
    pass_env: Texts = key(
        (), "environment variables that a program gets; it gets no others", examples=["[LANG]"]
    )
    readable: Texts = key(
        (), "files and folders that a program may read beside its own file", examples=["[my_data]"]
    )
    network: Network = key(
        "none", "what a program may reach beside its model: none, allowlist or public"
    )
    allow_hosts: Texts = key(
        (), "hosts that network: allowlist lets a program reach", examples=["[example.com]"]
    )
    models: dict[str, Annotated[PolicyConfig, BeforeValidator(as_model)]] = key(
        {},
        "models that a workflow may ask by name, never trained",
        examples=["'{critic: openai:gpt-4o-mini}'"],
    )
    model: PolicyConfig | None = key(
        None,
        "model that the agent comes with, with settings as policy has; the policy where the run "
        "file sets none",
        examples=["openai:gpt-4o-mini"],
    )

    @model_validator(mode="before")
    @classmethod
    def _infer_kind(cls, given: object) -> object:
        if not isinstance(given, dict):
            return given
        unset: tuple[object, ...] = (None, "", (), [])
        kinds = [kind for kind, row in KINDS.items() if row.key and given.get(row.key) not in unset]
        made: dict[str, Any] = {"kind": kinds[0], **given} if kinds else dict(given)
        if made.get("kind") == "team" and made.get("team") is None:
            made["team"] = {}
        if row := KINDS.get(made.get("kind", "single_turn")):
            made.setdefault("max_turns", row.max_turns)
        if made.get("allow_hosts"):
            made.setdefault("network", "allowlist")
        return made

    @model_validator(mode="after")
    def _validate_kind(self) -> AgentConfig:
        if self.kind == "team" and not self.tools:
            move = "Set agent.tools, for example to [my_tools.py:look_up]."
            raise refusal("tools", "a team has nothing to find anything out with", move)
        for kind, row in KINDS.items():
            kinds = (kind, "team") if kind == "tools" else (kind,)
            if row.key and bool(getattr(self, row.key)) != (self.kind in kinds):
                cause = "agent.kind and the key that says what it runs do not fit each other"
                move = f"Set agent.kind={kind} and agent.{row.key}, or neither."
                raise refusal(row.key, cause, move)
        if not all(re.fullmatch(r"[\w.*-]+(:\d+)?", host) for host in self.allow_hosts):
            move = "Write example.com, *.example.com or 10.0.0.5:8000."
            raise refusal("allow_hosts", "an entry is no host", move)
        if taken := [name for name in self.pass_env if name.upper().startswith(_OWN)]:
            move = f"Take {', '.join(taken)} out."
            raise refusal("pass_env", "a try sets such variables itself", move)
        if self.models and self.kind != "function":
            raise refusal("models", "only a function asks models by name", "Set agent.function.")
        if (self.network == "allowlist") != bool(self.allow_hosts):
            cause = "network: allowlist and allow_hosts go together"
            raise refusal("allow_hosts", cause, "Set both, or neither.")
        return self

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
