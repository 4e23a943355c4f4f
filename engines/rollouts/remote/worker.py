"""The worker's end: makes and judges tries with what it opened, and asks the run for the rest.

Models, records, budget and gate stay in the run's process, so that no key of an endpoint ever comes
here; agents, tools, sandboxes and verifiers run here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

from engines.core.errors import CallFailed, StudioError
from engines.core.protocols import (
    Agent,
    EmbeddingResult,
    OnText,
    Policy,
    Verifier,
    judges_whole_groups,
)
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

Ref = tuple[str, str | int]
"""Names a model of the run's process: its list there, and its place in it."""
_SERVED: ContextVar[int] = ContextVar("served", default=-1)


@dataclass(frozen=True, slots=True)
class WorkerParts:
    """What a worker has opened. `check` tests all of it, and returns `AgentOpened.facts`."""

    make_agent: Callable[[Sampling], Agent]
    verifier: Verifier | None
    check: Callable[[], Awaitable[Mapping[str, Any]]]


OpenParts = Callable[[Any, Any, "Worker"], AbstractAsyncContextManager[WorkerParts]]
"""Opens what is wanted with the files for it, and stubs of the worker for what stays here."""


@dataclass(frozen=True, slots=True)
class RemoteModel:
    """A model of the run's process, which is asked through a try or a ledger."""

    ref: Ref
    name: str

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, on_text: OnText | None = None
    ) -> Completion:
        raise AssertionError("a model of the run's process is asked through its try")

    async def ping(self) -> None:
        """The run's process asks it at the start."""

    async def aclose(self) -> None:
        """The run's process closes it."""


class Worker:
    """Serves one run. `send` takes items for its dispatcher; `fetch` gets what is shared."""

    def __init__(
        self, send: Callable[[Item], None], fetch: Callable[[Any], Awaitable[Any]]
    ) -> None:
        self.line = Line(send, self._work_for, self._take)
        self._fetch = fetch
        self._stack = AsyncExitStack()
        self._parts: WorkerParts | None = None
        self._agents: dict[Sampling, Agent] = {}
        self._tokens = count()
        self.listeners: dict[int, OnText] = {}
        self._runs: dict[int, _ToolRun] = {}

    async def open(self, open_parts: OpenParts, wanted: Any, files: Any) -> dict[str, Any]:
        """Open and test all; returns what it acts with, and whether it judges whole groups."""
        opening = open_parts(wanted, await self._fetch(files), self)
        parts = await self._stack.enter_async_context(opening)
        facts = dict(await parts.check())
        if parts.verifier is not None:
            await parts.verifier.check()
        self._parts = parts
        whole = parts.verifier is not None and judges_whole_groups(parts.verifier)
        return {"agent": facts, "whole_groups": whole}

    async def aclose(self) -> None:
        await self._stack.aclose()

    def tell(self, text: str) -> None:
        self.line.tell("say", text)

    @property
    def ledger(self) -> RemoteLedger:
        return RemoteLedger(self.line)

    def embedder(self, place: int, name: str) -> RemoteEmbedder:
        return RemoteEmbedder(self.line, place, name)

    def _work_for(self, kind: str, args: Item) -> Work:
        make: Mapping[str, Callable[..., Coroutine[Any, Any, Any]]] = {
            "attempt": self._attempt,
            "verify": self._verify,
            "run_tool": self._run_tool,
        }
        context = self._runs[args[0]].context.copy() if kind == "run_tool" else None
        return make[kind](*args), context

    def _take(self, kind: str, args: Item) -> None:
        if kind == "text":
            number, piece = args
            if listener := self.listeners.get(number):
                listener(piece)
        elif kind == "restored":
            number, call = args
            if run := self._runs.get(number):
                run.on_restored(call)

    async def _attempt(self, served: int, name: str, job: Job, sampling: Sampling) -> Attempt:
        assert self._parts is not None
        _SERVED.set(served)
        if sampling not in self._agents:
            self._agents[sampling] = self._parts.make_agent(sampling)
        show = partial(self.line.tell, "text", served)
        policy = RemoteTry(self, served, name, show)
        return await self._agents[sampling].attempt(job, policy, show)

    async def _verify(
        self, served: int, problem: Problem, rollouts: Sequence[Rollout]
    ) -> Sequence[Verdict]:
        assert self._parts is not None and self._parts.verifier is not None
        _SERVED.set(served)
        return await self._parts.verifier.verify(problem, rollouts)

    async def _run_tool(self, number: int, call: ToolCall) -> ToolResult:
        return await self._runs[number].run(call)

    def listen(self, on_text: OnText) -> int:
        number = next(self._tokens)
        self.listeners[number] = on_text
        return number

    async def run_tools(
        self, run: _ToolRun, calls: Sequence[ToolCall], specs: Sequence[ToolSpec]
    ) -> tuple[ToolResult, ...]:
        number = next(self._tokens)
        self._runs[number] = run
        try:
            results: tuple[ToolResult, ...] = await self.line.ask(
                "run_tools", run.served, number, tuple(calls), tuple(specs)
            )
            return results
        finally:
            del self._runs[number]


