"""Makes and judges tries on the workers of a cluster, as an `Agent` and a `Verifier` do here.

First the line between both ends and the worker's: it makes and judges tries with what it opened,
and asks the run for the rest. Then the run's end: which worker takes what, and what becomes of the
work of one that is lost. Who provides the workers is behind `Cluster`. Models, records, budget and
gate stay in the run's process, so that no key of an endpoint ever comes to a worker.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Any, Protocol

from engines.core.codec import JsonMapping, JsonObject
from engines.core.errors import CallFailed, StudioError, WorkerLost, lost_usage
from engines.core.frozen import frozen
from engines.core.protocols import (
    Agent,
    Embedder,
    EmbeddingResult,
    OnText,
    Policy,
    TryPolicy,
    Verifier,
    judges_whole_groups,
)
from engines.core.types import (
    NO_USAGE,
    Attempt,
    CallKey,
    Completion,
    Job,
    Message,
    Names,
    Problem,
    RecordRef,
    Rollout,
    Sampling,
    Tell,
    ToolCall,
    ToolResult,
    ToolSpec,
    Usage,
    Verdict,
    try_id,
)
from engines.core.waiting import pause_deadlines, slow_stage

Item = tuple[Any, ...]
Work = tuple[Coroutine[Any, Any, Any], Context | None]
"""What answers a question, and the context it runs in; None: that of the line."""


@frozen
class PackedError:
    """An error on its way. One that is not the studio's own keeps its name and its text."""

    kind: type[Exception] | str
    args: tuple[Any, ...]
    state: JsonObject

    @classmethod
    def pack(cls, error: BaseException) -> "PackedError":
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


Ref = tuple[str, str | int]
"""Names a model of the run's process: its list there, and its place in it."""
_SERVED: ContextVar[int] = ContextVar("served", default=-1)


@frozen
class WorkerParts:
    """What a worker has opened. `check` tests all of it, and returns `AgentOpened.facts`."""

    make_agent: Callable[[Sampling], Agent]
    verifier: Verifier | None
    check: Callable[[], Awaitable[JsonMapping]]


OpenParts = Callable[[Any, Any, "Worker"], AbstractAsyncContextManager[WorkerParts]]
"""Opens what is wanted with the files for it, and stubs of the worker for what stays here."""


@frozen
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


def ref_of(policy: Policy) -> Ref:
    """What the run's process knows a stub by, whatever was put round it here."""
    while not isinstance(policy, RemoteModel):
        policy = policy.inner  # type: ignore[attr-defined]
    return policy.ref


@frozen
class _ToolRun:
    """How the calls of one reply are run, once the record does not have their results."""

    run: Callable[[ToolCall], Awaitable[ToolResult]]
    on_restored: Callable[[ToolCall], None]
    context: Context  # of the try: its tools ask models, too

    async def run_call(self, call: ToolCall) -> ToolResult:
        return await self.run(call)


class RemoteTry:
    """Implements `engines.core.protocols.TryPolicy` for a try that the run's process records."""

    def __init__(self, worker: "Worker", served: int, name: str, show: OnText) -> None:
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
        listener = None
        if on_text is not None and not direct:
            listener = next(self._worker.numbers)
            self._worker.listeners[listener] = on_text
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
        worker = self._worker
        number = next(worker.numbers)
        worker.tool_runs[number] = _ToolRun(run, on_restored, copy_context())
        try:
            results: tuple[ToolResult, ...] = await worker.line.ask(
                "run_tools", self._served, number, tuple(calls), tuple(specs)
            )
            return results
        finally:
            del worker.tool_runs[number]

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

    async def run_tools(
        self,
        key: CallKey,
        calls: Sequence[ToolCall],
        run: Callable[[ToolCall], Awaitable[ToolResult]],
        specs: Sequence[ToolSpec] = (),
        on_restored: Callable[[ToolCall], None] = lambda _: None,
    ) -> list[tuple[ToolResult, RecordRef]]:
        raise AssertionError("verifiers call no tools")


@frozen
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
        self.numbers = count()  # of listeners and runs of tools
        self.listeners: dict[int, OnText] = {}
        self.tool_runs: dict[int, _ToolRun] = {}

    async def open(self, open_parts: OpenParts, wanted: Any, files: Any) -> JsonObject:
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

    def _work_for(self, kind: str, args: Item) -> Work:
        if kind == "run_tool":
            number, call = args
            run = self.tool_runs[number]
            return run.run_call(call), run.context.copy()
        return (self._attempt if kind == "attempt" else self._verify)(*args), None

    def _take(self, kind: str, args: Item) -> None:
        if kind == "text":
            number, piece = args
            if listener := self.listeners.get(number):
                listener(piece)
        elif kind == "restored":
            number, call = args
            if run := self.tool_runs.get(number):
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


