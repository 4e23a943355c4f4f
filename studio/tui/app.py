"""The app: one screen on a workspace, put together from its parts; it implements `Host`.

Knows nothing about practice: pages render, the run decides.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from textual import events
from textual.app import ComposeResult, SystemCommand
from textual.binding import BindingType
from textual.containers import Container
from textual.screen import Screen
from textual.widgets import ContentSwitcher

from engines.core.errors import StudioError
from engines.record.run_dir import Workspace
from studio.process import login_name
from studio.session.session import Session
from studio.tui.actions import MainScreen
from studio.tui.attachment import Attachment
from studio.tui.drafts import Drafts
from studio.tui.drawing.lines import Lines, line
from studio.tui.header import SessionStatus
from studio.tui.keymap import KEYS, PAGES, Key, bindings, remap_keys
from studio.tui.navigation import Navigation
from studio.tui.painter import Painter, is_small
from studio.tui.palette import commands
from studio.tui.settings.file import ScreenSettings
from studio.tui.terminal.frames import install_frame_clock
from studio.tui.terminal.look import apply_look, register_themes
from studio.tui.terminal.opening import current_line
from studio.tui.terminal.terminal import exit_on_hangup, stop_between_events
from studio.tui.terminal.textual_parts import TerminalApp
from studio.tui.widgets.line_view import Chrome
from studio.tui.widgets.prompt import Confirm, Prompt

if TYPE_CHECKING:
    from studio.run.detached import StartingProcess

TWICE_S = 2.0
"""Within this time ctrl+c is pressed twice."""


class StudioApp(TerminalApp, inherit_bindings=False):
    """The screen on a workspace, attached to at most one run at a time."""

    TITLE = "studio"
    CSS_PATH = "studio.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        binding for binding in bindings("global") if binding.id == "global.interrupt"
    ]
    ENABLE_COMMAND_PALETTE = False  # its binding would open Textual's own palette
    ALLOW_SELECT = False  # the terminal selects; shift-drag where the mouse is taken
    # Lists, as Textual declares them.
    HORIZONTAL_BREAKPOINTS = [(0, "-tiny"), (60, "-narrow"), (100, "-wide"), (140, "-very-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-flat"), (16, "-short"), (30, "-tall")]  # noqa: RUF012

    def __init__(
        self,
        workspace: Workspace,
        *,
        run: str | None = None,
        starting: "StartingProcess | None" = None,
        session: Session | None = None,
        settings: ScreenSettings | None = None,
        environ: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(os.environ if environ is None else environ, clock)
        self.settings = settings or ScreenSettings()
        # Before the first widget, so that each is styled once.
        register_themes(self, self.environ, self.settings.theme)
        self.workspace = workspace
        self.person = login_name()
        self.keys: tuple[Key, ...] = KEYS
        self._requests: asyncio.Queue[Coroutine[object, object, object]] = asyncio.Queue()
        self.navigation = Navigation(self, self)
        self.attachment = Attachment(
            self, self, self.navigation, session=session, run=run, starting=starting
        )
        self.painter = Painter(self, self, self.navigation, self.attachment)
        self._interrupted_at = float("-inf")
        self._is_leaving = False

    # -- opening -------------------------------------------------------------------------

    def get_default_screen(self) -> Screen[Any]:
        return MainScreen(self, self, self.navigation)

    def compose(self) -> ComposeResult:
        top = Chrome(id="top")
        top.lines = [line(" studio: opening ...")]  # until the first page is drawn
        yield top
        with ContentSwitcher(initial="start", id="pages"):
            for page in PAGES:
                yield page.load_class()()
        yield Container(Chrome(id="bottom"), Prompt(id="prompt"), id="foot")

    def on_mount(self) -> None:
        self.keys = remap_keys(self.settings.keys, self.settings.place)
        self.set_keymap(dict(self.settings.keys))
        clock = install_frame_clock(self, self.environ, low_bandwidth=self.settings.low_bandwidth)
        clock.add_drain(self.painter.draw_frame)
        stop_between_events(self)
        # After ctrl+z and fg the terminal is another page; Textual draws only what changed.
        self.app_resume_signal.subscribe(self, lambda _: self.redraw_all())
        self.apply_settings()
        if (line := current_line()) is not None:
            line.stop()
            if line.was_left:
                self.leave()
        has_run = self.session or self.attachment.shown_run or self.attachment.starting
        self.open_page("live" if has_run else "start")
        self.run_worker(self._process_requests())
        self.call_after_refresh(self._open_first_run)

    def _open_first_run(self) -> None:
        """After the first frame: nothing may hold that up."""
        self.navigation.is_drawn = True
        attachment = self.attachment
        if attachment.starting is not None:
            attachment.wait_for(attachment.starting)
        elif attachment.shown_run is not None:
            attachment.attach(attachment.shown_run)
        elif attachment.session is not None:
            attachment.listen(attachment.session)

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        return commands(self, self, self.navigation.page())

    def on_resize(self, event: events.Resize) -> None:
        self.call_after_refresh(self.draw_now)

    # -- leaving -------------------------------------------------------------------------

    def action_interrupt(self) -> None:
        now = self.clock()
        if now - self._interrupted_at < TWICE_S:
            self.leave()
        else:
            self._interrupted_at = now
            self.tell("ctrl+c again leaves the screen; the run goes on")

    def leave(self) -> None:
        async def detach_and_exit() -> None:
            await self.attachment.close()
            self.exit(0)

        if not self._is_leaving:
            self._is_leaving = True
            self.run_worker(detach_and_exit(), group="detach")

    async def on_unmount(self) -> None:
        """However the screen ends: drafts on disk, the session closed, the title given back."""
        self.painter.notifier.restore_title()
        await self.attachment.close()

    # -- what pages ask (see Host) -------------------------------------------------------

    def open_page(self, name: str, target: str = "", *, keep_trail: bool = False) -> None:
        self.navigation.open_page(name, target, keep_trail=keep_trail)

    def tell(self, text: str, style: str = "") -> None:
        self.painter.tell(text, style)

    def forget_message(self, *, also_errors: bool = True) -> None:
        self.painter.forget_message(also_errors=also_errors)

    def redraw_soon(self) -> None:
        self.painter.redraw_soon()

    def draw_now(self) -> None:
        self.painter.draw_now()

    def draw_chrome(self) -> None:
        self.painter.draw_chrome()

    def attach(self, run: str) -> None:
        self.attachment.attach(run)

    def start_run(self, arguments: Sequence[str]) -> None:
        self.attachment.start_run(arguments)

    @property
    def session(self) -> Session | None:
        return self.attachment.session

    @property
    def session_status(self) -> SessionStatus:
        return self.attachment.status

    @property
    def drafts(self) -> Drafts:
        return self.attachment.drafts

    @property
    def page_name(self) -> str:
        return self.navigation.page_name

    @property
    def is_small(self) -> bool:
        return is_small(self.size)

    @property
    def is_asking(self) -> bool:
        return self.screen_stack[0].query_one("#prompt", Prompt).is_asking

    def apply_settings(self) -> None:
        apply_look(self, self.settings, self.environ)
        self.frame_clock.low_bandwidth = self.settings.low_bandwidth
        self.redraw_soon()

    def ask(
        self, label: str, value: str = "", shortcut: Callable[[str], bool] | None = None
    ) -> Awaitable[str | None]:
        base = self.screen_stack[0]
        base.query_one("#bottom").display = True
        asked = base.query_one("#prompt", Prompt).ask(label, value, shortcut)

        def go_on(done: asyncio.Future[str | None]) -> None:
            if not done.cancelled():  # else the screen ends
                self.call_later(self.navigation.focus_page)  # another may have opened meanwhile

        asked.add_done_callback(go_on)
        return asked

    async def confirm(self, title: str, lines: Lines, keys: Mapping[str, str]) -> str:
        return await self.push_screen_wait(Confirm(title, lines, keys))

    def ask_run(self, work: Callable[[Session], Awaitable[str]]) -> None:
        session = self.session  # as it is now: the queue may reach the request later
        if session is None:
            self.tell("no run is open here: 5 lists them, 0 starts one", "failed")
            return

        async def tell_answer() -> None:
            self.tell(await work(session))

        self.queue_request(tell_answer())

    def queue_request(self, work: Coroutine[object, object, object]) -> None:
        self._requests.put_nowait(work)

    async def wait_for_requests(self) -> None:
        await self._requests.join()

    async def _process_requests(self) -> None:
        """Carry requests out one by one until cancelled; what is refused is told."""
        while True:
            work = await self._requests.get()
            try:
                await work
            except StudioError as error:
                self.tell(str(error), "failed")
            self.redraw_soon()
            self._requests.task_done()


def open_screen(
    workspace: Path,
    *,
    run: str | None = None,
    starting: "StartingProcess | None" = None,
    session: Session | None = None,
) -> tuple[Attachment, int]:
    """Open the screen, and return what it was attached to and an exit code when it is left."""
    from studio.tui.settings.file import read_settings

    settings = read_settings(workspace)
    remap_keys(settings.keys, settings.place)
    app = StudioApp(
        Workspace(workspace), run=run, starting=starting, session=session, settings=settings
    )
    with exit_on_hangup(app, save=lambda: app.drafts.save(), leave=app.leave):
        code = app.run(mouse=settings.mouse)
    return app.attachment, (app.return_code or 0) if code is None else code
