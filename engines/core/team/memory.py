"""What a team knows so far: the steps of a try, read from its trajectory.

The rule where it outgrows its room: the results of the oldest steps are left out first, a note in
their place; then the last one is cut.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from engines.core.team.replies import NextStep, PlanForm, read_plan
from engines.core.text.prompts import quote
from engines.core.text.reply import ReplyProblem
from engines.core.text.tokens import text_tokens
from engines.core.text.tool_text import argument_text
from engines.core.types import Message

SHOWN_CHARS = 2_000
"""Of a sub-goal or a command; results are cut where the tool is called."""
UNREADABLE = "error: no command could be read from what the executor said"


@dataclass(frozen=True, slots=True)
class MemoryStep:
    """One step that was taken."""

    tool: str
    sub_goal: str
    command: str = ""
    result: str = UNREADABLE

    @property
    def text(self) -> str:
        parts = [f"Sub-goal: {self.sub_goal}", f"Command: {self.command or '(none)'}", "Result:"]
        return "\n".join((*parts, self.result))


def last_plan(
    messages: Sequence[Message], tools: Collection[str], form: PlanForm
) -> NextStep | None:
    """The step that the planner wants now, with the tool none where it wants no further one."""
    for message in reversed(messages):
        if message.role == "assistant" and message.speaker == "planner_main":
            with suppress(ReplyProblem):
                return read_plan(message.content, tools, form)
    return None


def read_steps(
    messages: Sequence[Message], tools: Collection[str], form: PlanForm
) -> tuple[MemoryStep, ...]:
    """The steps of a trajectory, those whose command could not be read included."""
    steps: list[MemoryStep] = []
    plan: NextStep | None = None
    again = False
    for message in messages:
        if message.role == "tool" and steps:
            steps[-1] = replace(steps[-1], result=message.content)
        elif message.role == "assistant" and message.speaker == "planner_main":
            plan, again = last_plan((message,), tools, form), False
        elif message.role == "assistant" and message.speaker == "executor" and plan:
            step = MemoryStep(plan.tool_name, plan.sub_goal[:SHOWN_CHARS])
            if message.tool_calls:
                call = message.tool_calls[0]
                said = argument_text(call.arguments)[:SHOWN_CHARS]
                step = replace(step, tool=call.name, command=said)
            steps[len(steps) - again :] = [step]  # what is asked for once more replaces what was
            again = True
    return tuple(steps)


def memory_block(steps: Sequence[MemoryStep], room: int) -> str:
    """The steps as a prompt quotes them, in at most `room` tokens as they are estimated."""
    shown = list(steps)
    at = 0
    while _size(shown) > room and at < len(shown) - 1:
        note = f"(left out to save room: {len(shown[at].result):,} characters)"
        shown[at] = replace(shown[at], result=note)
        at += 1
    if shown and (over := _size(shown) - room) > 0:
        kept = max(0, len(shown[-1].result) - 4 * over - 40)
        shown[-1] = replace(shown[-1], result=f"{shown[-1].result[:kept]}\n(cut to save room)")
    return _block(shown)


def memory_lines(steps: Sequence[MemoryStep]) -> str:
    """The steps a line each, as a small planner reads and writes them."""
    lines = (
        f"{step.tool}: {step.sub_goal} = {next(iter(step.result.splitlines()), '')}"
        for step in steps
    )
    return "\n".join(lines)


def _size(steps: Sequence[MemoryStep]) -> int:
    return text_tokens(_block(steps))


def _block(steps: Sequence[MemoryStep]) -> str:
    blocks = (f"### Step {n}: {step.tool}\n{quote(step.text)}" for n, step in enumerate(steps, 1))
    return "\n\n".join(blocks) or "(nothing yet)"
