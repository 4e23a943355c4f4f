"""A worker of a cluster: makes and judges rollouts with what it opened, and asks the run the rest.

Models, records, budget and gate stay in the run's process, so that no key of an endpoint ever comes
to a worker: what stands for them here asks over the line.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from contextvars import Context, ContextVar, copy_context
from functools import partial
from itertools import count
from typing import Any, Protocol, runtime_checkable

from engines.core import protocols
from engines.core.codec import JsonMapping, JsonObject
from engines.core.frozen import frozen
from engines.core.protocols import OnText, Policy, Verifier
from engines.core.types import (
    Attempt,
    CallKey,
    Completion,
    Job,
    Message,
    Problem,
    RecordRef,
    Rollout,
    Sampling,
    ToolCall,
    ToolResult,
    ToolSpec,
    Verdict,
)
from engines.rollouts.remote.line import Item, Line, Ref, Work

_SERVED: ContextVar[int] = ContextVar("served", default=-1)


@frozen
class WorkerParts:
    """What a worker has opened. `check` tests all of it, and returns `AgentOpened.facts`."""

    make_agent: Callable[[Sampling], protocols.Agent]
    verifier: Verifier | None
    check: Callable[[], Awaitable[JsonMapping]]


OpenParts = Callable[[Any, Any, "Worker"], AbstractAsyncContextManager[WorkerParts]]
"""Opens what is wanted with the files for it, and stubs of the worker for what stays here."""


@frozen
class RemoteModel(Policy):
    """A model of the run's process, which is asked through a rollout or a ledger."""

    ref: Ref
    name: str  # last, since the property of the protocol looks like a default

    async def complete(self, *_: Any, **__: Any) -> Completion:
        raise AssertionError("a model of the run's process is asked through its rollout")


@runtime_checkable
class _Wrapper(Protocol):
    """A policy that was put round another one here."""

    inner: Policy


def ref_of(policy: Policy) -> Ref:
    """What the run's process knows a stub by, whatever was put round it here."""
    while isinstance(policy, _Wrapper):
        policy = policy.inner
    assert isinstance(policy, RemoteModel)
    return policy.ref


@frozen
class _ToolRun:
    """How the calls of one reply are run, once the record does not have their results."""

    run: Callable[[ToolCall], Awaitable[ToolResult]]
    on_restored: Callable[[ToolCall], None]
    context: Context  # of the rollout: its tools ask models, too

    async def run_call(self, call: ToolCall) -> ToolResult:
        return await self.run(call)


@frozen
class RemoteTry(protocols.TryPolicy):
    """A `TryPolicy` for a rollout that the run's process records."""

    worker: "Worker"
    served: int
    show: OnText  # what the rollout shows as it streams, in the run's process
    name: str  # last, as in `RemoteModel`

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, on_text: OnText | None = None
    ) -> Completion:
        return await self._complete(None, messages, sampling, on_text)

    async def complete_as(
        self,
        policy: Policy,
        messages: Sequence[Message],
        sampling: Sampling,
        on_text: OnText | None = None,
    ) -> Completion:
        return await self._complete(ref_of(policy), messages, sampling, on_text)

    async def _complete(
        self,
        ref: Ref | None,
        messages: Sequence[Message],
        sampling: Sampling,
        on_text: OnText | None,
    ) -> Completion:
        # What the rollout shows as it is goes there directly, and does not come here first.
        direct = on_text is self.show
        listener = None
        if on_text is not None and not direct:
            listener = next(self.worker.numbers)
            self.worker.listeners[listener] = on_text
        try:
            reply: Completion = await self.worker.line.ask(
                "complete", self.served, ref, tuple(messages), sampling, direct, listener
            )
            return reply
        finally:
            if listener is not None:
                del self.worker.listeners[listener]

    async def run_tools(
        self,
        calls: Sequence[ToolCall],
        run: Callable[[ToolCall], Awaitable[ToolResult]],
        specs: Sequence[ToolSpec] = (),
        on_restored: Callable[[ToolCall], None] = lambda _: None,
    ) -> tuple[ToolResult, ...]:
        worker = self.worker
        number = next(worker.numbers)
        worker.tool_runs[number] = _ToolRun(run, on_restored, copy_context())
        try:
            results: tuple[ToolResult, ...] = await worker.line.ask(
                "run_tools", self.served, number, tuple(calls), tuple(specs)
            )
            return results
        finally:
            del worker.tool_runs[number]

    async def ask(
        self, policy: Policy, messages: Sequence[Message], sampling: Sampling
    ) -> Completion:
        reply: Completion = await self.worker.line.ask(
            "ask", self.served, ref_of(policy), tuple(messages), sampling
        )
        return reply


