"""Tools as the loop knows them: what one offers, what a call came to, what it knows of its try."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from engines.core.errors import StudioError
from engines.core.protocols import Policy
from engines.core.types import NO_USAGE, Completion, Job, Message, Sampling, ToolCall, Usage

Network = Literal["none", "allowlist", "public"]
"""What a tool or a program may reach: nothing, named hosts, or anything."""

ToolStatus = Literal["ok", "error", "timeout", "refused", "interrupted"]
"""How a call ended. "error": it ran and failed; "refused": nothing ran, because there is no such
tool or the arguments do not fit; "interrupted": the studio ended while it ran, and it is not made
again, since it may have had an effect."""

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

    @property
    def function(self) -> Mapping[str, Any]:
        """As `Sampling.tools` offers it to a model."""
        return {
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
        }


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a call came to. `text` is what the model is shown; of long outputs a part."""

    text: str
    status: ToolStatus = "ok"
    usage: Usage = NO_USAGE  # of models that the tool asked


AskModel = Callable[[Policy, Sequence[Message], Sampling], Awaitable[Completion]]


@dataclass(slots=True)
class ToolTry:
    """The try in which tools are called: what they may know of it, and keep until its end.

    `kept` is a tool's own state, by its name; `stack` closes it when the try ends. `earlier` are
    the calls whose results were taken from the record of a process that was killed, in order: a
    tool with state makes them good before the next one.
    """

    job: Job
    ask: AskModel  # recorded and paid like every call of the try
    stack: AsyncExitStack
    kept: dict[str, Any] = field(default_factory=dict)
    earlier: list[ToolCall] = field(default_factory=list)


class Tool(Protocol):
    """Something that a model may call."""

    @property
    def spec(self) -> ToolSpec: ...

    async def check(self) -> None:
        """Return when it works, before anything is spent; raises ToolError."""

    async def call(self, arguments: Mapping[str, Any], within: ToolTry) -> ToolResult:
        """Run once. `arguments` fit `spec.parameters`.

        What goes wrong because of the arguments is a result of status "error"; an exception is
        made one by the toolbox.
        """

    async def aclose(self) -> None: ...


class Toolbox(Protocol):
    """The tools of one agent."""

    @property
    def specs(self) -> tuple[ToolSpec, ...]: ...

    async def check(self) -> None:
        """Test each tool itself; raises ToolError, naming the tool."""

    async def call(self, call: ToolCall, within: ToolTry) -> ToolResult:
        """What a call comes to, whatever a model made of it; raises only when cancelled.

        Within the tool's time limit; each text of the result has at most `SHOWN_CHARS`.
        """

    async def aclose(self) -> None: ...


class TryPolicy(Policy, Protocol):
    """The policy as a try is given it: what it says and what its tools say is recorded."""

    async def run_tools(
        self,
        calls: Sequence[ToolCall],
        run: Callable[[ToolCall], Awaitable[ToolResult]],
        specs: Sequence[ToolSpec],
        on_restored: Callable[[ToolCall], None] | None = None,
    ) -> tuple[ToolResult, ...]:
        """The results of the calls of one reply, which run at the same time, in their order.

        A result that is in the record is taken from there, and `on_restored` is told. A call of a
        tool that is not repeatable and was under way when the studio ended is "interrupted".
        """

    async def ask(
        self, policy: Policy, messages: Sequence[Message], sampling: Sampling
    ) -> Completion:
        """Ask another model within this try; see `AskModel`."""
