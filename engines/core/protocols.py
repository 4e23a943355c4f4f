"""What the parts of the loop expect of each other.

Every protocol has one contract suite in `tests/contract` that each implementation passes.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from engines.core.frozen import frozen
from engines.core.types import (
    NO_USAGE,
    Attempt,
    CallKey,
    Completion,
    Decision,
    Flag,
    Group,
    Job,
    Lesson,
    Message,
    Operation,
    Problem,
    RecordRef,
    Reflection,
    Rollout,
    Sampling,
    Tell,
    ToolCall,
    ToolResult,
    ToolSpec,
    Usage,
    Verdict,
    WeightUpdate,
)

if TYPE_CHECKING:
    from engines.core.library import Library

Earlier = Sequence[asyncio.Future["Group"]]
"""Groups before one in its batch, in their order, each once its rewards are known."""
OnText = Tell
"""Receives each new piece of a reply's visible text as it streams."""


class Policy(Protocol):
    """A model that answers. One that subclasses this need not say that it holds nothing."""

    @property
    def name(self) -> str:
        """The `scheme:model` it was opened with; part of every request hash."""

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, on_text: OnText | None = None
    ) -> Completion:
        """Answer once; raises CallFailed without a usable reply after retries or in time."""

    async def ping(self) -> None:
        """Return when the model answers; raises PolicyError, with endpoint and cause, else."""
        return

    async def aclose(self) -> None:
        return


class TryPolicy(Policy, Protocol):
    """The policy as a try is given it: what it says and what its tools say is recorded."""

    async def run_tools(
        self,
        calls: Sequence[ToolCall],
        run: Callable[[ToolCall], Awaitable[ToolResult]],
        specs: Sequence[ToolSpec] = (),
        on_restored: Callable[[ToolCall], None] = lambda _: None,
    ) -> tuple[ToolResult, ...]:
        """The results of the calls of one reply, which run at the same time, in their order.

        A result that is in the record is taken from there, and `on_restored` is told. A call of a
        tool that is not repeatable and was under way when the studio ended is "interrupted".
        """

    async def ask(
        self, policy: Policy, messages: Sequence[Message], sampling: Sampling
    ) -> Completion:
        """Ask another model within this try; see `AskModel`."""

    async def complete_as(
        self,
        policy: Policy,
        messages: Sequence[Message],
        sampling: Sampling,
        on_text: OnText | None = None,
    ) -> Completion:
        """Have another model take this turn: it is part of the trajectory, and never trained."""


class Reservation(Protocol):
    """The money for one try of a call, given back while the call waits to be tried again."""

    async def take(self) -> None:
        """Return once what a try may come to is reserved."""

    def settle(self, spent: Usage) -> None:
        """Give back what was not spent; `spent` is what all tries of the call have cost."""


class Ledger(Protocol):
    """Asks a policy, unless the same question of this run has been answered before."""

    async def ask(
        self,
        key: CallKey,
        policy: Policy,
        messages: Sequence[Message],
        sampling: Sampling,
        on_text: OnText | None = None,
        *,
        again: bool = False,
    ) -> tuple[Completion, RecordRef]:
        """Return the recorded reply for key and request, or ask, record, then return.

        With `again` the policy is asked beside the record too, for nothing but its company:
        one that decodes many tries at once rounds by who is among them.

        The seed of `sampling` is replaced by the one that follows from the key. The
        record is on disk when this returns. Raises what `Policy.complete` raises.
        """


class TryLedger(Ledger, Protocol):
    """The ledger as rollouts use it: what tools say is recorded, too."""

    async def run_tools(
        self,
        key: CallKey,
        calls: Sequence[ToolCall],
        run: Callable[[ToolCall], Awaitable[ToolResult]],
        specs: Sequence[ToolSpec] = (),
        on_restored: Callable[[ToolCall], None] = lambda _: None,
    ) -> list[tuple[ToolResult, RecordRef]]:
        """As `TryPolicy.run_tools`; `key` is that of the model's reply that made the calls."""


