"""The agents that ask one model: once, with a calculator, or with tools until it answers."""

import re
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace

from engines.agents.open import AgentNeeds
from engines.core.errors import CallFailed
from engines.core.frozen import frozen
from engines.core.protocols import OnText, Policy, Toolbox, ToolTry, TryPolicy
from engines.core.text import maths, tool_text
from engines.core.types import (
    NO_USAGE,
    Attempt,
    Completion,
    Job,
    Message,
    Sampling,
    ToolCall,
    ToolResult,
    Usage,
    is_cut,
    meaning_of,
)


@frozen
class SingleTurn:
    """Asks once. `instructions` come first, the guidance after them."""

    instructions: str
    sampling: Sampling

    async def attempt(self, job: Job, policy: Policy, on_text: OnText | None = None) -> Attempt:
        messages = first_messages(self.instructions, job)
        began = time.monotonic()
        reply = await policy.complete(messages, self.sampling, on_text)
        return ended_attempt((*messages, reply.as_message()), reply, reply.usage, began)


def open_single_turn(needs: AgentNeeds) -> SingleTurn:
    return SingleTurn(needs.settings.instructions, needs.sampling)


def ended_attempt(
    messages: tuple[Message, ...], last: Completion, usage: Usage, began: float
) -> Attempt:
    """A try that its last reply ended; `began` is in the time of `time.monotonic`."""
    error = unusable_reason(last)
    return Attempt(
        messages=messages,
        answer=last.text if error is None else None,
        status="failed" if error else "truncated" if is_cut(last.finish) else "ok",
        usage=usage,
        elapsed_s=round(time.monotonic() - began, 4),
        error=error,
    )


def unusable_reason(reply: Completion) -> str | None:
    """Why a whole reply is no answer at all; None where it can be judged.

    A reply that a filter held back or a server broke off says nothing about the model's skill,
    and neither does silence: all are failed tries, not wrong answers. No agent here offers tools.
    """
    match meaning_of(reply.finish):
        case "filtered":
            return f"filtered: the endpoint held the reply back ({reply.finish})"
        case "broken":
            return f"broken off: the endpoint ended the reply with {reply.finish!r}"
    if reply.text.strip():
        return None
    if reply.tool_calls:
        names = ", ".join(dict.fromkeys(call.name for call in reply.tool_calls))
        return f"empty: it calls {names or 'a tool'}, which nobody offered, and has no text"
    what = "reasoning without an answer" if reply.reasoning.strip() else "no text"
    return f"empty: {what}{', cut at the length limit' if is_cut(reply.finish) else ''}"


def first_messages(instructions: str, job: Job) -> tuple[Message, ...]:
    """The request of a try's first turn."""
    question = Message("user", job.problem.question, images=job.problem.images)
    return (
        *system_messages(instructions, job.guidance),
        *job.problem.history,
        *job.history,
        question,
    )


def prompt_messages(instructions: str, guidance: str, question: str) -> tuple[Message, ...]:
    """The request of a first turn, the same for a library and for a mounted `agent.yaml`."""
    return (*system_messages(instructions, guidance), Message("user", question))


def system_messages(instructions: str, guidance: str) -> tuple[Message, ...]:
    """What stands in front of every request; nothing where both are empty."""
    system = "\n\n".join(part for part in (instructions.strip(), guidance) if part)
    return (Message("system", system),) if system else ()


# Blanks of one line only: `\s` would reach over lines.
_REQUEST = re.compile(r"^[ \t]*calc:(.*)$", re.MULTILINE)


@frozen
class CalculatorLoop:
    """Asks until a reply requests nothing, at most `max_turns` times.

    A request is a whole line `calc: EXPRESSION`, never words somewhere in a text.
    The answer is the last reply, whatever stands in it: one that still requests something
    when the turns are used up is judged as it is. A reply that was cut ends the try, since
    half an expression is another expression.
    """

    instructions: str
    sampling: Sampling
    max_turns: int = 2

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


def open_calculator(needs: AgentNeeds) -> CalculatorLoop:
    settings = needs.settings
    return CalculatorLoop(settings.instructions, needs.sampling, settings.max_turns)


def requested_expression(reply: str) -> str | None:
    """The expression of the last line `calc: EXPRESSION` of a reply; None where there is none."""
    found = _REQUEST.findall(reply)
    return str(found[-1]).strip() if found else None


def result_line(expression: str) -> str:
    """What the model is told: `result: 42`, or `error: ` and what was wrong."""
    try:
        return f"result: {maths.value_of(expression)}"
    except maths.ExpressionError as error:
        return f"error: {error}"


MAX_CALLS = 16
"""Of one reply: what calls more is stuck, and further ones are refused."""


@frozen
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


def open_tool_loop(needs: AgentNeeds) -> ToolLoop:
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
        show(tool_text.call_mark(call))
        if made > MAX_CALLS:
            text = f"one reply may make {MAX_CALLS} calls; make the rest in the next one."
            result = ToolResult(text, "refused")
        else:
            result = await toolbox.call(call, within)
        if result.status == "unavailable":
            raise CallFailed("tool", f"{call.name}: {result.text}", result.usage)
        show(tool_text.result_mark(call, result))
        # The record and all who read it know of a failure by the word before it.
        return replace(result, text=tool_text.model_text(result.status, result.text))

    return run