@dataclass(frozen=True, slots=True)
class _ToolRun:
    """How the calls of one reply are run, once the record does not have their results."""

    served: int
    run: Callable[[ToolCall], Awaitable[ToolResult]]
    on_restored: Callable[[ToolCall], None]
    context: Context  # of the try: its tools ask models, too


class RemoteTry:
    """Implements `engines.core.protocols.TryPolicy` for a try that the run's process records."""

    def __init__(self, worker: Worker, served: int, name: str, show: OnText) -> None:
        self._worker, self._served = worker, served
        self._show = show  # what the try shows as it streams, in the run's process
        self.name = name

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
        # What the try shows as it is goes there directly, and does not come here first.
        direct = on_text is self._show
        listener = None if on_text is None or direct else self._worker.listen(on_text)
        try:
            reply: Completion = await self._worker.line.ask(
                "complete", self._served, ref, tuple(messages), sampling, direct, listener
            )
            return reply
        finally:
            if listener is not None:
                self._worker.listeners.pop(listener, None)

    async def run_tools(
        self,
        calls: Sequence[ToolCall],
        run: Callable[[ToolCall], Awaitable[ToolResult]],
        specs: Sequence[ToolSpec] = (),
        on_restored: Callable[[ToolCall], None] = lambda _: None,
    ) -> tuple[ToolResult, ...]:
        made = _ToolRun(self._served, run, on_restored, copy_context())
        return await self._worker.run_tools(made, calls, specs)

    async def ask(
        self, policy: Policy, messages: Sequence[Message], sampling: Sampling
    ) -> Completion:
        reply: Completion = await self._worker.line.ask(
            "ask", self._served, ref_of(policy), tuple(messages), sampling
        )
        return reply

    async def ping(self) -> None:
        """The run's process asks it at the start."""

    async def aclose(self) -> None:
        """The run's process closes it."""


@dataclass(frozen=True, slots=True)
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

    async def run_tools(
        self,
        key: CallKey,
        calls: Sequence[ToolCall],
        run: Callable[[ToolCall], Awaitable[ToolResult]],
        specs: Sequence[ToolSpec] = (),
        on_restored: Callable[[ToolCall], None] = lambda _: None,
    ) -> list[tuple[ToolResult, RecordRef]]:
        raise AssertionError("verifiers call no tools")


@dataclass(frozen=True, slots=True)
class RemoteEmbedder:
    """An embedding model of the run's process."""

    line: Line
    place: int
    name: str

    async def embed(self, texts: Sequence[str]) -> EmbeddingResult:
        result: EmbeddingResult = await self.line.ask(
            "embed", _SERVED.get(), self.place, tuple(texts)
        )
        return result

    async def ping(self) -> None:
        """The run's process asks it at the start."""


