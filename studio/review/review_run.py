"""A person's review of a run outside of the screen: at its process, or under the run's lock.

Line mode, the editor and scripts share it. Owns what `--wait` waits for (a screen that decides, the
run's next steps), and that the decisions of a finished run are committed at the end.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from shlex import quote
from typing import Any, Protocol, TypeVar

from engines.core import errors, protocols
from engines.core.types import Tell
from engines.record.run_dir import RunDir, Workspace
from studio.session import control_socket, live, offline, requests
from studio.session.session import Disconnected, Session

T = TypeVar("T")


class WaitFor(Protocol):
    """Runs a coroutine of the session's event loop, and waits for its result."""

    def __call__(self, coroutine: Coroutine[Any, Any, T], /) -> T: ...


WAIT_S = 1.0
"""Between two looks whether a screen still decides."""


class LoopThread:
    """Runs coroutines in a thread of its own, for a program that blocks at a prompt.

    A session goes on while a person thinks, so that its run never waits for a slow reader. Used as
    a context manager.
    """

    def __enter__(self) -> "LoopThread":
        self._runner = asyncio.Runner()
        self._loop = self._runner.get_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="session")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._runner.close()  # cancels the tasks that are left

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()  # nobody waits for it any more
            raise


@contextlib.contextmanager
def open_session(
    workspace: Workspace, run: RunDir, who: str, linter: protocols.Linter | None = None
) -> Iterator[tuple[Session, WaitFor]]:
    """A script's session with a run, and what waits for its answers.

    It never controls the run. Without a process the run's lock is held until the end.
    """
    with LoopThread() as loop:
        session: Session
        if control_socket.is_alive(run):
            session = live.LiveSession(run, who, as_screen=False)
        else:
            holder = "a person's `studio review`"
            session = offline.OfflineSession(
                workspace, run, who, linter=linter, holder=holder, idle_s=None
            )
        try:
            yield session, loop.run
        finally:
            loop.run(session.close())


@dataclass(eq=False)
class RunReview:
    """One person's review of one run.

    With `waits` a screen that decides is waited for, and the run's next steps are. `say` prints an
    answer, `tell` what happens meanwhile.
    """

    session: Session
    wait_for: WaitFor
    waits: bool
    say: Tell
    tell: Tell
    committed: bool = False  # its closing made a version of the library
    ended: bool = False  # the process of the run, while it was reviewed
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def has_process(self) -> bool:
        return isinstance(self.session, live.LiveSession)

    def wait_until_allowed(self, ask: Callable[[], bool]) -> bool:
        """Ask, once no screen decides where that is waited for; True where the process ended."""
        while True:
            try:
                return ask()
            except requests.ControlledElsewhereError as error:
                if not self.waits:
                    raise
                self.tell(f"{error.cause} Waiting until it is left; Ctrl-C ends the waiting")
                self.wait_for(self._wait_until_left())
            except requests.NotRunningError:
                self.ended = True
                return True

    def read_queue(self) -> requests.ReviewQueue:
        return self.wait_for(self.session.send(requests.ReadQueue()))

    def closing_text(self) -> str:
        """Leave in good order; what happened, or how to go on, "" where nothing need be said."""
        if self.ended and not self.session.living:
            return f"the process of run {self.session.run.run} has ended"
        if not self.has_process:
            state = self.session.state
            if state.status == "finished" and not state.reviewed_operations:
                return ""
            before = state.base_version
            said = self.wait_for(self.session.send(requests.Commit(state.step, self.session.who)))
            self.committed = self.session.state.library_version > before
            return said
        status = self.wait_for(self.session.status())
        if not self.session.living or status["undecided"] or status["step"] >= status["steps"]:
            return ""
        run = quote(self.session.run.run)
        return f"the run goes on; `studio review {run} --wait` stays for its next steps"

    async def start_listening(self) -> None:
        self._listening = asyncio.create_task(self._listen())
        # What it fails of, as at a damaged journal, the next question fails of, too, and tells it;
        # asyncio would print a traceback of it.
        self._listening.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def _listen(self) -> None:
        before: object = None
        async for message in self.session.messages():
            state = self.session.state
            waiting = {*(op.id for op in state.open_operations), *state.repairs}
            if waiting != before:
                before = waiting
                self._changed.set()
            if isinstance(message, Disconnected):
                self.ended = self.ended or (message.ended and self.has_process)
                self._changed.set()

    async def wait_for_change(self) -> None:
        """Wait until something new may be open, or the run's process has ended."""
        changed = asyncio.create_task(self._changed.wait())
        await asyncio.wait({changed, self._listening}, return_when=asyncio.FIRST_COMPLETED)
        changed.cancel()
        self._changed.clear()
        if self._listening.done():
            self._listening.result()  # of what it failed: nothing more will be heard

    async def _wait_until_left(self) -> None:
        """Return once no screen decides any more, or the process has ended."""
        with contextlib.suppress(errors.ConflictError):
            while True:
                await asyncio.sleep(WAIT_S)
                with contextlib.suppress(requests.ControlledElsewhereError):
                    await self.session.send(requests.ReadQueue())
                    return
