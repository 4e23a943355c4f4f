"""Starts a run's process from the screen, and waits until it says which run it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from engines.core.errors import StudioError
from studio.tui.attachment import Attachment
from studio.tui.host import Host
from studio.tui.navigation import Navigation
from studio.tui.pages.start.page import StartPage
from studio.tui.terminal.textual_parts import TerminalApp

if TYPE_CHECKING:
    from studio.run.detached import StartingProcess


class RunStarter:
    """At most one run is being started; `app` and `host` are the same object.

    `starting` is a process that was started before the screen opened.
    """

    def __init__(
        self,
        app: TerminalApp,
        host: Host,
        navigation: Navigation,
        attachment: Attachment,
        *,
        starting: StartingProcess | None = None,
    ) -> None:
        self._app, self._host, self._navigation = app, host, navigation
        self._attachment = attachment
        self.starting = starting
        self._arguments: tuple[str, ...] = ()  # what a start under way was asked with
        self._came_from_start = False  # errors are shown on the start page, then

    @property
    def is_starting(self) -> bool:
        return self.starting is not None or bool(self._arguments)

    def wait_for(self, starting: StartingProcess) -> None:
        """Attach to the run of this process once it is ready."""
        self.starting = starting
        self._app.run_worker(self._wait_for(starting))

    async def _wait_for(self, starting: StartingProcess) -> None:
        from studio.run.detached import ReadyRun

        self._host.tell("starting: reading the run file, sending the model a first request …")
        outcome = await starting.wait_ready()
        if self.starting is starting:
            self.starting, self._arguments = None, ()
        if isinstance(outcome, ReadyRun):
            if outcome.warning:
                self._host.tell(outcome.warning, "flag")
            elif outcome.text:
                self._host.tell("; ".join(outcome.text.splitlines()))
            self._attachment.attach(outcome.run)
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

    async def _start_run(self, arguments: tuple[str, ...]) -> None:
        from studio.run import detached

        self._came_from_start = True
        session = self._host.session
        try:
            if session is not None:
                await session.release_lock()  # else the process finds its run taken, by us
            self.wait_for(detached.start(arguments, self._host.workspace.path))
        except StudioError as error:
            self._arguments = ()
            self.show_refusal(str(error))
        else:
            self._host.draw_now()
