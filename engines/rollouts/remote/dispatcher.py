"""Makes and judges tries on the workers of a cluster, as an `Agent` and a `Verifier` do here.

Owns which worker takes what, and what becomes of the work of one that is lost. Who provides the
workers is behind `Cluster`; what is asked, paid and recorded stays with the run's process.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from contextvars import Context, copy_context
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Any, Protocol

from engines.core.errors import CallFailed, StudioError, WorkerLost, lost_usage
from engines.core.protocols import Agent, Embedder, OnText, Policy, TryPolicy, Verifier
from engines.core.types import (
    NO_USAGE,
    Attempt,
    CallKey,
    Completion,
    Job,
    Message,
    Problem,
    RecordRef,
    Rollout,
    Sampling,
    Usage,
    Verdict,
    try_id,
)
from engines.core.waiting import pause_deadlines, slow_stage
from engines.rollouts.remote.worker import Item, Line, Ref, Work

MOST_FAILED_STARTS = 3
"""In a row, of one worker: after them it is given up."""


class RemoteProcess(Protocol):
    """A worker's process, as the cluster gives it. Any call raises WorkerLost once it is gone."""

    @property
    def node(self) -> str:
        """What people call the machine it is on."""

    async def open(self, wanted: Any, files: Any) -> dict[str, Any]:
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

    def serve(
        self,
        number: int,
        key: CallKey | None = None,
        policy: TryPolicy | None = None,
        on_text: OnText | None = None,
    ) -> "ServedTry":
        return ServedTry(number, self.line, self.tries, self.resolve, key, policy, on_text)


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
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.cluster, self.models, self.tell = cluster, models, tell
        self._wanted = wanted  # what workers open, and the files they need for that
        self.whole_groups = False
        self.on_nodes: Callable[[tuple[str, ...], str], None] = lambda nodes, lost: None
        self.on_placed: Callable[[CallKey, str], None] = lambda key, node: None
        self._wanted_workers, self._tries_per_worker = wanted_workers, tries_per_worker
        self._facts: dict[str, Any] | None = None
        self._ready: dict[_Worker, None] = {}
        self._changed = asyncio.Condition()
        self._keepers: set[asyncio.Task[None]] = set()
        self._failure: Exception | None = None
        self.numbers = count()
        self._made_by: dict[tuple[int, int, int, int, str], _Worker] = {}

    async def check(self) -> dict[str, Any]:
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
    def nodes(self) -> tuple[str, ...]:
        """Where workers are ready."""
        return tuple(sorted({worker.process.node for worker in self._ready}))

    def tries_by_node(self) -> dict[str, tuple[str, ...]]:
        found: dict[str, tuple[str, ...]] = dict.fromkeys(self.nodes, ())
        for worker in self._ready:
            ids = (try_id(one.key) for one in worker.tries.values() if one.key is not None)
            found[worker.process.node] += tuple(ids)
        return found

    def agent(self, sampling: Sampling) -> Agent:
        return RemoteAgent(self, sampling)

    def verifier(self) -> Verifier:
        return RemoteVerifier(self)

    @asynccontextmanager
    async def lend(self, made: CallKey | None = None) -> AsyncIterator[_Worker]:
        """A worker with room, for one piece of work; whoever waits for it is not timed.

        One that `made` a try and is there still has what that left: it is given first.
        """
        kept = None if made is None else self._made_by.get(_place(made))
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

    def keep_place(self, key: CallKey, worker: _Worker) -> None:
        """Have a try judged where it was made."""
        self._made_by[_place(key)] = worker
        while len(self._made_by) > 10_000:
            del self._made_by[next(iter(self._made_by))]

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
                    move = "See `ray status` and the worker's log on its node; then start again."
                    cause = f"no worker could be started ({lost})."
                    trouble = StudioError("dispatch", cause, move)
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

    def _check_same(self, node: str, opened: Mapping[str, Any]) -> None:
        """Refuse a node on which tools are contained otherwise, or are missing."""
        if self._facts is not None and opened["agent"] != self._facts["agent"]:
            cause = f"its tools are not what they are elsewhere: {opened['agent']}."
            raise StudioError(f"node {node}", cause, "Give all nodes the same packages and kernel.")
        self._facts = self._facts or dict(opened)

    async def _serve(self, process: RemoteProcess, opened: dict[str, Any]) -> None:
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


