"""Two turns and more: the model may ask a calculator before it answers.

A request is a whole line `calc: EXPRESSION`, and a try ends with the first reply that has
none: both are exact forms, never words somewhere in a text.
"""

import re
import time
from dataclasses import dataclass

from engines.agents.open import AgentNeeds
from engines.agents.single_turn import ended_attempt, first_messages, unusable_reason
from engines.core.errors import ConfigError
from engines.core.protocols import OnText, Policy
from engines.core.text.maths import ExpressionError, value_of
from engines.core.types import NO_USAGE, Attempt, Job, Message, Sampling, is_cut

MAX_TURNS = 100

# Blanks of one line only: `\s` would reach over lines.
_REQUEST = re.compile(r"^[ \t]*calc:(.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class CalculatorLoop:
    """Asks until a reply requests nothing, at most `max_turns` times.

    The answer is the last reply, whatever stands in it: one that still requests something
    when the turns are used up is judged as it is. A reply that was cut ends the try, since
    half an expression is another expression.
    """

    instructions: str
    sampling: Sampling
    max_turns: int = 2

    def __post_init__(self) -> None:
        if not 1 <= self.max_turns <= MAX_TURNS:
            cause = f"it is {self.max_turns}, not from 1 to {MAX_TURNS}."
            move = "Set it to 2, for one calculation and an answer."
            raise ConfigError("agent.max_turns", cause, move)

    async def attempt(self, job: Job, policy: Policy, on_text: OnText | None = None) -> Attempt:
        messages = first_messages(self.instructions, job)
        usage, began = NO_USAGE, time.monotonic()
        for turn in range(1, self.max_turns + 1):
            reply = await policy.complete(messages, self.sampling, on_text)
            usage += reply.usage
            messages = (*messages, reply.as_message())
            error, cut = unusable_reason(reply), is_cut(reply.finish)
            expression = None if error or cut else requested_expression(reply.text)
            if expression is None or turn == self.max_turns:
                break
            messages = (*messages, Message("user", result_line(expression)))
        return ended_attempt(messages, reply, usage, began)


def open_agent(needs: AgentNeeds) -> CalculatorLoop:
    settings = needs.settings
    return CalculatorLoop(settings.instructions, needs.sampling, settings.max_turns)


def requested_expression(reply: str) -> str | None:
    """The expression of the last line `calc: EXPRESSION` of a reply; None where there is none."""
    found = _REQUEST.findall(reply)
    return str(found[-1]).strip() if found else None


def result_line(expression: str) -> str:
    """What the model is told: `result: 42`, or `error: ` and what was wrong."""
    try:
        return f"result: {value_of(expression)}"
    except ExpressionError as error:
        return f"error: {error}"