MOST_FAILED_STARTS = 3
"""In a row, of one worker: after them it is given up."""


class RemoteProcess(Protocol):
    """A worker's process, as the cluster gives it. Any call raises WorkerLost once it is gone."""

    @property
    def node(self) -> str:
        """What people call the machine it is on."""

    async def open(self, wanted: Any, files: Any) -> JsonObject:
        """As `Worker.open`, whose StudioError it raises; `files` is a handle."""

    async def push(self, items: Sequence[Item]) -> None: ...

    async def poll(self) -> Sequence[Item]:
        """What the worker has sent since the last call, once there is something."""

    def kill(self) -> None: ...


class Cluster(Protocol):
    """Where workers come from."""

    async def start(self) -> None:
        """Reach it or start it. Raises StudioError."""

    async def add_worker(self) -> RemoteProcess:
        """A new worker, as soon as there is room. Raises StudioError: the cluster is gone."""

    def share(self, value: Any) -> Any:
        """A handle by which workers fetch a value, each node once."""

    async def aclose(self) -> None: ...


AskJudge = Callable[
    [CallKey, Sequence[Message], Sampling], Coroutine[Any, Any, tuple[Completion, RecordRef]]
]


Place = tuple[int, int, int, int, str]
"""Of a try in its run: epoch, step, position, index, and the id of a held-out problem."""


@dataclass(slots=True)
class RunModels:
    """What workers may ask of the run's process."""

    resolve: Callable[[Ref], Policy]
    embedders: Sequence[Embedder]
    judge: AskJudge | None = None


@dataclass(eq=False)
class _Worker:
    """A worker that is ready, and what it has under way."""

    process: RemoteProcess
    line: Line
    resolve: Callable[[Ref], Policy]
    under_way: int = 0
    tries: "dict[int, ServedTry]" = field(default_factory=dict)  # and what is judged


