"""A session with a run that has no process: decisions go into its journal, under its lock.

A worker thread holds the lock (which belongs to the thread that took it) and runs the gate. A run
that has not finished commits nothing here: it commits when it is resumed.
"""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from shlex import quote
from typing import Any, TypeVar

from engines.core.errors import ConflictError, LockedError
from engines.core.events import DurableEvent, TransientEvent, is_durable
from engines.core.protocols import Linter
from engines.core.state.fold import fold
from engines.pipeline.gate.gate import Gate
from engines.pipeline.recorder import Listener, Recorder
from engines.record.derived import catalogue, run_state
from engines.record.lock import write_lock
from engines.record.run_dir import RunDir, Workspace
from studio.session import control_socket, requests, session

IDLE_S = 3.0
"""After so long without a request the lock is released; the next request takes it again.

Short, since no process can resume the run meanwhile; taking it again costs no more than
reading the journal.
"""
SCREEN = "a person's screen, which lets go a few seconds after a decision,"
"""Who holds the lock, in the words of whoever is refused meanwhile."""

T = TypeVar("T")


class LockedRun(requests.OpenRun):
    """A run without a process, under its lock; used by the thread that took it."""

    def __init__(
        self, workspace: Workspace, run: RunDir, gate: Gate, runner: asyncio.Runner, events: int
    ) -> None:
        super().__init__(run, gate)
        self.workspace = workspace
        self.runner = runner
        self.events_read = events  # what the journal held when the lock was taken

    def perform(self, request: requests.Request[T]) -> T:
        with self.gate.recorder.carrying_out(request.id):
            return self.runner.run(request.perform(self))

    async def commit(self, step: int, reviewer: str) -> str:
        """Commit the decisions of a finished run."""
        from engines.record.formats.rows import refresh_agent
        from engines.record.seal import refuse_altered

        run, state = self.run, self.state
        if state.status != "finished":
            left = len(state.open_operations)
            what = f"{left} still open" if left else "every operation is decided"
            move = f"`studio headless --resume {run.run}` goes on and commits"
            return f"{what}; decisions are kept: {move}"
        if not state.reviewed_operations:
            return "nothing is decided, so nothing was committed"
        refuse_altered(run.agent_file)  # before anything is committed
        before = state.base_version
        library = (await self.gate.commit(0)).library
        if not state.curates:  # it has no agent of its own
            refresh_agent(run.agent_file, library, run.run, self.workspace.mask)
        if library.version == before:
            return f"nothing was committed: library {library.name} stays at v{before}"
        return f"committed: library {library.name} is at v{library.version}"