@frozen
class RemoteLedger:
    """The ledger as verifiers use it: they ask the judge through it."""

    line: Line

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
        answer: tuple[Completion, RecordRef] = await self.line.ask(
            "judge", _SERVED.get(), key, tuple(messages), sampling
        )
        return answer


@frozen
class RemoteEmbedder(protocols.Embedder):
    """An embedding model of the run's process."""

    line: Line
    place: int
    name: str  # last, as in `RemoteModel`

    async def embed(self, texts: Sequence[str]) -> protocols.EmbeddingResult:
        result: protocols.EmbeddingResult = await self.line.ask(
            "embed", _SERVED.get(), self.place, tuple(texts)
        )
        return result


class Worker:
    """Serves one run. `send` takes items for its pool; `fetch` gets what is shared."""

    def __init__(
        self, send: Callable[[Item], None], fetch: Callable[[Any], Awaitable[Any]]
    ) -> None:
        self.line = Line(send, self._work_for, self._take_note)
        self._fetch = fetch
        self._stack = AsyncExitStack()  # as long as the process: whatever it opened ends with that
        self._parts: WorkerParts | None = None
        self._agents: dict[Sampling, protocols.Agent] = {}
        self.numbers = count()  # of listeners and runs of tools
        self.listeners: dict[int, OnText] = {}
        self.tool_runs: dict[int, _ToolRun] = {}

    async def open(self, open_parts: OpenParts, wanted: Any, files: Any) -> JsonObject:
        """Open and test all; returns what it acts with, and whether it judges whole groups."""
        opening = open_parts(wanted, await self._fetch(files), self)
        parts = await self._stack.enter_async_context(opening)
        facts = dict(await parts.check())
        whole_groups = False
        if parts.verifier is not None:
            await parts.verifier.check()
            whole_groups = protocols.judges_whole_groups(parts.verifier)
        self._parts = parts
        return {"agent": facts, "whole_groups": whole_groups}

    def tell(self, text: str) -> None:
        self.line.tell("say", text)

    def _work_for(self, kind: str, args: Item) -> Work:
        match kind:
            case "run_tool":
                number, call = args
                tool_run = self.tool_runs[number]
                return tool_run.run_call(call), tool_run.context.copy()
            case "attempt":
                return self._attempt(*args), None
            case _:
                return self._verify(*args), None

    def _take_note(self, kind: str, args: Item) -> None:
        number, value = args
        if kind == "text" and number in self.listeners:
            self.listeners[number](value)
        elif kind == "restored" and number in self.tool_runs:
            self.tool_runs[number].on_restored(value)

    async def _attempt(self, served: int, name: str, job: Job, sampling: Sampling) -> Attempt:
        assert self._parts is not None
        _SERVED.set(served)
        if sampling not in self._agents:
            self._agents[sampling] = self._parts.make_agent(sampling)
        show = partial(self.line.tell, "text", served)
        policy = RemoteTry(worker=self, served=served, show=show, name=name)
        return await self._agents[sampling].attempt(job, policy, show)

    async def _verify(
        self, served: int, problem: Problem, rollouts: Sequence[Rollout]
    ) -> Sequence[Verdict]:
        assert self._parts is not None and self._parts.verifier is not None
        _SERVED.set(served)
        return await self._parts.verifier.verify(problem, rollouts)
