"""The simplest agent: one system prompt, one question, one reply.

Owns how instructions and the library's guidance are put together, which is what makes
a mounted `agent.yaml` and a library give the same prompt.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from engines.core.protocols import OnText, Policy
from engines.core.types import Attempt, Completion, Job, Message, Sampling

FILTERED = ("content_filter", "safety")
"""Finish reasons of a reply that was held back, in part or whole."""


@dataclass(frozen=True, slots=True)
class SingleTurn:
    """Asks once. `instructions` come first, the guidance after them."""

    instructions: str
    sampling: Sampling

    async def attempt(self, job: Job, policy: Policy, on_text: OnText | None = None) -> Attempt:
        messages = prompt_messages(self.instructions, job.guidance, job.problem.question)
        began = time.monotonic()
        reply = await policy.complete(messages, self.sampling, on_text)
        error = unusable_reason(reply)
        cut = reply.finish == "length"
        return Attempt(
            messages=(*messages, reply.as_message()),
            answer=reply.text if error is None else None,
            status="failed" if error else "truncated" if cut else "ok",
            usage=reply.usage,
            elapsed_s=round(time.monotonic() - began, 4),
            error=error,
        )


def unusable_reason(reply: Completion) -> str | None:
    """Why a whole reply is no answer at all; None where it can be judged.

    A reply that a filter held back says nothing about the model's skill, and neither does
    silence: both are failed tries, not wrong answers.
    """
    if reply.finish in FILTERED:
        return f"filtered: the endpoint held the reply back ({reply.finish})"
    if reply.text.strip() or reply.tool_calls:
        return None
    what = "reasoning without an answer" if reply.reasoning.strip() else "no text"
    return f"empty: {what}{', cut at the length limit' if reply.finish == 'length' else ''}"


def prompt_messages(instructions: str, guidance: str, question: str) -> tuple[Message, ...]:
    """The request of a first turn; the system message is left out when it would be empty."""
    system = "\n\n".join(part for part in (instructions.strip(), guidance) if part)
    user = Message("user", question)
    return (Message("system", system), user) if system else (user,)
