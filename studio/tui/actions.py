"""What the keys do that work on every page, and the screen that hears them."""

from __future__ import annotations

import contextlib
from typing import ClassVar

from textual.binding import BindingType

from engines.core.errors import StudioError
from studio.session.base import Session
from studio.tui.drawing.lines import line
from studio.tui.host import Host
from studio.tui.keymap import bindings
from studio.tui.navigation import Navigation
from studio.tui.terminal.textual_parts import FirstScreen, Palette, TerminalApp


class MainScreen(FirstScreen, inherit_bindings=False):
    """The screen below all boxes. Its keys are not heard while a box is open."""

    BINDINGS: ClassVar[list[BindingType]] = [
        # The interrupt is the app's, since it is heard in boxes too.
        binding
        for binding in bindings("global", "loop")
        if binding.id != "global.interrupt"
    ]

    def __init__(self, app: TerminalApp, host: Host, navigation: Navigation) -> None:
        super().__init__(app, id="_default")
        self._terminal_app, self._host, self._navigation = app, host, navigation

    # -- pages and panes -----------------------------------------------------------------

    def action_page(self, name: str) -> None:
        self._navigation.trail.clear()
        self._navigation.open_page(name)

    def action_back(self) -> None:
        self._navigation.go_back()

    def action_filter(self) -> None:
        self.run_worker(self._navigation.ask_filter())

    def action_goto(self) -> None:
        self.run_worker(self._navigation.ask_target(self.app.focused))

    def action_move_pane_focus(self, by: int) -> None:
        self._navigation.move_pane_focus(by)

    def action_jump(self) -> None:
        self.run_worker(self._navigation.jump_to_pane())

    # -- boxes and the terminal ----------------------------------------------------------

    def action_command_palette(self) -> None:
        self.app.push_screen(Palette(id="--command-palette"))

    def action_help(self) -> None:
        # Imported late, as is the next one: the first frame needs neither.
        from studio.tui.help import HelpScreen

        self.app.push_screen(HelpScreen(self._navigation.page_name))

    def action_settings(self) -> None:
        from studio.tui.settings.screen import SettingsScreen

        self.app.push_screen(SettingsScreen())

    def action_copy(self, whole: bool) -> None:
        from studio.tui.terminal.clipboard import copy_text

        self._host.tell(copy_text(self._host, self._navigation.page().text_to_copy(whole)))

    def action_redraw(self) -> None:
        self._terminal_app.redraw_all()

    def action_detach(self) -> None:
        self._host.leave()

    # -- the run -------------------------------------------------------------------------

    def _control(self, command: str, answer: str, **options: bool) -> None:
        """Send the run a command, and tell the answer once it was taken."""

        async def send_request(session: Session) -> str:
            await session.control(command, **options)
            return answer

        self._host.ask_run(send_request)

    def action_pause(self) -> None:
        session = self._host.session
        if session is not None and session.state.status == "paused":
            self._control("resume", "going on")
        else:
            self._control("pause", "paused: nothing new begins (p goes on)")

    def action_pause_now(self) -> None:
        answer = "paused: tries under way hold at their next call (p goes on)"
        self._control("pause", answer, now=True)

    def action_step(self) -> None:
        self._control("step", "one batch through its commit, then it holds")

    def action_stop(self) -> None:
        self.run_worker(self._stop())

    async def _stop(self) -> None:
        session = self._host.session
        if session is not None and not session.living:
            with contextlib.suppress(StudioError):
                await session.control("status")  # it looks whether a process is back
        if session is None or not session.living:
            self._host.tell("no process of a run is there to stop", "failed")
            return
        keys = {"s": "after this step", "n": "now; what is recorded is kept"}
        lines = [line("Everything recorded is kept; the run can be resumed.")]
        key = await self._host.confirm("Stop the run?", lines, keys)
        if key == "s":
            self._control("stop", "it ends after this step", after_step=True)
        elif key:
            self._control("stop", "it ends now", after_step=False)

    def action_take_over(self) -> None:
        async def send_request(session: Session) -> str:
            await session.take_control()
            return "you decide now"

        self._host.ask_run(send_request)
