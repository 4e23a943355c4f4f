"""A policy as an agent with tools asks it: calls typed and named, context within its budget."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from engines.core.protocols import OnText
from engines.core.types import Completion, Message, Sampling, ToolCall
from engines.policies.limits.wrapped import WrappedPolicy
from engines.policies.tool_use.context import fit_context
from engines.policies.tool_use.protocol import RESULTS, as_text, with_calls

Protocol = Literal["native", "text"]


@dataclass(frozen=True, slots=True)
class ToolUsePolicy(WrappedPolicy):
    """Speaks a model's form of tool calls below the record, which holds the typed conversation.

    `context_tokens` None: whatever the conversation comes to is sent.
    """

    protocol: Protocol = "native"
    context_tokens: int | None = None

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, on_text: OnText | None = None
    ) -> Completion:
        tools = sampling.tools
        if self.context_tokens is not None:
            messages = fit_context(messages, tools, self.context_tokens)
        if not tools or self.protocol == "native":
            reply = await self.inner.complete(messages, sampling, on_text)
        else:
            # Small models go on with a result of their own making.
            plain = replace(sampling, tools=(), stop=(*sampling.stop, f"\n{RESULTS}"))
            reply = await self.inner.complete(as_text(messages, tools), plain, on_text)
            reply = with_calls(reply, tools)
        if not reply.tool_calls:
            return reply
        taken = {call.id for message in messages for call in message.tool_calls}
        return replace(reply, tool_calls=tuple(_name_calls(reply.tool_calls, taken)))


def _name_calls(calls: Iterable[ToolCall], taken: set[str]) -> Iterable[ToolCall]:
    """Calls with ids of their own: some servers give none, or the same to all."""
    for call in calls:
        name, number = call.id, len(taken)
        while not name or name in taken:
            number += 1
            name = f"call-{number}"
        taken.add(name)
        yield call if name == call.id else replace(call, id=name)
