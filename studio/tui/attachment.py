"""The run that the screen shows: starting its process, its session, drafts, rate and messages."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from engines.core.errors import StudioError
from engines.core.state.run_state import RunState
from engines.core.types import Names
from studio.facts.next_command import curation_text
from studio.report.progress import StepClock
from studio.session.session import (
    ControllerChanged,
    Disconnected,
    EventReceived,
    Message,
    Session,
    SnapshotReceived,
)
from studio.tui import drafts, header
from studio.tui.navigation import Navigation
from studio.tui.page import Host
from studio.tui.pages.start.page import StartPage
from studio.tui.terminal.textual_parts import TerminalApp

if TYPE_CHECKING:
    from studio.run.detached import StartingProcess


LEAVE_S = 1.0
"""Longer than this no process that hangs keeps a screen from closing."""


class Attachment:
    """One run at a time: `session`, `run` once it is attached to, or the one that is `starting`.

    `app` and `host` are the same object; the pages of `navigation` hear every message.
    """

    def __init__(
        self,
        app: TerminalApp,
        host: Host,
        navigation: Navigation,
        *,
        session: Session | None,
        run: str | None,
        starting: "StartingProcess | None",
    ) -> None:
        self._app, self._host, self._navigation = app, host, navigation
        self.session = session
        self.shown_run = run  # the last one, also once the screen is left
        self.ended_here = ""  # how the run ended while the screen was attached
        self._ending = ""  # as it was at the last look
        self.drafts = drafts.Drafts(None)
        self._throughput = Throughput()
        self._budget: dict[str, float] = {}  # limits of the run: calls, tokens, cost_usd
        self._is_cut = False  # the connection to the process; it is being tried again
        self._reader: asyncio.Task[None] | None = None
        self.starting = starting
        self._arguments: Names = ()  # what a start under way was asked with
        self._came_from_start = False  # errors are shown on the start page, then

    @property
    def state(self) -> RunState | None:
        return self.session.state if self.session is not None else None

    @property
    def is_living(self) -> bool:
        return self.session is not None and self.session.living

    @property
    def status(self) -> header.SessionStatus:
        session, eta, rate = self.session, "", 0.0
        is_held = session is not None and session.state.status in ("paused", "held")
        if session is not None and not (is_held or session.state.undecided_operations):
            eta = self._throughput.steps.remaining_text(session.state)
        if self.is_living and not is_held:
            rate = self._throughput.rate(self._host.clock())
        driver = session.controller if session is not None else ""
        if driver == self._host.person:
            driver = "another screen"
        return header.SessionStatus(
            living=self.is_living,
            drives=session is not None and session.controls,
            driver=driver,
            starting=self.starting is not None or bool(self._arguments),
            starting_stage=self.starting.stage if self.starting is not None else "",
            opening=session is not None and session.state.started is None,
            parted=self._is_cut,
            ready=session is not None and session.state.live.stage_name == "ready",
            tokens_per_s=rate or None,
            budget=self._budget,
            replay=session.label if session is not None else "",
            pace_tokens_per_s=session.pace_tokens_per_s if session is not None else None,
            eta=eta,
        )

    # -- starting ------------------------------------------------------------------------

    def wait_for(self, starting: "StartingProcess") -> None:
        """Attach to the run of this process once it is ready."""
        self.starting = starting
        # Made when it is begun: a screen that is left before has nothing that was never awaited.
        work: Any = partial(self._wait_for, starting)
        self._app.run_worker(work)

    async def _wait_for(self, starting: "StartingProcess") -> None:
        from studio.run.detached import ReadyRun

        self._host.tell("starting the run …")
        outcome = await starting.wait_ready()
        if self.starting is starting:
            self.starting, self._arguments = None, ()
        if isinstance(outcome, ReadyRun):
            if outcome.text:
                said = outcome.text.splitlines()  # what it did by the way is done by now
                self._host.tell("; ".join(text for text in said if not text.endswith("…")))
            self.attach(outcome.run)
        elif self._came_from_start:
            self.show_refusal(outcome.text)
        else:
            self._app.exit(outcome.code)

    def show_refusal(self, text: str) -> None:
        """A run could not be started from here: say why, whole, where it was asked for."""
        self._host.tell(text, "failed")
        page = self._navigation.page("start")
        if isinstance(page, StartPage):
            page.show_refusal(text)
        self._host.redraw_soon()

    def start_run(self, arguments: Sequence[str]) -> None:
        """Start a run's process and attach to it; errors are shown on the start page."""
        if self._arguments == tuple(arguments):
            self._host.tell("it is being started already")
            return
        self._arguments = tuple(arguments)
        # After every decision that was asked for before.
        self._host.queue_request(self._start_run(self._arguments))
        self._host.redraw_soon()

    async def _start_run(self, arguments: Names) -> None:
        from studio.run import detached

        self._came_from_start = True
        session = self.session
        try:
            if session is not None:
                await session.release_lock()  # else the process finds its run taken, by us
            self.wait_for(detached.start(arguments, self._host.workspace.path))
        except StudioError as error:
            self._arguments = ()
            self.show_refusal(str(error))
        else:
            self._host.draw_now()

    # -- opening and closing -------------------------------------------------------------

    def attach(self, run: str) -> None:
        work: Any = partial(self._attach_to, run)
        self._app.run_worker(work, exclusive=True, group="attach")

    async def _attach_to(self, run: str) -> None:
        # Imported late: the first frame waits for no module of a run.
        from studio.session.live import LiveSession

        workspace, person = self._host.workspace, self._host.person
        try:
            folder = workspace.run(run)
        except StudioError as error:
            self._host.tell(str(error), "failed")
            return
        await self.close()
        self.shown_run = run

        def open_offline() -> Session:
            # Imported only without a process: the linter takes most of a second.
            from studio.run.held_out import LazyLinter
            from studio.session.offline import OfflineSession

            linter = LazyLinter(workspace, folder, lambda _: None)
            return OfflineSession(workspace, folder, person, linter=linter)

        self.listen(LiveSession(folder, person, fallback=open_offline))
        if self._host.page_name == "start":
            self._host.open_page("live")

    def listen(self, session: Session) -> None:
        self.session = session
        self._is_cut, self._budget = False, {}
        self.drafts = drafts.Drafts(None if session.label else session.run)  # a replay writes none
        self._throughput = Throughput()
        self._reader = asyncio.create_task(self._read_messages(session))

    async def close(self) -> None:
        session, self.session = self.session, None
        self.drafts.save()
        if self._reader is not None:
            self._reader.cancel()
            self._reader = None
        if session is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LEAVE_S):
                    await session.close()

    # -- messages ------------------------------------------------------------------------

    async def _read_messages(self, session: Session) -> None:
        try:
            async for message in session.messages():
                if session is not self.session:
                    return
                self._handle_message(message)
        except Exception as error:  # a bug: without this the task would end in silence
            self._app.report_bug(error)

    def _handle_message(self, message: Message) -> None:
        now = self._host.clock()
        self._is_cut = isinstance(message, Disconnected) and not message.ended
        match message:
            case EventReceived() if self.session is not None:
                self._follow_state(self.session.state, now)
            case SnapshotReceived():
                if self.session is not None:
                    self._ending = self.session.state.ending
                    self._throughput.update(self.session.state, now)
                if self.session is not None and self.is_living:
                    self._app.run_worker(self._ask_budget(self.session))
                self.drafts.writes = self.session is None or self.session.controls
                self._app.call_after_refresh(self._restore_place)
            case ControllerChanged(mine=mine, who=who):
                self._change_controller(mine, who)
            case Disconnected(reason=reason, ended=ended):
                session = self.session
                if not ended:
                    self._host.tell(f"{reason}; trying again", "failed")
                elif session and not session.label and session.state.ending == "finished":
                    over = "the run is finished, and its process has ended"
                    self._host.tell(curation_text(session.state) or over)
                else:
                    self._host.tell(reason)
        for page in self._navigation.pages:
            page.handle_message(message)
        self._host.redraw_soon()

    def _follow_state(self, state: RunState, now: float) -> None:
        self._throughput.update(state, now)
        if state.ending and not self._ending:
            self.ended_here = state.ending
        self._ending = state.ending

    def _change_controller(self, mine: bool, who: str) -> None:
        """Who decides keeps the drafts: they go from screen to screen through their file."""
        if mine and not self.drafts.writes:
            self.drafts.take_over_file()
        elif not mine:
            self.drafts.save()
        self.drafts.writes = mine
        if not mine and (self.session is None or self.is_living):
            self._host.tell(f"{who or 'nobody'} decides now; T takes over")

    def _restore_place(self) -> None:
        """Once a run is known: the page and place the person left it at."""
        if self.drafts.restored:
            return
        self.drafts.restored = True
        page, cursor = self.drafts.left_at
        navigation = self._navigation
        # Who chose a run on the start page wants to see that run.
        is_page = page != "start" and any(page == known.scope for known in navigation.pages)
        if is_page and navigation.page_name in ("live", "start"):
            navigation.open_page(page, cursor, keep_trail=True)
        self.drafts.page = navigation.page_name

    async def _ask_budget(self, session: Session) -> None:
        """Its limits hold as long as the run's process lives."""
        with contextlib.suppress(StudioError):
            answer = await session.status()
            if session is self.session:
                self._budget = dict(answer.get("budget", {}))
                self._host.redraw_soon()


_WINDOW_S = 60.0


class Throughput:
    """How fast a run goes, in tokens a second; in seconds of any monotonic clock."""

    def __init__(self) -> None:
        self.steps = StepClock()
        self._since: float | None = None  # when it was looked at first
        self._paid: int | None = None  # reply tokens of the run so far
        self._ended: deque[tuple[float, int]] = deque()  # when, and tokens of calls that ended

    def update(self, state: RunState, now: float) -> None:
        """Count what has ended since the last look; before the first one it says nothing."""
        self._since = now if self._since is None else self._since
        self.steps.update(state, now)
        before, self._paid = self._paid, state.total_usage.completion_tokens
        if before is not None and self._paid > before:
            self._ended.append((now, self._paid - before))

    def rate(self, now: float) -> float:
        """Tokens a second of the calls that ended in the last minute, or since the first look."""
        since = now if self._since is None else self._since
        observed_s = min(_WINDOW_S, max(1.0, now - since))
        while self._ended and self._ended[0][0] < now - observed_s:
            self._ended.popleft()
        return sum(tokens for _, tokens in self._ended) / observed_s
