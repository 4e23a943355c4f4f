"""`studio review` from its start to its end: at a running process, or under the run's lock.

Owns what `--wait` waits for (a screen that decides, the run's next steps), what is said at the
end, and that the decisions of a finished run are committed then.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from shlex import quote

from engines.core import events as ev
from engines.core.errors import ConflictError
from engines.core.protocols import Linter
from engines.record.run_dir import RunDir, Workspace
from studio.report.summary import count_text
from studio.review.evidence import EvidenceLoader
from studio.review.line_mode import Ask, Edit, LineReview, WaitFor
from studio.review.loop_thread import LoopThread
from studio.session.base import Disconnected, EventReceived, Session, SnapshotReceived
from studio.session.client import is_alive
from studio.session.live import LiveSession
from studio.session.offline import OfflineSession
from studio.session.protocol import ControlledElsewhereError, NotRunningError

WAIT_S = 1.0
"""Between two looks whether a screen still decides."""
_CHANGES_THE_QUEUE = (
    ev.StageEntered,
    ev.GroupReflected,
    ev.OperationProposed,
    ev.LessonReturned,
    ev.DecisionUndone,
)


@contextlib.contextmanager
def open_session(
    workspace: Workspace, run: RunDir, who: str, linter: Linter | None = None
) -> Iterator[tuple[Session, WaitFor]]:
    """A script's session with a run, and what waits for its answers.

    It never controls the run. Without a process the run's lock is held until the end.
    """
    with LoopThread() as loop:
        session: Session = (
            LiveSession(run, who, as_screen=False)
            if is_alive(run)
            else OfflineSession(
                workspace,
                run,
                who,
                linter=linter,
                holder="a person's `studio review`",
                idle_s=None,
            )
        )
        try:
            yield session, loop.run
        finally:
            loop.run(session.close())


class RunReview:
    """One person's review of one run.

    Args:
        session: with the run.
        wait_for: waits for what the session answers.
        waits: a screen that decides is waited for, and the run's next steps are.
        say: prints an answer.
        tell: prints what happens meanwhile.
    """

    def __init__(
        self,
        session: Session,
        wait_for: WaitFor,
        *,
        waits: bool,
        say: Callable[[str], None],
        tell: Callable[[str], None],
    ) -> None:
        self._session, self._wait_for = session, wait_for
        self._say, self._tell = say, tell
        self._run = session.run
        self._waits = waits
        self._has_process = isinstance(session, LiveSession)
        self._ended = False  # the process of the run, while it was reviewed
        self._changed = asyncio.Event()
        self._listening: asyncio.Task[None] | None = None

    def run(self, *, reviewer: str, ask: Ask, edit: Edit) -> None:
        """Ask about all that is open; commit the decisions of a finished run."""
        self._wait_for(self._start_listening())
        follows = self._waits and self._has_process
        is_empty = self._while_allowed(self._is_empty)
        if self._waits and not follows:
            self._tell(
                f"note: no process of run {self._run.run} goes on, so there is nothing to wait for"
            )
        if is_empty:
            self._say(f"run {self._run.run}: nothing is open")
            if not follows:
                if self._has_process and (closing := self._closing_text()):
                    self._say(closing)
                return
        review = LineReview(
            self._session,
            EvidenceLoader(self._run),
            wait_for=self._wait_for,
            reviewer=reviewer,
            ask=ask,
            edit=edit,
            say=self._say,
        )
        try:
            self._ask_until_left(review, follows)
        finally:
            self._say(self._count_text(review))
            if closing := self._closing_text():
                self._say(closing)

    def _ask_until_left(self, review: LineReview, follows: bool) -> None:
        settled = -1
        while self._while_allowed(review.run) and follows and not self._ended:
            if settled != (settled := review.decided_count + review.settled_count):
                self._tell("waiting for the run's next step; Ctrl-C ends the waiting, not the run")
            self._wait_for(self._wait_for_change())

    def _while_allowed(self, ask: Callable[[], bool]) -> bool:
        """Ask, once no screen decides where that is waited for; True where the process ended.

        Raises:
            ControlledElsewhereError: a screen decides, and it is not waited for.
        """
        while True:
            try:
                return ask()
            except ControlledElsewhereError as error:
                if not self._waits:
                    raise
                self._tell(f"{error.cause} Waiting until it is left; Ctrl-C ends the waiting")
                self._wait_for(self._wait_until_left())
            except NotRunningError:
                self._ended = True
                return True

    def _is_empty(self) -> bool:
        queue = self._wait_for(self._session.review_queue())
        return not queue.open and not queue.repairs

    def _count_text(self, review: LineReview) -> str:
        state = self._run.state()
        counts = [f"{review.decided_count} decided, {len(state.open_operations)} open"]
        if review.settled_count or state.repairs:
            counts.append(
                f"{count_text(review.settled_count, 'reply', 'replies')} settled, "
                f"{len(state.repairs)} to mend"
            )
        return f"run {self._run.run}: {'; '.join(counts)}"

    def _closing_text(self) -> str:
        """Leave in good order; what happened, or how to go on, "" where nothing need be said."""
        if self._ended and not self._session.living:
            return f"the process of run {self._run.run} has ended"
        if not self._has_process:
            state = self._session.state
            if state.status == "finished" and not state.reviewed_operations:
                return ""
            return self._wait_for(self._session.commit())
        status = self._wait_for(self._session.control("status"))
        if not self._session.living or status["undecided"] or status["step"] >= status["steps"]:
            return ""
        run = quote(self._run.run)
        return f"the run goes on; `studio review {run} --wait` stays for its next steps"

    async def _start_listening(self) -> None:
        self._listening = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        async for message in self._session.messages():
            match message:
                case SnapshotReceived():
                    self._changed.set()
                case EventReceived(event=event) if isinstance(event, _CHANGES_THE_QUEUE):
                    self._changed.set()
                case Disconnected(ended=ended):
                    self._ended = self._ended or (ended and self._has_process)
                    self._changed.set()

    async def _wait_for_change(self) -> None:
        """Wait until something new may be open, or the run's process has ended."""
        assert self._listening is not None
        changed = asyncio.create_task(self._changed.wait())
        await asyncio.wait({changed, self._listening}, return_when=asyncio.FIRST_COMPLETED)
        changed.cancel()
        self._changed.clear()

    async def _wait_until_left(self) -> None:
        """Return once no screen decides any more, or the process has ended."""
        with contextlib.suppress(ConflictError):
            while True:
                await asyncio.sleep(WAIT_S)
                with contextlib.suppress(ControlledElsewhereError):
                    await self._session.review_queue()
                    return
