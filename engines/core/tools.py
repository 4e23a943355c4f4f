"""Tools as the loop knows them: what one offers, and what a call came to."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from engines.core.errors import StudioError
from engines.core.types import NO_USAGE, Usage

Network = Literal["none", "allowlist", "public"]
"""What a tool or a program may reach: nothing, named hosts, or anything."""

ToolStatus = Literal["ok", "error", "timeout", "refused", "interrupted", "unavailable"]
"""How a call ended. "error": it ran and failed; "refused": nothing ran, because there is no such
tool or the arguments do not fit; "interrupted": the studio ended while it ran, and it is not made
again, since it may have had an effect; "unavailable": the tool itself is gone, which says nothing
of who called it, and fails the try."""

_STATUSES: frozenset[str] = frozenset(get_args(ToolStatus))

NO_OUTPUT = "(no output)"
NOTHING_FOUND = "Nothing found"
"""What the result of a tool that looks things up begins with where there is nothing."""
SHOWN_CHARS = 2_000
"""Of each text in a tool's result, as a model is shown it."""


class ToolError(StudioError):
    """A tool that cannot work at all; found before a run begins."""


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """What a tool is called and takes.

    `description` tells the model its limits and best practice, too. `parameters` is the JSON schema
    of an object. One that is not `repeatable` has an effect: it is never run twice for one call.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    repeatable: bool = True
    network: Network = "none"
    tier: str = ""  # what contains it; "" where it runs in the studio's own process
    shown_chars: int = SHOWN_CHARS  # of a result

    @property
    def function(self) -> Mapping[str, Any]:
        """As `Sampling.tools` offers it to a model."""
        return {"name": self.name, "description": self.description, "parameters": self.parameters}


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a call came to. `text` is what the model is shown; of long outputs a part."""

    text: str
    status: ToolStatus = "ok"
    usage: Usage = NO_USAGE  # of models that the tool asked


def as_status(word: str) -> ToolStatus:
    if word not in _STATUSES:
        raise ValueError(f"{word!r} is no status of a tool call")
    return cast(ToolStatus, word)


def is_evidence(result: ToolResult) -> bool:
    """Whether a result tells anything that an answer can rest on."""
    said = result.text.strip()
    return result.status == "ok" and said != NO_OUTPUT and not said.startswith(NOTHING_FOUND)
