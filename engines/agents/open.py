"""From the kind of agent that a run file names to the agent."""

from __future__ import annotations

from difflib import get_close_matches

from engines.agents.calculator import CalculatorLoop
from engines.agents.single_turn import SingleTurn
from engines.core.errors import ConfigError
from engines.core.protocols import Agent
from engines.core.types import Sampling

KINDS = ("single_turn", "calculator")


def open_agent(kind: str, instructions: str, sampling: Sampling, max_turns: int = 2) -> Agent:
    """Make an agent of one of `KINDS`; `instructions` stand in front of the library's guidance.

    `max_turns` are the replies of one try at most; a single turn has one, whatever stands here.
    """
    match kind:
        case "single_turn":
            return SingleTurn(instructions, sampling)
        case "calculator":
            return CalculatorLoop(instructions, sampling, max_turns)
    near = get_close_matches(kind, KINDS, n=1)
    move = f'Did you mean "{near[0]}"? ' if near else ""
    cause = f'there is no agent of the kind "{kind}".'
    raise ConfigError("agent.kind", cause, f"{move}Known: {', '.join(KINDS)}.")
