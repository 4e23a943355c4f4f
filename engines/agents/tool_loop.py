"""An agent that calls tools until it answers."""

import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

from engines.agents.open import AgentNeeds
from engines.agents.single_turn import ended_attempt, first_messages, unusable_reason
from engines.core.errors import CallFailed
from engines.core.protocols import OnText, Toolbox, ToolTry, TryPolicy
from engines.core.text.tool_text import call_mark, model_text, result_mark
from engines.core.types import (
    NO_USAGE,
    Attempt,
    Job,
    Message,
    Sampling,
    ToolCall,
    ToolResult,
    is_cut,
)

MAX_CALLS = 16
"""Of one reply: what calls more is stuck, and further ones are refused."""


@dataclass(frozen=True, slots=True)
class ToolLoop:
    """Asks, runs what the reply calls, and asks again, at most `max_turns` times.

    A reply that calls nothing ends the try: its text is the answer. So does one that was cut, since
    half a call is another call. Where the turns are used up by calls, or the conversation outgrows
    its context, the try is truncated and has no answer: text beside a call is none. A tool that is
    gone fails the try: that is no fault of the model's.
    """

    instructions: str
    sampling: Sampling
    toolbox: Toolbox
    max_turns: int = 8

    async def attempt(self, job: Job, policy: TryPolicy, on_text: OnText | None = None) -> Attempt:
        messages = first_messages(self.instructions, job)
        specs, show = self.toolbox.specs, on_text or (lambda _: None)
        sampling = replace(self.sampling, tools=tuple(spec.function for spec in specs))
        usage, began = NO_USAGE, time.monotonic()
        async with AsyncExitStack() as stack:
            within = ToolTry(job, policy.ask, stack)
            for turn in range(self.max_turns):
                try:
                    reply = await policy.complete(messages, sampling, on_text)
                except CallFailed as failed:
                    if failed.kind != "context" or turn == 0:  # nothing was tried yet
                        raise
                    break
                usage += reply.usage
                messages = (*messages, reply.as_message())
                # Of a reply that a filter or the server ended nothing is run.
                broken = unusable_reason(replace(reply, text=reply.text or "-"))
                if broken or not reply.tool_calls:
                    return ended_attempt(messages, reply, usage, began)
                if is_cut(reply.finish):  # before all it calls had come
                    break
                run = show_calls(self.toolbox, within, show)
                results = await policy.run_tools(
                    reply.tool_calls, run, specs, within.earlier.append
                )
                for call, result in zip(reply.tool_calls, results, strict=True):
                    usage += result.usage
                    messages = (*messages, Message("tool", result.text, tool_call_id=call.id))
        elapsed_s = round(time.monotonic() - began, 4)
        return Attempt(messages, "", "truncated", usage, elapsed_s)


def open_agent(needs: AgentNeeds) -> ToolLoop:
    settings, toolbox = needs.settings, needs.toolbox
    assert toolbox is not None
    return ToolLoop(settings.instructions, needs.sampling, toolbox, settings.max_turns)


def show_calls(
    toolbox: Toolbox, within: ToolTry, show: OnText
) -> Callable[[ToolCall], Awaitable[ToolResult]]:
    """Runs calls of one reply, telling the screen of each and of what it came to."""
    made = 0

    async def run(call: ToolCall) -> ToolResult:
        nonlocal made
        made += 1
        show(call_mark(call))
        if made > MAX_CALLS:
            text = f"one reply may make {MAX_CALLS} calls; make the rest in the next one."
            result = ToolResult(text, "refused")
        else:
            result = await toolbox.call(call, within)
        if result.status == "unavailable":
            raise CallFailed("tool", f"{call.name}: {result.text}", result.usage)
        show(result_mark(call, result))
        # The record and all who read it know of a failure by the word before it.
        return replace(result, text=model_text(result.status, result.text))

    return run
