"""From the kind of agent that a run file names to the agent."""

from __future__ import annotations

from engines.agents.calculator import CalculatorLoop
from engines.agents.single_turn import SingleTurn
from engines.core.errors import ConfigError, did_you_mean
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
    cause = f'there is no agent of the kind "{kind}".'
    move = f"{did_you_mean(kind, KINDS)}Known: {', '.join(KINDS)}."
    raise ConfigError("agent.kind", cause, move)
