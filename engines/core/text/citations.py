"""Which experiences a text cites, as `[E14]`.

A model that was not asked to cite may never do it: then there is nothing to find.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from engines.core.types import Message

_BRACKETS = re.compile(r"\[([A-Za-z][^\[\]\n]{0,120})\]")


def find_cited_ids(text: str) -> frozenset[str]:
    """What could be an id within brackets: both of `[E1, E3]`."""
    return frozenset(name.strip() for found in _BRACKETS.findall(text) for name in found.split(","))


def cited_experiences(messages: Iterable[Message], shown: Iterable[str]) -> tuple[str, ...]:
    """Those of the experiences shown that the agent itself cites, its reasoning included."""
    own = (message for message in messages if message.role == "assistant")
    found = frozenset().union(*(find_cited_ids(f"{m.content}\n{m.reasoning}") for m in own))
    return tuple(name for name in shown if name in found)