class Dispatcher:
    """Has `wanted_workers` opened, and gives each `tries_per_worker` tries at once."""

    def __init__(
        self,
        cluster: Cluster,
        wanted: Callable[[], tuple[Any, Any]],
        models: RunModels,
        *,
        wanted_workers: int,
        tries_per_worker: int,
        tell: Tell = lambda _: None,
    ) -> None:
        self.cluster, self.models, self.tell = cluster, models, tell
        self._wanted = wanted  # what workers open, and the files they need for that
        self.whole_groups = False
        self.on_nodes: Callable[[Names, str], None] = lambda nodes, lost: None
        self.on_placed: Callable[[CallKey, str], None] = lambda key, node: None
        self._wanted_workers, self._tries_per_worker = wanted_workers, tries_per_worker
        self._facts: JsonObject | None = None
        self._ready: dict[_Worker, None] = {}
        self._changed = asyncio.Condition()
        self._keepers: set[asyncio.Task[None]] = set()
        self._failure: Exception | None = None
        self.numbers = count()
        self.made_by: dict[Place, _Worker] = {}

    async def check(self) -> JsonObject:
        """Start, and return what the agent acts with once one worker is ready.

        Raises StudioError: there is no cluster, or what the run needs cannot be opened there.
        """
        if self._facts is None:
            with slow_stage(self.tell, "reaching the cluster"):
                await self.cluster.start()
            wanted, files = self._wanted()
            self._to_open = wanted, self.cluster.share(files)
            for _ in range(self._wanted_workers):
                task = asyncio.create_task(self._keep_worker(), context=Context())
                self._keepers.add(task)
                task.add_done_callback(self._keepers.discard)
            with slow_stage(self.tell, "waiting for the first worker of the cluster"):
                async with self._changed:
                    await self._changed.wait_for(lambda: self._ready or self._failure)
            if self._failure is not None:
                raise self._failure
        assert self._facts is not None
        return dict(self._facts["agent"])

    async def aclose(self) -> None:
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        await self.cluster.aclose()

    @property
    def nodes(self) -> Names:
        """Where workers are ready."""
        return tuple(sorted({worker.process.node for worker in self._ready}))

    def tries_by_node(self) -> dict[str, Names]:
        found: dict[str, Names] = dict.fromkeys(self.nodes, ())
        for worker in self._ready:
            ids = (try_id(one.key) for one in worker.tries.values() if one.key is not None)
            found[worker.process.node] += tuple(ids)
        return found

    def agent(self, sampling: Sampling) -> Agent:
        return RemoteAgent(self, sampling)

    def verifier(self) -> Verifier:
        return RemoteVerifier(self)

    @asynccontextmanager
    async def lend(self, made: Place | None = None) -> AsyncIterator[_Worker]:
        """A worker with room, for one piece of work; whoever waits for it is not timed.

        One that `made` a try and is there still has what that left: it is given first.
        """
        kept = None if made is None else self.made_by.pop(made, None)
        if kept is None or kept not in self._ready:
            with pause_deadlines():
                async with self._changed:
                    await self._changed.wait_for(lambda: self._failure or self._has_room())
            if self._failure is not None:
                raise self._failure
            kept = min(self._ready, key=lambda worker: worker.under_way)
        kept.under_way += 1
        try:
            yield kept
        finally:
            kept.under_way -= 1
            async with self._changed:
                self._changed.notify_all()

    def _has_room(self) -> bool:
        return any(worker.under_way < self._tries_per_worker for worker in self._ready)

    async def _keep_worker(self) -> None:
        """Have one worker at work, and another in its place where it is lost."""
        failed = 0
        try:
            while self._failure is None and failed < MOST_FAILED_STARTS:
                try:
                    process = await self.cluster.add_worker()
                    opened = await process.open(*self._to_open)
                except WorkerLost as lost:
                    failed += 1
                    trouble = StudioError(
                        "dispatch",
                        f"no worker could be started ({lost}).",
                        "See `ray status` and the worker's log on its node; then start again.",
                    )
                    continue
                self._check_same(process.node, opened)
                failed = 0
                await self._serve(process, opened)
            if failed:
                raise trouble
        except StudioError as error:
            if self._ready:  # of further ones, those that are there are enough
                self.tell(f"a worker is not used: {error}")
                return
            self._failure = self._failure or error
        except Exception as error:  # a bug: whoever waits for a worker must not wait for ever
            self._failure = error
        async with self._changed:
            self._changed.notify_all()

    def _check_same(self, node: str, opened: JsonMapping) -> None:
        """Refuse a node on which tools are contained otherwise, or are missing."""
        if self._facts is not None and opened["agent"] != self._facts["agent"]:
            raise StudioError(
                f"node {node}",
                f"its tools are not what they are elsewhere: {opened['agent']}.",
                "Give all nodes the same packages and kernel.",
            )
        self._facts = self._facts or dict(opened)

    async def _serve(self, process: RemoteProcess, opened: JsonObject) -> None:
        """Take what a worker sends, until it is lost."""
        outgoing: asyncio.Queue[Item] = asyncio.Queue()
        line = Line(
            outgoing.put_nowait,
            lambda kind, args: self._work_for(worker, kind, args),
            lambda kind, args: self._take(worker, kind, args),
        )
        worker = _Worker(process, line, self.models.resolve)
        self.whole_groups = bool(opened["whole_groups"])
        pushing = asyncio.create_task(_push(process, outgoing))
        self._ready[worker] = None
        await self._tell_ready()
        lost, told = WorkerLost(process.node, "the run has ended"), ""
        try:
            while True:
                for item in await process.poll():
                    worker.line.receive(item)
        except WorkerLost as error:
            lost = error
            told = f"{lost}; its tries are made again" if worker.tries else str(lost)
        finally:
            pushing.cancel()
            # First, or a try that is lost by this is given the same worker for its second time.
            del self._ready[worker]
            worker.line.lose(lost)
            with suppress(Exception):
                process.kill()
            await self._tell_ready(told)

    async def _tell_ready(self, lost: str = "") -> None:
        async with self._changed:
            self._changed.notify_all()
        self.on_nodes(self.nodes, lost)

    def _work_for(self, worker: _Worker, kind: str, args: Item) -> Work:
        served, *rest = args
        found = worker.tries.get(served)
        context = found.context.copy() if found is not None else None
        if kind == "embed":
            place, texts = rest
            work: Any = self.models.embedders[place].embed(texts)
            return work, context
        if kind == "judge":
            assert self.models.judge is not None
            return self.models.judge(*rest), context
        if found is None:  # it has ended, and its program asks on
            return _refuse("the try has ended"), None
        return found.work_for(kind, rest)

    def _take(self, worker: _Worker, kind: str, args: Item) -> None:
        if kind == "say":
            self.tell(f"node {worker.process.node}: {args[0]}")
        elif kind == "text" and (found := worker.tries.get(args[0])) and found.on_text:
            found.on_text(args[1])