def ref_of(policy: Policy) -> Ref:
    """What the run's process knows a stub by, whatever was put round it here."""
    while not isinstance(policy, RemoteModel):
        policy = policy.inner  # type: ignore[attr-defined]
    return policy.ref


Item = tuple[Any, ...]
Work = tuple[Coroutine[Any, Any, Any], Context | None]
"""What answers a question, and the context it runs in; None: that of the line."""


@dataclass(frozen=True, slots=True)
class PackedError:
    """An error on its way. One that is not the studio's own keeps its name and its text."""

    kind: type[Exception] | str
    args: tuple[Any, ...]
    state: dict[str, Any]

    @classmethod
    def pack(cls, error: BaseException) -> PackedError:
        if isinstance(error, StudioError | CallFailed | TimeoutError):
            return cls(type(error), error.args, dict(vars(error)))
        return cls(type(error).__name__, (str(error),), {})

    def unpack(self) -> Exception:
        kind = self.kind
        if isinstance(kind, str):  # its class may not be known here
            kind = type(kind, (Exception,), {})
        error = kind.__new__(kind, *self.args)
        error.args = self.args
        vars(error).update(self.state)
        return error


class Line:
    """One end of a line.

    `send` takes items for the other end. `work_for` makes the work that answers a question, and
    `told` takes what wants no answer; both are called in the order in which items arrive.
    """

    def __init__(
        self,
        send: Callable[[Item], None],
        work_for: Callable[[str, Item], Work],
        told: Callable[[str, Item], None],
    ) -> None:
        self._send, self._work_for, self._told = send, work_for, told
        self._numbers = count()
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._working: dict[int, asyncio.Task[Any]] = {}
        self._lost: Exception | None = None

    @property
    def working(self) -> tuple[asyncio.Task[Any], ...]:
        """What is under way here for the other end."""
        return tuple(self._working.values())

    async def ask(self, kind: str, *args: Any) -> Any:
        """The other end's answer, or the error it ended with; cancelled here, it is there, too."""
        if self._lost is not None:
            raise self._lost
        number, answer = next(self._numbers), asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        self._send(("ask", number, kind, args))
        try:
            return await answer
        except asyncio.CancelledError:
            if number in self._asked:
                self._send(("cancel", number))
            raise
        finally:
            self._asked.pop(number, None)

    def tell(self, kind: str, *args: Any) -> None:
        if self._lost is None:
            self._send(("tell", kind, args))

    def receive(self, item: Item) -> None:
        match item:
            case ("ask", number, kind, args):
                work, context = self._work_for(kind, args)
                task = asyncio.get_running_loop().create_task(work, context=context)
                self._working[number] = task
                task.add_done_callback(lambda done: self._answer(number, done))
            case ("tell", kind, args):
                self._told(kind, args)
            case ("cancel", number):
                if number in self._working:
                    self._working[number].cancel()
            case ("answer", number, value):
                if (waiting := self._asked.get(number)) and not waiting.done():
                    waiting.set_result(value)
            case ("error", number, raised):
                if (waiting := self._asked.get(number)) and not waiting.done():
                    waiting.set_exception(raised.unpack())

    def lose(self, error: Exception) -> None:
        """Fail what is asked here, now and later; what works for the other end goes on."""
        self._lost = self._lost or error
        for waiting in self._asked.values():
            if not waiting.done():
                waiting.set_exception(error)

    def _answer(self, number: int, done: asyncio.Task[Any]) -> None:
        self._working.pop(number, None)
        if done.cancelled():  # by whoever asked, or because all ends
            return
        error = done.exception()
        if self._lost is not None:
            return
        if error is None:
            self._send(("answer", number, done.result()))
        else:
            self._send(("error", number, PackedError.pack(error)))
