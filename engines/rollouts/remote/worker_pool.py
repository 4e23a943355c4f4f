"""Replaces a lost worker, and has its rollouts made again: the run's end of the line.

When a worker's process is gone, what was asked of it fails with `WorkerLost`, and the pool starts
another in its place; `MOST_FAILED_STARTS` in a row end that (`WorkerPool._replace_when_lost` and
what follows it). `RolloutManager` makes a rollout that was lost once more, on another worker, where
replies and results that are in the record are taken from there: nothing is paid or done twice.
`RemoteVerifier` judges once more. What is lost a second time has failed.

Owns which worker makes and judges what. Who provides the workers is behind `Cluster`.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from contextvars import Context, copy_context
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Any, Protocol

from engines.core.codec import JsonMapping, JsonObject
from engines.core.errors import CallFailed, StudioError, WorkerLost, lost_usage
from engines.core.frozen import frozen
from engines.core.protocols import Agent, Embedder, OnText, Policy, TryPolicy, Verifier
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
    Usage,
    Verdict,
    try_id,
)
from engines.core.waiting import pause_deadlines, slow_stage
from engines.rollouts.remote.line import Item, Line, Ref, Work

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
"""Of a rollout in its run: epoch, step, position, index, and the id of a held-out problem."""


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


class WorkerPool:
    """Has `wanted_workers` opened, replaces a lost one, and lends each to `tries_per_worker`."""

    def __init__(
        self,
        cluster: Cluster,
        gather_wanted: Callable[[], tuple[Any, Any]],
        models: RunModels,
        *,
        wanted_workers: int,
        tries_per_worker: int,
        tell: Tell = lambda _: None,
    ) -> None:
        self.cluster = cluster
        self.models = models
        self.tell = tell
        self.whole_groups = False
        self.on_nodes: Callable[[Names, str], None] = lambda nodes, lost: None
        self.on_placed: Callable[[CallKey, str], None] = lambda key, node: None
        self.numbers = count()
        self.made_by: dict[Place, _Worker] = {}
        self._gather_wanted = gather_wanted  # what workers open, and the files they need for that
        self._wanted_workers = wanted_workers
        self._tries_per_worker = tries_per_worker
        self._facts: JsonObject | None = None  # of the agent; None: no worker was ready yet
        self._ready: list[_Worker] = []
        self._changed = asyncio.Condition()
        self._keepers: set[asyncio.Task[None]] = set()
        self._failure: Exception | None = None

    async def check(self) -> JsonObject:
        """Start, and return what the agent acts with once one worker is ready.

        Raises StudioError: there is no cluster, or what the run needs cannot be opened there.
        """
        if self._facts is None:
            with slow_stage(self.tell, "reaching the cluster"):
                await self.cluster.start()
            wanted, files = self._gather_wanted()
            shared = self.cluster.share(files)
            for _ in range(self._wanted_workers):
                keeping = self._replace_when_lost(wanted, shared)
                self._keepers.add(asyncio.create_task(keeping, context=Context()))
            with slow_stage(self.tell, "waiting for the first worker of the cluster"):
                await self._wait_until(lambda: bool(self._ready))
        assert self._facts is not None
        return dict(self._facts)

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
        tries: dict[str, Names] = dict.fromkeys(self.nodes, ())
        for worker in self._ready:
            for served in worker.tries.values():
                if served.key is not None:
                    tries[worker.process.node] += (try_id(served.key),)
        return tries

    def agent(self, sampling: Sampling) -> Agent:
        return RemoteAgent(self, sampling)

    def verifier(self) -> Verifier:
        return RemoteVerifier(self)

    @asynccontextmanager
    async def lend(self, made: Place | None = None) -> AsyncIterator[_Worker]:
        """A worker with room, for one piece of work; whoever waits for it is not timed.

        One that `made` a rollout and is there still has what that left: it is given first.
        """
        worker = None if made is None else self.made_by.pop(made, None)
        if worker is None or worker not in self._ready:
            with pause_deadlines():
                await self._wait_until(self._has_room)
            worker = min(self._ready, key=lambda ready: ready.under_way)
        worker.under_way += 1
        try:
            yield worker
        finally:
            worker.under_way -= 1
            await self._announce_change()

    def _has_room(self) -> bool:
        return any(worker.under_way < self._tries_per_worker for worker in self._ready)

    async def _wait_until(self, holds: Callable[[], bool]) -> None:
        """Raise what ended the pool, if that comes first."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._failure or holds())
        if self._failure is not None:
            raise self._failure

    async def _announce_change(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    # From here to `_drop_lost`: a worker until it is lost, and the next one in its place.

    async def _replace_when_lost(self, wanted: Any, files: Any) -> None:
        """Have one worker at work, and another in its place when it is lost."""
        try:
            while self._failure is None:
                process, opened = await self._start_worker(wanted, files)
                await self._serve_until_lost(process, opened)
        except StudioError as error:
            if self._ready:  # of further ones, those that are there are enough
                self.tell(f"a worker is not used: {error}")
                return
            self._failure = self._failure or error
        except Exception as error:  # a bug: whoever waits for a worker must not wait for ever
            self._failure = error
        await self._announce_change()

    async def _start_worker(self, wanted: Any, files: Any) -> tuple[RemoteProcess, JsonObject]:
        """Raises StudioError: none can be started, or its node has other tools."""
        for _ in range(MOST_FAILED_STARTS):
            try:
                process = await self.cluster.add_worker()
                opened = await process.open(wanted, files)
            except WorkerLost as lost:
                loss = lost
                continue
            self._check_same(process.node, opened["agent"])
            return process, opened
        raise StudioError(
            "dispatch",
            f"no worker could be started ({loss}).",
            "See `ray status` and the worker's log on its node; then start again.",
        )

    def _check_same(self, node: str, facts: JsonMapping) -> None:
        """Refuse a node on which tools are contained otherwise, or are missing."""
        if self._facts is None:
            self._facts = dict(facts)
        elif facts != self._facts:
            raise StudioError(
                f"node {node}",
                f"its tools are not what they are elsewhere: {facts}.",
                "Give all nodes the same packages and kernel.",
            )

    async def _serve_until_lost(self, process: RemoteProcess, opened: JsonMapping) -> None:
        """Take what a worker sends, until its process is gone or the run ends."""
        outgoing: asyncio.Queue[Item] = asyncio.Queue()
        line = Line(
            outgoing.put_nowait,
            lambda kind, args: self._work_for(worker, kind, args),
            lambda kind, args: self._take_note(worker, kind, args),
        )
        worker = _Worker(process, line, self.models.resolve)
        self.whole_groups = bool(opened["whole_groups"])
        pushing = asyncio.create_task(_push(process, outgoing))
        self._ready.append(worker)
        await self._announce_nodes()
        lost = WorkerLost(process.node, "the run has ended")
        notice = ""
        try:
            while True:
                for item in await process.poll():
                    line.receive(item)
        except WorkerLost as error:
            lost = error
            notice = f"{lost}; its tries are made again" if worker.tries else str(lost)
        finally:
            pushing.cancel()
            self._drop_lost(worker, lost)
            await self._announce_nodes(notice)

    def _drop_lost(self, worker: _Worker, lost: WorkerLost) -> None:
        """Fail what the worker has under way, which is made again elsewhere."""
        # First, or a rollout that is lost by this is given the same worker for its second time.
        self._ready.remove(worker)
        worker.line.lose(lost)
        with suppress(Exception):
            worker.process.kill()

    async def _announce_nodes(self, lost: str = "") -> None:
        await self._announce_change()
        self.on_nodes(self.nodes, lost)

    def _work_for(self, worker: _Worker, kind: str, args: Item) -> Work:
        number, *more = args
        served = worker.tries.get(number)
        context = served.context.copy() if served is not None else None
        if kind == "embed":
            place, texts = more
            work: Any = self.models.embedders[place].embed(texts)
            return work, context
        if kind == "judge":
            assert self.models.judge is not None
            return self.models.judge(*more), context
        if served is None:  # it has ended, and its program asks on
            return _refuse("the try has ended"), None
        return served.work_for(kind, more)

    def _take_note(self, worker: _Worker, kind: str, args: Item) -> None:
        match kind, *args:
            case "say", text:
                self.tell(f"node {worker.process.node}: {text}")
            case "text", number, piece:
                served = worker.tries.get(number)
                if served is not None and served.on_text is not None:
                    served.on_text(piece)


@frozen
class RemoteAgent:
    """Implements `engines.core.protocols.Agent` on a worker; raises WorkerLost where that is."""

    pool: WorkerPool
    sampling: Sampling

    async def attempt(self, job: Job, policy: TryPolicy, on_text: OnText | None = None) -> Attempt:
        pool, key = self.pool, job.key
        async with pool.lend() as worker:
            pool.on_placed(key, worker.process.node)
            served = ServedTry(next(pool.numbers), worker, key, policy, on_text)
            attempt: Attempt = await served.ask("attempt", policy.name, job, self.sampling)
            # It is judged there.
            pool.made_by[key.epoch, key.step, key.position, key.index, key.problem] = worker
            return replace(attempt, usage=attempt.usage + served.lost)


@frozen
class RemoteVerifier:
    """Implements `engines.core.protocols.Verifier` on a worker, that which made the tries first."""

    pool: WorkerPool

    @property
    def whole_groups(self) -> bool:
        return self.pool.whole_groups

    async def check(self) -> None:
        await self.pool.check()

    async def verify(self, problem: Problem, rollouts: Sequence[Rollout]) -> Sequence[Verdict]:
        first = rollouts[0]
        held_out = problem.id if first.epoch == 0 else ""
        made = first.epoch, first.step, first.position, first.index, held_out
        for _ in range(2):
            async with self.pool.lend(made) as worker:
                served = ServedTry(next(self.pool.numbers), worker)
                try:
                    verdicts: Sequence[Verdict] = await served.ask("verify", problem, rollouts)
                    return verdicts
                except WorkerLost as lost:
                    unjudged = Verdict(None, error=f"failed: {lost}")
        return [unjudged] * len(rollouts)

    async def aclose(self) -> None:
        """The pool is closed by whoever made it."""


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
    """A rollout, or what is judged, that a worker has under way: it asks through its `policy`."""

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