@dataclass(frozen=True, slots=True)
class RemoteAgent:
    """Implements `engines.core.protocols.Agent` on a worker; raises WorkerLost where that is."""

    dispatcher: Dispatcher
    sampling: Sampling

    async def attempt(self, job: Job, policy: TryPolicy, on_text: OnText | None = None) -> Attempt:
        dispatcher = self.dispatcher
        async with dispatcher.lend() as worker:
            dispatcher.on_placed(job.key, worker.process.node)
            served = worker.serve(next(dispatcher.numbers), job.key, policy, on_text)
            attempt: Attempt = await served.ask("attempt", policy.name, job, self.sampling)
            dispatcher.keep_place(job.key, worker)
            return replace(attempt, usage=attempt.usage + served.lost)


@dataclass(frozen=True, slots=True)
class RemoteVerifier:
    """Implements `engines.core.protocols.Verifier` on a worker, that which made the tries first."""

    dispatcher: Dispatcher

    @property
    def whole_groups(self) -> bool:
        return self.dispatcher.whole_groups

    async def check(self) -> None:
        await self.dispatcher.check()

    async def verify(self, problem: Problem, rollouts: Sequence[Rollout]) -> Sequence[Verdict]:
        lost: Exception | None = None
        for _ in range(2):
            async with self.dispatcher.lend(_key_of(problem, rollouts[0])) as worker:
                served = worker.serve(next(self.dispatcher.numbers))
                try:
                    judged: Sequence[Verdict] = await served.ask("verify", problem, rollouts)
                    return judged
                except WorkerLost as error:
                    lost = error
        return [Verdict(None, error=f"failed: {lost}") for _ in rollouts]

    async def aclose(self) -> None:
        """The dispatcher is closed by whoever made it."""


def _place(key: CallKey) -> tuple[int, int, int, int, str]:
    return key.epoch, key.step, key.position, key.index, key.problem


def _key_of(problem: Problem, rollout: Rollout) -> CallKey:
    held_out = problem.id if rollout.epoch == 0 else ""
    place = (rollout.epoch, rollout.step, rollout.position, rollout.index)
    return CallKey("rollout", *place, problem=held_out)


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
    line: Line
    among: "dict[int, ServedTry]"  # all that the worker has under way
    resolve: Callable[[Ref], Policy]  # what a worker calls a model
    key: CallKey | None = None  # None: it is judged
    policy: TryPolicy | None = None
    on_text: OnText | None = None
    context: Context = field(default_factory=copy_context)  # with its deadlines
    lost: Usage = NO_USAGE  # of calls that the worker gave up
    calls: set[asyncio.Task[Any]] = field(default_factory=set)

    async def ask(self, kind: str, *args: Any) -> Any:
        """What the worker makes of it. WorkerLost comes once nothing of it is under way here."""
        self.among[self.number] = self
        try:
            return await self.line.ask(kind, self.number, *args)
        except WorkerLost:
            # What was asked is paid for: its reply is recorded, and found when it is asked again.
            if self.calls:
                await asyncio.wait(self.calls)
            raise
        finally:
            del self.among[self.number]
            for call in self.calls:
                call.cancel()

    def work_for(self, kind: str, args: Sequence[Any]) -> Work:
        work: Coroutine[Any, Any, Any]
        match kind, *args:
            case "complete", ref, messages, sampling, direct, listener:
                on_text = self.on_text if direct else self._listener(listener)
                work = self._complete(ref, messages, sampling, on_text)
            case "ask", ref, messages, sampling:
                assert self.policy is not None
                work = self.policy.ask(self.resolve(ref), messages, sampling)
            case "run_tools", token, calls, specs:
                work = self._run_tools(token, calls, specs)
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

    async def _complete(
        self,
        ref: Ref | None,
        messages: tuple[Message, ...],
        sampling: Sampling,
        on_text: OnText | None,
    ) -> Completion:
        assert self.policy is not None
        if ref is None:
            return await self.policy.complete(messages, sampling, on_text)
        return await self.policy.complete_as(self.resolve(ref), messages, sampling, on_text)

    async def _run_tools(self, token: int, calls: Any, specs: Any) -> Any:
        assert self.policy is not None
        run = partial(self.line.ask, "run_tool", token)
        restore = partial(self.line.tell, "restored", token)
        return await self.policy.run_tools(calls, run, specs, restore)

    def _listener(self, number: int | None) -> OnText | None:
        if number is None:
            return None
        return lambda piece: self.line.tell("text", number, piece)