class OfflineSession(session.Session):
    """One person at a run's journal. Used from one event loop.

    The `linter` flags edits and own operations, in the worker thread; None: nothing does. With
    `idle_s` None the lock is held from the first request until `close`. One that another has is
    waited for `wait_s`.
    """

    controls = True

    def __init__(
        self,
        workspace: Workspace,
        run: RunDir,
        who: str,
        *,
        linter: Linter | None = None,
        holder: str = SCREEN,
        idle_s: float | None = IDLE_S,
        wait_s: float = 0.0,
    ) -> None:
        super().__init__(run, who)
        self.controller = who
        self._workspace, self._linter = workspace, linter
        self._holder, self._idle_s, self._wait_s = holder, idle_s, wait_s
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="offline-session")
        self._stack = contextlib.ExitStack()  # used by the worker thread alone, as `_locked` is
        self._locked: LockedRun | None = None
        self._opening: list[DurableEvent | TransientEvent] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._releasing: asyncio.Task[None] | None = None
        self._wrote = False  # something was journalled since the lock was taken
        self._read = False

    async def _begin(self) -> None:
        async with self._turn:
            await self._load_state()

    def subscribe(self, rollouts: Collection[str]) -> None:
        """No rollout is running here."""

    async def take_control(self) -> None:
        """Nobody else can decide here."""

    async def release_lock(self) -> None:
        async with self._turn:
            await self._release()

    async def close(self) -> str:
        await self.release_lock()
        self.closed = True
        self._end_queue()
        if self._releasing is not None:
            await asyncio.gather(self._releasing, return_exceptions=True)
        self._worker.shutdown(wait=False)
        run = quote(self.run.run)
        if self.state.status != "finished":
            return f"go on with: studio headless --resume {run}"
        if self.state.reviewed_operations:
            kept = len(self.state.reviewed_operations)
            what = "1 decision is kept" if kept == 1 else f"{kept} decisions are kept"
            return f"{what} for the next commit: studio review {run}"
        return f"come back with: studio attach {run}"

    async def send(self, request: requests.Request[T]) -> T:
        """Carry a request out in the worker thread, under the run's lock, which the first takes."""
        async with self._turn:
            place = f"run {self.run.run}"
            if request.needs_process:
                await self._load_state()
                move = f"Start it with `studio headless --resume {quote(self.run.run)}` (s r)."
                if self.state.ending == "finished":
                    move = "Nothing is left of it to run."
                raise ConflictError(place, "no process of it is running.", move)
            if self.closed:
                raise ConflictError(place, "its session is closed.", "Open it again.")
            await self._load_state()
            try:
                if self._locked is None:
                    await self._take_lock()
                assert self._locked is not None
                answer: T = await self._in_worker(self._locked.perform, request)
                if isinstance(request, requests.Commit):
                    await self._release()
                return answer
            finally:
                if self._idle_s is not None and self._wrote:
                    if self._idle is not None:
                        self._idle.cancel()
                    self._idle = asyncio.get_running_loop().call_later(self._idle_s, self._on_idle)
                elif self._idle_s is not None:  # nothing was written: nobody need wait for us
                    await self._release()

    async def _load_state(self) -> None:
        if not self._read and not self.closed:
            self._loop = asyncio.get_running_loop()
            self.state = await self._in_worker(self.run.state)
            self._read = True
            self._enqueue(session.SnapshotReceived())
            self._enqueue(session.ControllerChanged(True, self.controller))

    async def _take_lock(self) -> None:
        self._opening = []
        holder, on_event = self._holder, self._on_event
        lock = lock_run(
            self._workspace, self.run, self._linter, self._wait_s, holder=holder, on_event=on_event
        )
        locked: LockedRun = await self._in_worker(self._stack.enter_context, lock)
        self._locked = locked
        opening, self._opening = self._opening, None
        if locked.events_read == self.state.events:
            for event in opening:  # the library had moved, so the gate took decisions back
                self._apply_event(event)
        else:  # another process wrote since the state was read
            self.state = await self._in_worker(self.run.state)
            self._wrote = bool(opening)
            self._enqueue(session.SnapshotReceived())

    def _on_event(self, event: DurableEvent | TransientEvent) -> None:
        """An event is on disk; called in the worker thread."""
        assert self._loop is not None
        if self._opening is not None:  # the worker alone touches it until the lock is taken
            self._opening.append(event)
        else:
            self._loop.call_soon_threadsafe(self._apply_event, event)

    def _apply_event(self, event: DurableEvent | TransientEvent) -> None:
        self._wrote = self._wrote or is_durable(event)
        fold(self.state, event)
        self._enqueue(session.EventReceived(event))

    def _on_idle(self) -> None:
        self._releasing = asyncio.create_task(self.release_lock())

    async def _release(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if self._locked is None:
            return
        self._locked = None
        wrote, self._wrote = self._wrote, False
        await self._in_worker(self._stack.close)
        if wrote:
            await self._in_worker(catalogue.refresh_catalogue, self._workspace)

    async def _in_worker(self, do: Callable[..., T], *arguments: Any) -> T:
        # Shielded: whoever stops waiting must not leave half a decision behind.
        working = asyncio.get_running_loop().run_in_executor(self._worker, do, *arguments)
        return await asyncio.shield(working)


@contextlib.contextmanager
def lock_run(
    workspace: Workspace,
    run: RunDir,
    linter: Linter | None,
    wait_s: float = 0.0,
    *,
    holder: str,
    on_event: Listener = lambda _: None,
) -> Iterator[LockedRun]:
    """Take the lock of a run without a process, and open its gate.

    Used by one thread. `holder` is what others are told who has the lock.
    """
    with write_lock(run.path, who=holder, timeout_s=wait_s), asyncio.Runner() as runner:
        if control_socket.is_alive(run):
            raise LockedError(str(run.path), "a process just took it up.", "Try again.")
        journal, state = run_state.open_run(run.journal, mask=workspace.mask)
        try:
            if state.started is None:
                move = f"remove it: studio runs rm {run.run}."
                raise ConflictError(
                    f"run {run.run}",
                    "it was cut off before it began: there is nothing to review.",
                    f"Start it again with `studio headless`, or {move}",
                )
            events_read = state.events
            recorder = Recorder(journal, state)
            recorder.listen(on_event)
            library, limit = state.started.library, state.settings.get("practice.library_limit")
            folder = workspace.library(library)
            gate = Gate(recorder, folder, (), run=run.run, limit=limit, linter=linter)
            runner.run(gate.follow_head(state.step))
            yield LockedRun(workspace, run, gate, runner, events_read)
        finally:
            runner.run(journal.aclose())
