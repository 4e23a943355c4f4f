"""How many tokens a text may be, where no endpoint has counted them."""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from engines.core.types import Message

BYTES_PER_TOKEN = 4
"""The usual rule of thumb for English; there is no tokenizer to ask."""


def text_tokens(text: str) -> int:
    """A token for 4 UTF-8 bytes, rounded up."""
    return -(-len(text.encode("utf-8", "replace")) // BYTES_PER_TOKEN)


def prompt_tokens(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> int:
    """Of a request: what is sent of its messages, and the schemas of its tools."""
    calls = [call for message in messages for call in message.tool_calls]
    return (
        sum(text_tokens(message.content) for message in messages)
        + sum(text_tokens(call.name + call.arguments) for call in calls)
        + sum(-(-len(orjson.dumps(tool, default=str)) // BYTES_PER_TOKEN) for tool in tools)
    )