@frozen
class RemoteAgent:
    """Implements `engines.core.protocols.Agent` on a worker; raises WorkerLost where that is."""

    dispatcher: Dispatcher
    sampling: Sampling

    async def attempt(self, job: Job, policy: TryPolicy, on_text: OnText | None = None) -> Attempt:
        dispatcher = self.dispatcher
        async with dispatcher.lend() as worker:
            dispatcher.on_placed(job.key, worker.process.node)
            served = ServedTry(next(dispatcher.numbers), worker, job.key, policy, on_text)
            attempt: Attempt = await served.ask("attempt", policy.name, job, self.sampling)
            dispatcher.made_by[_place(job.key)] = worker  # it is judged there
            return replace(attempt, usage=attempt.usage + served.lost)


@frozen
class RemoteVerifier:
    """Implements `engines.core.protocols.Verifier` on a worker, that which made the tries first."""

    dispatcher: Dispatcher

    @property
    def whole_groups(self) -> bool:
        return self.dispatcher.whole_groups

    async def check(self) -> None:
        await self.dispatcher.check()

    async def verify(self, problem: Problem, rollouts: Sequence[Rollout]) -> Sequence[Verdict]:
        first = rollouts[0]
        held_out = problem.id if first.epoch == 0 else ""
        made = first.epoch, first.step, first.position, first.index, held_out
        lost: Exception | None = None
        for _ in range(2):
            async with self.dispatcher.lend(made) as worker:
                served = ServedTry(next(self.dispatcher.numbers), worker)
                try:
                    judged: Sequence[Verdict] = await served.ask("verify", problem, rollouts)
                    return judged
                except WorkerLost as error:
                    lost = error
        return [Verdict(None, error=f"failed: {lost}") for _ in rollouts]

    async def aclose(self) -> None:
        """The dispatcher is closed by whoever made it."""


def _place(key: CallKey) -> Place:
    return key.epoch, key.step, key.position, key.index, key.problem


async def _push(process: RemoteProcess, outgoing: asyncio.Queue[Item]) -> None:
    """Send what is there, one after another: what comes meanwhile goes together."""
    with suppress(WorkerLost):  # it shows in what is asked of it
        while True:
            items = [await outgoing.get()]
            while not outgoing.empty():
                items.append(outgoing.get_nowait())
            await process.push(items)


async def _refuse(reason: str) -> Any:
    raise CallFailed("refused", reason)


@dataclass(eq=False)
class ServedTry:
    """A try, or what is judged, that a worker has under way: it asks through its `policy`."""

    number: int
    worker: _Worker
    key: CallKey | None = None  # None: it is judged
    policy: TryPolicy | None = None
    on_text: OnText | None = None
    context: Context = field(default_factory=copy_context)  # with its deadlines
    lost: Usage = NO_USAGE  # of calls that the worker gave up
    calls: set[asyncio.Task[Any]] = field(default_factory=set)

    async def ask(self, kind: str, *args: Any) -> Any:
        """What the worker makes of it. WorkerLost comes once nothing of it is under way here."""
        self.worker.tries[self.number] = self
        try:
            return await self.worker.line.ask(kind, self.number, *args)
        except WorkerLost:
            # What was asked is paid for: its reply is recorded, and found when it is asked again.
            if self.calls:
                await asyncio.wait(self.calls)
            raise
        finally:
            del self.worker.tries[self.number]
            for call in self.calls:
                call.cancel()

    def work_for(self, kind: str, args: Sequence[Any]) -> Work:
        policy, line, resolve = self.policy, self.worker.line, self.worker.resolve
        assert policy is not None
        work: Coroutine[Any, Any, Any]
        match kind, *args:
            case "complete", ref, messages, sampling, direct, listener:
                on_text = self.on_text if direct else None
                if listener is not None:
                    on_text = partial(line.tell, "text", listener)
                if ref is None:
                    work = policy.complete(messages, sampling, on_text)
                else:
                    work = policy.complete_as(resolve(ref), messages, sampling, on_text)
            case "ask", ref, messages, sampling:
                work = policy.ask(resolve(ref), messages, sampling)
            case "run_tools", number, calls, specs:
                run = partial(line.ask, "run_tool", number)
                restore = partial(line.tell, "restored", number)
                work = policy.run_tools(calls, run, specs, restore)
            case _:
                raise AssertionError(f"a worker asks for {kind}")
        return self._track(work), self.context.copy()

    async def _track(self, work: Coroutine[Any, Any, Any]) -> Any:
        task = asyncio.current_task()
        assert task is not None
        self.calls.add(task)
        try:
            return await work
        except asyncio.CancelledError as cut:
            self.lost += lost_usage(cut)
            raise
        finally:
            self.calls.discard(task)
