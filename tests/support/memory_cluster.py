"""A cluster whose workers live in the test's own process, and lose what a real one would lose.

All that goes across is pickled, as it is between processes; a worker is killed when it has taken or
sent a chosen number of items.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from engines.core.errors import StudioError, WorkerLost
from engines.core.protocols import Agent, OnText, TryPolicy, Verifier
from engines.core.types import Attempt, Job, Sampling
from engines.rollouts.remote.line import Item
from engines.rollouts.remote.worker import OpenParts, Worker, WorkerParts
from engines.rollouts.remote.worker_pool import RunModels, WorkerPool


def across(value: Any) -> Any:
    """A value as it comes out of another process."""
    return pickle.loads(pickle.dumps(value))


class MemoryProcess:
    """One worker. It is killed once `lives` items went across; None: it lives."""

    def __init__(self, open_parts: OpenParts, node: str, lives: int | None = None) -> None:
        self.node, self.lives, self.passed = node, lives, 0
        self._open_parts = open_parts
        self._sent: asyncio.Queue[Item] = asyncio.Queue()
        self._dead = asyncio.Event()
        self.worker = Worker(self._sent.put_nowait, _fetch)

    async def open(self, wanted: Any, files: Any) -> dict[str, Any]:
        return across(await self.worker.open(self._open_parts, wanted, files))  # type: ignore[no-any-return]

    async def push(self, items: Sequence[Item]) -> None:
        for item in items:
            self._count()
            self.worker.line.receive(across(item))

    async def poll(self) -> Sequence[Item]:
        coming, dead = (
            asyncio.ensure_future(work) for work in (self._sent.get(), self._dead.wait())
        )
        try:
            await asyncio.wait((coming, dead), return_when=asyncio.FIRST_COMPLETED)
            if self._dead.is_set():
                raise WorkerLost(self.node, "it was killed")
            self._count()
            return (across(coming.result()),)
        finally:
            coming.cancel()
            dead.cancel()

    def kill(self) -> None:
        """As a real kill: what it does just then ends, and nothing more comes of it."""
        self._dead.set()
        for task in self.worker.line.working:
            task.cancel()

    def _count(self) -> None:
        self.passed += 1
        if self._dead.is_set() or self.passed == self.lives:
            self.kill()
            raise WorkerLost(self.node, "it was killed")


@dataclass
class MemoryCluster:
    """`lives` are those of its workers, in the order in which they are added."""

    open_parts: OpenParts
    lives: Sequence[int | None] = ()
    processes: list[MemoryProcess] = field(default_factory=list)
    refusal: StudioError | None = None

    async def start(self) -> None:
        if self.refusal is not None:
            raise self.refusal

    async def add_worker(self) -> MemoryProcess:
        number = len(self.processes)
        lives = self.lives[number] if number < len(self.lives) else None
        self.processes.append(MemoryProcess(self.open_parts, f"n{number}", lives))
        return self.processes[-1]

    def share(self, value: Any) -> Any:
        return [value]

    async def aclose(self) -> None:
        for process in self.processes:
            process.kill()


async def _fetch(handle: Any) -> Any:
    return handle[0]


@asynccontextmanager
async def on_cluster(
    make_agent: Callable[[Sampling], Agent],
    verifier: Verifier | None = None,
    models: RunModels | None = None,
    *,
    workers: int = 1,
    lives: Sequence[int | None] = (),
    tries_per_worker: int = 8,
    tell: Callable[[str], None] = lambda _: None,
) -> AsyncIterator[WorkerPool]:
    """A pool that is ready, with workers that have this agent and this verifier."""

    async def nothing() -> dict[str, Any]:
        return {}

    @asynccontextmanager
    async def open_parts(wanted: Any, files: Any, worker: Worker) -> AsyncIterator[WorkerParts]:
        yield WorkerParts(make_agent, verifier, nothing)

    def resolve(ref: Any) -> Any:
        raise AssertionError(f"nobody is called {ref}")

    pool = WorkerPool(
        MemoryCluster(open_parts, lives),
        lambda: (None, None),
        models or RunModels(resolve, ()),
        wanted_workers=workers,
        tries_per_worker=tries_per_worker,
        tell=tell,
    )
    await pool.check()
    try:
        yield pool
    finally:
        await pool.aclose()


@dataclass(frozen=True)
class OnWorker:
    """An agent that makes each try on a worker of its own cluster."""

    agent: Agent

    async def attempt(self, job: Job, policy: TryPolicy, on_text: OnText | None = None) -> Attempt:
        async with on_cluster(lambda _: self.agent) as pool:
            return await pool.agent(Sampling()).attempt(job, policy, on_text)
