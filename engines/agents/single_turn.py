"""The simplest agent: one system prompt, one question, one reply."""

import time
from dataclasses import dataclass

from engines.agents.open import AgentNeeds
from engines.core.protocols import OnText, Policy
from engines.core.types import (
    Attempt,
    Completion,
    Job,
    Message,
    Sampling,
    Usage,
    is_cut,
    meaning_of,
)


@dataclass(frozen=True, slots=True)
class SingleTurn:
    """Asks once. `instructions` come first, the guidance after them."""

    instructions: str
    sampling: Sampling

    async def attempt(self, job: Job, policy: Policy, on_text: OnText | None = None) -> Attempt:
        messages = first_messages(self.instructions, job)
        began = time.monotonic()
        reply = await policy.complete(messages, self.sampling, on_text)
        return ended_attempt((*messages, reply.as_message()), reply, reply.usage, began)


def open_agent(needs: AgentNeeds) -> SingleTurn:
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
