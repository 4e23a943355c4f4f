"""A screen at a run that has no process: its journal is read, and decided in under its lock.

Keeps the protocol `studio.session.base.Session`. Owns one worker thread, in which the run's
own desk lives, since its lock belongs to the thread that took it; and how long the lock is
held: from the first decision of a sitting until nothing has been asked for a while.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from shlex import quote
from typing import Any, TypeVar

from engines.core.errors import ConflictError, StudioError
from engines.core.events import DurableEvent, TransientEvent
from engines.core.state.fold import fold
from engines.core.state.run_state import RunState
from engines.core.types import Decision, Operation
from engines.record.catalogue import write_run_row
from engines.record.run_dir import RunDir, Workspace
from studio.session.base import (
    ControllerChanged,
    DecisionPreview,
    EventReceived,
    Message,
    SnapshotReceived,
    VersionedReviewQueue,
)
from studio.session.client import status_of
from studio.session.offline import OfflineReviewSession, open_offline_review, read_review_queue

IDLE_S = 3.0
"""Without a request for so long the lock is given back; the next one takes it again.

Short, since nobody can take the run up meanwhile; a pause between two decisions costs the next
one no more than reading the journal.
"""
SITS = "a person's screen, which lets go a few seconds after a decision,"
"""Who holds the lock, for whoever is refused meanwhile."""

T = TypeVar("T")


class OfflineSession:
    """One screen at a run's journal. Used from one event loop.

    Args:
        workspace: where the run lies.
        run: the run.
        who: sits here.
        tell: hears what could not be done as it should be; called in the worker thread.
        idle_s: see `IDLE_S`.
    """

    living = False
    controls = True
    pace_tokens_per_s: float | None = None

    def __init__(
        self,
        workspace: Workspace,
        run: RunDir,
        who: str,
        *,
        tell: Callable[[str], None] = lambda _: None,
        idle_s: float = IDLE_S,
    ) -> None:
        self.run = run
        self.state = RunState()
        self.controller = who
        self._workspace, self._tell, self._idle_s = workspace, tell, idle_s
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="desk")
        self._stack = ExitStack()  # used by the worker thread alone, as the desk is
        self._desk: OfflineReviewSession | None = None
        self._opening: list[DurableEvent | TransientEvent] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._turn = asyncio.Lock()  # one request at a time
        self._idle: asyncio.TimerHandle | None = None
        self._releasing: asyncio.Task[None] | None = None
        self._wrote = False  # something was journalled since the lock was taken
        self._read = False
        self._queue: deque[Message] = deque()
        self._some = asyncio.Event()
        self._closed = False

    async def messages(self) -> AsyncIterator[Message]:
        async with self._turn:
            await self._load_state()
        while True:
            while self._queue:
                yield self._queue.popleft()
            if self._closed:
                return
            self._some.clear()
            await self._some.wait()

    def subscribe(self, rollouts: Collection[str]) -> None:
        """Nothing is under way here."""

    async def review_queue(self) -> VersionedReviewQueue:
        async with self._turn:
            await self._load_state()
            sheet = await self._in_worker(
                self._desk.review_queue
                if self._desk
                else lambda: read_review_queue(self._workspace, self.run)
            )
            return VersionedReviewQueue(
                sheet.open,
                sheet.decided,
                sheet.draft,
                sheet.stale,
                sheet.repairs,
                self.state.base_version,
            )

    async def decide(self, decision: Decision) -> tuple[Decision, str]:
        return await self._with_review_session(lambda desk: desk.decide(decision))

    async def preview(self, decision: Decision) -> DecisionPreview:
        weighed = await self._with_review_session(lambda desk: desk.lint(decision))
        return DecisionPreview(weighed.objection, weighed.flags)

    async def undo(self, operation_id: str) -> tuple[str, ...]:
        return await self._with_review_session(lambda desk: desk.undo(operation_id))

    async def propose(self, operation: Operation) -> Operation:
        return await self._with_review_session(
            lambda desk: desk.propose(operation, self.controller)
        )

    async def resubmit(self, repair_id: str, text: str, reviewer: str) -> tuple[str, ...]:
        done = await self._with_review_session(
            lambda desk: desk.resubmit(repair_id, text, reviewer)
        )
        return done.problems

    async def drop(self, repair_id: str, reason: str, reviewer: str) -> None:
        await self._with_review_session(lambda desk: desk.drop(repair_id, reason, reviewer))

    async def commit(self) -> str:
        said = await self._with_review_session(lambda desk: desk.close())
        await self.release_lock()
        return said or "nothing is decided, so nothing was committed"

    async def control(self, do: str, **arguments: Any) -> dict[str, Any]:
        if do == "status":
            async with self._turn:
                await self._load_state()
            return status_of(self.state)
        raise ConflictError(
            f"run {self.run.run}",
            "no process of it is running.",
            f"Start it with `studio headless --resume {quote(self.run.run)}` (r in the app).",
        )

    async def take_control(self) -> None:
        """Nobody else is here."""

    async def release_lock(self) -> None:
        """Give the run's lock back, so that a process can take it up; what is decided stands."""
        async with self._turn:
            await self._release()

    async def close(self) -> str:
        await self.release_lock()
        self._closed = True
        self._some.set()
        if self._releasing is not None:
            await asyncio.gather(self._releasing, return_exceptions=True)
        self._worker.shutdown(wait=False)
        run = quote(self.run.run)
        if self.state.status != "finished":
            return f"go on with: studio headless --resume {run}"
        if self.state.reviewed_operations:
            waiting = len(self.state.reviewed_operations)
            return f"{waiting} decisions are kept and wait for their commit: studio review {run}"
        return f"come back with: studio attach {run}"

    async def _with_review_session(self, ask: Callable[[OfflineReviewSession], T]) -> T:
        """Ask the desk in the worker thread; it is opened for the first question.

        Raises:
            StudioError: the gate refuses, or another process holds the run.
        """
        async with self._turn:
            self._check_open()
            await self._load_state()
            try:
                if self._desk is None:
                    await self._open()
                assert self._desk is not None
                return await self._in_worker(ask, self._desk)
            finally:
                if self._wrote:
                    self._schedule_release()
                else:  # looked at only, or refused: nobody need wait for us
                    await self._release()

    def _check_open(self) -> None:
        if self._closed:
            raise ConflictError(f"run {self.run.run}", "its session is closed.", "Open it again.")

    async def _load_state(self) -> None:
        if not self._read and not self._closed:
            self._loop = asyncio.get_running_loop()
            self.state = await self._in_worker(self.run.state)
            self._read = True
            self._enqueue(SnapshotReceived())
            self._enqueue(ControllerChanged(True, self.controller))

    async def _open(self) -> None:
        self._opening = []
        self._desk = await self._in_worker(self._enter_review_session)
        told, self._opening = self._opening, None
        if self._desk.events == self.state.events:
            for event in told:  # the library moved, and took decisions back
                self._apply_event(event)
        else:  # somebody wrote since we looked
            self.state = await self._in_worker(self.run.state)
            self._wrote = bool(told)
            self._enqueue(SnapshotReceived())

    def _enter_review_session(self) -> OfflineReviewSession:
        return self._stack.enter_context(
            open_offline_review(self._workspace, self.run, self._tell, self._on_event, who=SITS)
        )

    def _on_event(self, event: DurableEvent | TransientEvent) -> None:
        """In the worker thread: an event is on disk."""
        assert self._loop is not None
        if self._opening is not None:  # by this thread alone, until the desk is open
            self._opening.append(event)
        else:
            self._loop.call_soon_threadsafe(self._apply_event, event)

    def _apply_event(self, event: DurableEvent | TransientEvent) -> None:
        if isinstance(event, DurableEvent):
            self._wrote = True
            fold(self.state, event)
        self._enqueue(EventReceived(event))

    def _schedule_release(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        self._idle = asyncio.get_running_loop().call_later(self._idle_s, self._on_idle)

    def _on_idle(self) -> None:
        self._releasing = asyncio.create_task(self.release_lock())

    async def _release(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if self._desk is None:
            return
        self._desk = None
        wrote, self._wrote = self._wrote, False
        await self._in_worker(self._stack.close)
        if wrote:
            with contextlib.suppress(StudioError):  # it can be made anew from the journals
                await self._in_worker(write_run_row, self._workspace, self.run)

    async def _in_worker(self, do: Callable[..., T], *arguments: Any) -> T:
        # Not cut by who stops waiting: half a decision would be worse than one unheard of.
        working = asyncio.get_running_loop().run_in_executor(self._worker, do, *arguments)
        return await asyncio.shield(working)

    def _enqueue(self, message: Message) -> None:
        self._queue.append(message)
        self._some.set()