class Agent(Protocol):
    """Makes one try at a problem."""

    async def attempt(self, job: Job, policy: TryPolicy, on_text: OnText | None = None) -> Attempt:
        """Try. Raises what the policy raises; the rollout job makes that a fact."""


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

        Within the tool's time limit; a result, or each text of one in JSON, has at
        most `ToolSpec.shown_chars`.
        """

    async def aclose(self) -> None: ...


class Verifier(Protocol):
    """Scores attempts. One that subclasses this need not say that it loads or holds nothing."""

    async def check(self) -> None:
        """Return when it can be used at all, before anything is spent; raises VerifierError."""
        return

    async def verify(self, problem: Problem, rollouts: Sequence[Rollout]) -> Sequence[Verdict]:
        """Judge rollouts of one problem, aligned with them; never raises for an answer.

        What cannot be judged has reward None and an error; reward None without an error
        says that there was nothing to judge.
        """

    async def aclose(self) -> None:
        return


def judges_whole_groups(verifier: Verifier) -> bool:
    """Whether a verifier compares the tries of a problem, so that it needs all in one call.

    Known once its `check` has returned. One that has no `whole_groups` judges each by itself.
    """
    return bool(getattr(verifier, "whole_groups", False))


class Engine(Protocol):
    """Turns scored groups into a lesson. Reflecting and consolidating change nothing."""

    def plan(self, total_steps: int) -> None:
        """Go by a run of so many steps."""

    async def reflect(self, group: Group, library: "Library", earlier: Earlier = ()) -> Reflection:
        """Say what a group is worth, and what it teaches where that is known from it alone.

        What a step reads of one kind at most is shared out by place, hence `earlier`.
        """

    async def consolidate(
        self, batch: Sequence[Group], reflections: Sequence[Reflection], library: "Library"
    ) -> Lesson:
        """Batch and reflections are aligned and in sample order."""

    async def apply(self, update: WeightUpdate) -> int:
        """Make a computed update the current weights; returns the new policy version."""

    async def save(self, folder: Path) -> str:
        """Write everything from which `restore` goes on to the same numbers.

        Returns the digest of what was written; "" where the engine has no state of its own.
        """

    async def restore(self, folder: Path) -> None:
        """Go on from what `save` wrote.

        Raises StudioError: it is not there, damaged or of another model; nothing has changed.
        """


class Linter(Protocol):
    """Tells a reviewer what to look at in a proposed operation."""

    async def flags_of(
        self, operations: Sequence[Operation], library: "Library", others: Sequence[Operation] = ()
    ) -> tuple[tuple[Flag, ...], ...]:
        """What is noteworthy about each operation, with edits put in; the loop runs meanwhile.

        `library` is the draft they would be applied to, `others` are under review beside them. A
        new wording is not compared with the one it replaces, nor does this raise for one.
        """

    def take_usage(self) -> Usage:
        """What this has cost since it was last asked."""


@frozen
class EmbeddingResult:
    """Vectors of length 1, aligned with the texts asked for, and what was paid for them."""

    vectors: tuple[Sequence[float], ...]
    usage: Usage = NO_USAGE


class Embedder(Protocol):
    """Places texts so that those of like meaning lie near each other."""

    @property
    def name(self) -> str: ...

    async def embed(self, texts: Sequence[str]) -> EmbeddingResult:
        """Embed texts; no text is paid for twice. Raises CallFailed as `Policy.complete` does."""

    async def ping(self) -> None:
        """Return when the model answers; raises PolicyError else."""
        return

    async def aclose(self) -> None:
        return


class Reviewer(Protocol):
    """Decides operations."""

    def review(
        self, operations: Sequence[Operation], library: "Library"
    ) -> AsyncIterator[Decision]:
        """Yield decisions in the order they are made.

        `library` is the draft that holds every earlier decision of this lesson. What
        is left undecided at the end passes to the next reviewer.
        """
