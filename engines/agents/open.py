"""The kinds of agents that a run file can name: one table, from which each is opened.

A kind is loaded when it is opened: every command reads the table, and few need an agent.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from engines.core import protocols
from engines.core.frozen import frozen
from engines.core.types import Sampling, Tell


@frozen
class AgentKind:
    """Where a kind is, and what a run file says of it."""

    opener: str  # MODULE:FUNCTION that makes one of `AgentNeeds`
    key: str = ""  # which says what it acts with; no other kind has it
    max_turns: int = 2  # where a run file does not say otherwise


KINDS: Mapping[str, AgentKind] = {
    "single_turn": AgentKind("engines.agents.loops:open_single_turn"),
    "calculator": AgentKind("engines.agents.loops:open_calculator"),
    "team": AgentKind("engines.agents.team:open_team", key="team", max_turns=5),
    "tools": AgentKind("engines.agents.loops:open_tool_loop", key="tools", max_turns=8),
    "command": AgentKind("engines.agents.command:open_command", key="command"),
    "function": AgentKind("engines.agents.function:open_function", key="function"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentNeeds:
    """All that an agent of any kind is opened with.

    `settings` is the section `agent` of a run file: each kind reads the keys that it needs.
    """

    settings: Any
    sampling: Sampling
    toolbox: protocols.Toolbox | None = None
    members: Mapping[Any, Any] = field(default_factory=dict)  # of a team, but the planner
    models: Mapping[str, tuple[protocols.Policy, Sampling]] = field(
        default_factory=dict
    )  # asked by name
    runner: Any = None  # a `ProgramRunner`
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    seed: int = 0  # of the run
    folder: Path | None = None  # where programs work, see `CommandAgent`
    tell: Tell = lambda _: None


def open_agent(kind: str, needs: AgentNeeds) -> protocols.Agent:
    """Make an agent of one of `KINDS`."""
    module, _, function = KINDS[kind].opener.partition(":")
    agent: protocols.Agent = getattr(import_module(module), function)(needs)
    return agent
