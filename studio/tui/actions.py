"""What the keys do that work on every page, and the screen that hears them."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from shlex import quote
from typing import Any, ClassVar

from textual import events
from textual.binding import BindingType
from textual.widget import Widget

from engines.core.errors import StudioError
from studio.session.requests import ChangeSpeed, Pause, Request, Resume, Step, Stop
from studio.session.session import Session
from studio.tui.drawing.lines import line
from studio.tui.keymap import Key, bindings, format_key, keys_of_scope, unused_key_text
from studio.tui.navigation import Navigation
from studio.tui.page import Host, resume_run
from studio.tui.pages.review.page import ReviewPage
from studio.tui.pages.runs.page import RunsPage
from studio.tui.terminal.textual_parts import Box, FirstScreen, Palette, TerminalApp, is_visible
from studio.tui.widgets.prompt import ASK_KEYS, Prompt

_OF_REPLAYS = tuple(f"loop.{name}" for name in ("pause", "step", "faster", "slower"))


class MainScreen(FirstScreen, inherit_bindings=False):
    """The screen below all boxes. Its keys are not heard while a box is open."""

    BINDINGS: ClassVar[list[BindingType]] = [
        # The interrupt is the app's, since it is heard in boxes too.
        binding
        for binding in bindings("global")
        if binding.id != "global.interrupt"
    ]

    def __init__(self, app: TerminalApp, host: Host, navigation: Navigation) -> None:
        super().__init__(app, id="_default")
        self._terminal_app, self._host, self._navigation = app, host, navigation
        self.is_steering = False  # the next key says how

    @property
    def heard_keys(self) -> Sequence[Key]:
        """Those that are heard instead of the page's, while something is asked or written."""
        top = self.app.screen
        if isinstance(top, Box | Palette):
            return top.offered
        if self.is_steering:
            keys = [replace(key, after="") for key in keys_of_scope("loop", self._host.keys)]
            if self._host.session is None or not self._host.session.label:
                return keys
            return [replace(key, rank=4) for key in keys if key.id in _OF_REPLAYS]
        return ASK_KEYS if self._host.is_asking else self._navigation.page().footer_keys()

    def on_screen_suspend(self) -> None:
        self._host.draw_chrome()  # the box over it hears other keys

    def on_screen_resume(self, event: events.ScreenResume) -> None:
        if self._navigation.is_drawn:
            self._host.draw_chrome()

    def set_focus(
        self, widget: Widget | None, scroll_visible: bool = True, from_app_focus: bool = False
    ) -> None:
        """What is out of sight never hears keys, and nothing but the prompt while that asks.

        Textual sets a focus later than it is asked to: a page may have been left meanwhile.
        """
        is_heard = widget is None or isinstance(widget.parent, Prompt) or not self._host.is_asking
        if is_heard and (widget is None or is_visible(widget)):
            super().set_focus(widget, scroll_visible, from_app_focus)

    def action_page(self, name: str) -> None:
        self._host.forget_message()
        self._navigation.trail.clear()
        page = self._navigation.page()
        here = page.queue.group if name == "inspect" and isinstance(page, ReviewPage) else ""
        self._navigation.open_page(name, here, keep_trail=True)

    def action_back(self) -> None:
        self._navigation.go_back()

    def action_filter(self) -> None:
        self._navigation.ask_filter()

    def action_goto(self) -> None:
        self._navigation.ask_target()

    def action_commit(self) -> None:
        page = self._navigation.page("review")
        if isinstance(page, ReviewPage):
            page.draw()  # it may not have been open since the run is
            page.commit()

    def action_move_pane_focus(self, by: int) -> None:
        self._navigation.move_pane_focus(by)

    def action_jump(self) -> None:
        self._navigation.jump_to_pane()

    def action_command_palette(self) -> None:
        from studio.tui.palette import StudioCommands

        self.app.push_screen(Palette([StudioCommands], id="--command-palette"))

    def action_help(self) -> None:
        # Imported late, as is the next one: the first frame needs neither.
        from studio.tui.help import HelpScreen

        self.app.push_screen(HelpScreen(self._navigation.page_name))

    def action_settings(self) -> None:
        from studio.tui.help import SettingsScreen

        self.app.push_screen(SettingsScreen())

    def action_copy(self, whole: bool) -> None:
        from studio.tui.terminal.clipboard import copy_text

        self._host.tell(copy_text(self._host, self._navigation.page().text_to_copy(whole)))

    def action_redraw(self) -> None:
        self._terminal_app.redraw_all()

    def action_detach(self) -> None:
        self._host.leave()

    def action_steer(self) -> None:
        self.is_steering = True
        self._host.draw_chrome()

    async def take_key(self, pressed: str) -> bool:
        """Do what the key after `s` says."""
        if not self.is_steering:
            return False
        self.is_steering = False
        keys = keys_of_scope("loop", self._host.keys)
        if key := next((key for key in keys if pressed in key.keys.split(",")), None):
            await self.app.run_action(key.action, self)
        else:
            known = ", ".join(key.key_text for key in keys)
            wrong = "" if pressed == "escape" else f"{format_key(pressed)} is none of {known}: "
            self._host.tell(f"{wrong}the run goes on as before")
        self._host.draw_chrome()
        return True

    def miss_key(self, pressed: str) -> None:
        self._host.tell(unused_key_text(pressed, self.heard_keys))

    def _control(self, request: Request[Mapping[str, Any]], answer: str) -> None:
        """Send the run a command, and tell the answer once it was taken."""

        async def send_request(session: Session) -> str:
            return str((await session.send(request)).get("told", answer))

        self._host.ask_run(send_request)

    def action_pause(self) -> None:
        session = self._host.session
        if session is not None and session.state.status == "paused":
            self._control(Resume(), "going on")
        else:
            self._control(Pause(), "paused: nothing new begins (s p goes on)")

    def action_pause_now(self) -> None:
        answer = "paused: tries under way hold at their next call (s p goes on)"
        self._control(Pause(now=True), answer)

    def action_speed(self, faster: bool) -> None:
        session = self._host.session
        if session is None or not session.label:
            self._host.tell("only a replay has a speed: studio runs replay RUN", "failed")
        else:
            self._control(ChangeSpeed(faster), "")

    def action_step(self) -> None:
        self._control(Step(), "one batch through its commit, then it holds")

    def action_stop(self) -> None:
        self.run_worker(self._stop())

    async def _stop(self) -> None:
        session = self._host.session
        if session is not None and not session.living:
            with contextlib.suppress(StudioError):
                await session.status()  # it looks whether a process is back
        if session is None or not session.living or session.label:
            self._host.tell("no process of a run is there to stop", "failed")
            return
        keys = {"s": "after this step", "n": "now; what is recorded is kept"}
        lines = [line("Everything recorded is kept; the run can be resumed.")]
        key = await self._host.confirm("Stop the run?", lines, keys)
        if key == "s":
            self._control(Stop(after_step=True, reviewer=session.who), "it ends after this step")
        elif key:
            self._control(Stop(reviewer=session.who), "it ends now")
        else:
            self._host.tell("the run goes on")

    def action_resume(self) -> None:
        page, session = self._navigation.page(), self._host.session
        state = page.state
        if isinstance(page, RunsPage):
            page.resume()
        elif session is None or state is None or state.started is None:
            self._host.tell("no run is open here: 5 lists them, 0 starts one", "failed")
        elif session.label:
            move = f"studio attach {quote(state.started.run)}"
            self._host.tell(f"a replay resumes nothing: {move}", "failed")
        elif session.living:
            self._host.tell("its process is at work; s p goes on where it is paused")
        elif state.ending == "finished":
            self._host.tell("the run is finished; 0 starts another")
        else:
            run, why = state.started.run, state.reason
            self.run_worker(resume_run(self._host, run, state.ending, why))

    def action_take_over(self) -> None:
        async def send_request(session: Session) -> str:
            await session.take_control()
            return "you decide now"

        self._host.ask_run(send_request)
