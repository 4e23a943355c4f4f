"""The simplest agent: one system prompt, one question, one reply.

Owns how instructions and the library's guidance are put together, which is what makes
a mounted `agent.yaml` and a library give the same prompt.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from engines.core.protocols import OnText, Policy
from engines.core.types import Attempt, Job, Message, Sampling


@dataclass(frozen=True, slots=True)
class SingleTurn:
    """Asks once. `instructions` come first, the guidance after them."""

    instructions: str
    sampling: Sampling

    async def attempt(self, job: Job, policy: Policy, on_text: OnText | None = None) -> Attempt:
        messages = prompt(self.instructions, job.guidance, job.problem.question)
        began = time.monotonic()
        reply = await policy.complete(messages, self.sampling, on_text)
        return Attempt(
            messages=(*messages, reply.as_message()),
            answer=reply.text,
            status="truncated" if reply.finish == "length" else "ok",
            usage=reply.usage,
            elapsed_s=round(time.monotonic() - began, 4),
        )


def prompt(instructions: str, guidance: str, question: str) -> tuple[Message, ...]:
    """The request of a first turn; the system message is left out when it would be empty."""
    system = "\n\n".join(part for part in (instructions.strip(), guidance) if part)
    user = Message("user", question)
    return (Message("system", system), user) if system else (user,)
