"""Keeps a conversation with tools within its budget.

The rule: the oldest results are left out first, a note with their length in their place, until
three quarters of the budget are filled; those of the last turn stay. Which are left out follows
from the messages alone, so the whole conversation is what is recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from engines.core.errors import CallFailed
from engines.core.text.tokens import prompt_tokens, text_tokens
from engines.core.types import Message

_KEPT_SHARE = 0.75
"""Of the budget, once something is left out: a prompt that changes each turn is cached nowhere."""


def fit_context(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], budget: int
) -> tuple[Message, ...]:
    """The messages with old results left out, within `budget` tokens as they are estimated.

    Raises CallFailed of the kind "context": they do not fit without all old results either.
    """
    sizes = [prompt_tokens((message,)) for message in messages]
    if sum(sizes) <= budget - (offered := prompt_tokens((), tools)):
        return tuple(messages)
    made, left_out, filled = list(messages), 0, offered
    for end, message in enumerate(messages):
        filled += sizes[end]
        # As it stood when a reply was asked for: behind the results, before what was replied.
        if message.role != "tool" or (end + 1 < len(messages) and messages[end + 1].role == "tool"):
            continue
        last_turn = next(i for i in range(end, -1, -1) if messages[i].role != "tool")
        most = budget if filled <= budget else _KEPT_SHARE * budget
        while filled > most and left_out < last_turn:
            if messages[left_out].role == "tool":
                made[left_out] = _elide(messages[left_out])
                filled += text_tokens(made[left_out].content) - sizes[left_out]
            left_out += 1
    if filled > budget:
        text = f"the conversation needs about {filled:,} tokens, and may have {budget:,}"
        raise CallFailed("context", f"{text} (agent.context_tokens)")
    return tuple(made)


def _elide(result: Message) -> Message:
    note = f"(left out to save room: {len(result.content):,} characters of an older result)"
    return replace(result, content=note) if len(note) < len(result.content) else result
