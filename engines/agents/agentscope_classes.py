"""What functions for AgentScope 1.0 import for messages and metrics, where it is missing.

The fields and methods are those of its documentation; a metric class can be the verifier itself.
"""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from engines.core.codec import JsonMapping, JsonObject

_numbers = itertools.count(1)
BLOCKS = ("text", "thinking", "tool_use", "tool_result", "image", "audio", "video")
"""Types of content blocks: dicts whose `type` is one of these."""


def _now() -> str:
    return datetime.now().isoformat(" ", "milliseconds")


class _Block(JsonObject):
    kind = ""

    def __init__(self, **fields: Any) -> None:
        super().__init__(**{"type": self.kind, **fields})


BLOCK_CLASSES = tuple(
    type(f"{kind.title().replace('_', '')}Block", (_Block,), {"kind": kind}) for kind in BLOCKS
)
TextBlock = BLOCK_CLASSES[0]


class Msg:
    def __init__(
        self,
        name: str,
        content: Any,
        role: str = "user",
        metadata: JsonMapping | None = None,
        timestamp: str | None = None,
        invocation_id: str | None = None,
        **more: Any,
    ) -> None:
        self.name, self.content, self.role = name, content, role
        self.metadata, self.id = dict(metadata or {}), f"message-{next(_numbers)}"
        self.timestamp, self.invocation_id = timestamp or _now(), invocation_id
        vars(self).update(more)

    @classmethod
    def from_dict(cls, data: JsonMapping) -> "Msg":
        return cls(**data)

    def __repr__(self) -> str:
        return f"Msg(id={self.id!r}, name={self.name!r}, content={self.content!r})"

    def get_text_content(self, separator: str = "\n") -> str | None:
        if isinstance(self.content, str):
            return self.content
        texts = [block["text"] for block in self.content or () if block.get("type") == "text"]
        return separator.join(texts) if texts else None

    def get_content_blocks(self, block_type: str | Sequence[str] | None = None) -> list[Any]:
        blocks = self.content or []
        if isinstance(self.content, str):
            blocks = [TextBlock(text=self.content)]
        wanted = (block_type,) if isinstance(block_type, str) else block_type
        return [block for block in blocks if wanted is None or block.get("type") in wanted]

    def has_content_blocks(self, block_type: str | Sequence[str] | None = None) -> bool:
        return bool(self.get_content_blocks(block_type))

    def to_dict(self) -> JsonObject:
        names = ("id", "name", "role", "content", "metadata", "timestamp")
        return {name: getattr(self, name) for name in names}


class Answer(str, Msg):
    """What the agent answered: text that also answers as a message and as an output does."""

    def __init__(self, text: str) -> None:
        Msg.__init__(self, "agent", text, "assistant")
        self.response = self  # judges of `select_model` get the output of the workflow


def to_chat_messages(messages: Any) -> list[dict[str, str]]:
    """Messages of any of the frameworks' forms, as role and text."""
    if not isinstance(messages, list | tuple):
        messages = [messages]
    chat = []
    for message in messages:
        role, content = "user", message
        if isinstance(message, Mapping):
            role, content = message.get("role", "user"), message.get("content")
        elif not isinstance(message, str):
            role, content = getattr(message, "role", "user"), getattr(message, "content", "")
        if not isinstance(content, str):  # but blocks, of which the text counts
            texts = [block.get("text") for block in content or () if isinstance(block, Mapping)]
            content = "\n".join(text for text in texts if isinstance(text, str))
        chat.append({"role": str(role), "content": content})
    return chat


class MetricType(StrEnum):
    CATEGORY = "category"
    NUMERICAL = "numerical"


@dataclass
class MetricResult:
    """`result` is a number, or one of the metric's categories."""

    name: str
    result: str | float | int
    created_at: str = field(default_factory=_now)
    message: str | None = None
    metadata: JsonObject | None = None


@dataclass
class SolutionOutput:
    """`trajectory` are the tool calls and texts that led to `output`, as content blocks."""

    success: bool
    output: Any
    trajectory: list[Any]
    meta: JsonObject | None = None


class MetricBase(ABC):
    def __init__(
        self,
        name: str,
        metric_type: MetricType | str,
        description: str | None = None,
        categories: list[str] | None = None,
    ) -> None:
        if metric_type == MetricType.CATEGORY and categories is None:
            raise ValueError("a metric of categories needs categories")
        self.name, self.metric_type = name, metric_type
        self.description, self.categories = description, categories

    @abstractmethod
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """A `MetricResult`, or one to be awaited."""


@dataclass
class Task:
    """One sample of an evaluation, as metrics of a benchmark know it."""

    id: str
    input: Any
    ground_truth: Any
    metrics: list[MetricBase]
    tags: dict[str, str] | None = None
    metadata: JsonObject | None = None


METRIC_CLASSES = (MetricBase, MetricResult, MetricType, SolutionOutput, Task)
