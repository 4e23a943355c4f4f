"""The app: one screen on a workspace, put together from its parts; it implements `Host`.

Knows nothing about practice: pages render, the run decides.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from textual import events
from textual.app import ComposeResult, SystemCommand
from textual.binding import BindingType
from textual.containers import Container
from textual.screen import Screen
from textual.widgets import ContentSwitcher, TextArea

from engines.core.errors import StudioError
from engines.record.run_dir import Workspace
from studio.process import login_name
from studio.secrets.sanitize import sanitize
from studio.session.session import Session
from studio.tui import actions, header, navigation, palette
from studio.tui.attachment import Attachment
from studio.tui.drafts import Drafts
from studio.tui.drawing.cells import cell_width, fit
from studio.tui.drawing.lines import Line, Lines, crop_line, line
from studio.tui.keymap import KEYS, Key, bindings, keys_of_scope, remap_keys
from studio.tui.pages import PAGES, demo_hint
from studio.tui.settings import ScreenSettings
from studio.tui.terminal import look, notify, opening, terminal, textual_parts
from studio.tui.widgets.line_view import Chrome, footer_line
from studio.tui.widgets.prompt import Confirm, Prompt

if TYPE_CHECKING:
    from studio.run.detached import StartingProcess

RATE_S = 1.0
"""Between two drawings of a rate that falls because nothing comes."""
MESSAGE_S, ERROR_S = 8.0, 20.0
"""How long the line above the keys says something; what went wrong stands longer."""
TWICE_S = 2.0
"""Within this time ctrl+c is pressed twice."""


class StudioApp(textual_parts.TerminalApp, inherit_bindings=False):
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
        look.register_themes(self, self.environ, self.settings.theme)
        self.workspace = workspace
        self.person = login_name()
        self.keys: tuple[Key, ...] = KEYS
        self._requests: asyncio.Queue[Coroutine[object, object, object]] = asyncio.Queue()
        self.navigation = navigation.Navigation(self, self)
        self.attachment = Attachment(
            self, self, self.navigation, session=session, run=run, starting=starting
        )
        self.notifier = notify.Notifier(self, self.send_to_terminal)
        self._needs_drawing = False
        self._shows_rate, self._chrome_at = False, 0.0
        self._message: Line = ()  # above the keys
        self._told_at = 0.0
        self._interrupted_at = float("-inf")
        self._is_leaving = False

    # -- opening -------------------------------------------------------------------------

    def get_default_screen(self) -> Screen[Any]:
        return actions.MainScreen(self, self, self.navigation)

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
        self.frame_clock.drains.append(self.draw_frame)
        self.start_frames()
        terminal.stop_between_events(self)
        # After ctrl+z and fg the terminal is another page; Textual draws only what changed.
        self.app_resume_signal.subscribe(self, lambda _: self.redraw_all())
        self.apply_settings()
        opening.resume_collection()
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
        return palette.commands(self, self, self.navigation.page())

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
        self.notifier.restore_title()
        await self.attachment.close()

    # -- what pages ask (see Host) -------------------------------------------------------

    def open_page(self, name: str, target: str = "", *, keep_trail: bool = False) -> None:
        self.navigation.open_page(name, target, keep_trail=keep_trail)

    def attach(self, run: str) -> None:
        self.attachment.attach(run)

    def start_run(self, arguments: Sequence[str]) -> None:
        self.attachment.start_run(arguments)

    @property
    def session(self) -> Session | None:
        return self.attachment.session

    @property
    def session_status(self) -> header.SessionStatus:
        return self.attachment.status

    @property
    def drafts(self) -> Drafts:
        return self.attachment.drafts

    @property
    def page_name(self) -> str:
        return self.navigation.page_name

    @property
    def is_small(self) -> bool:
        return self.size.width < 60 or self.size.height < 16

    @property
    def is_asking(self) -> bool:
        return self.screen_stack[0].query_one("#prompt", Prompt).is_asking

    def apply_settings(self) -> None:
        look.apply_look(self, self.settings, self.environ)
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

    # -- drawing: in the next frame for events, at once for keys -----------------------------

    def redraw_soon(self) -> None:
        self._needs_drawing = True

    def draw_frame(self) -> None:
        """Called by the frame clock, at most ten times a second."""
        now, drafts = self.clock(), self.drafts
        self.notifier.tick(self.attachment.state, now, self.last_key)
        drafts.save_if_due(now)
        if drafts.trouble:
            self.tell(drafts.trouble, "failed")
            drafts.trouble = ""
        if not self._has_chrome:
            return  # the screen is being left, and a frame was under way
        if self._message:
            is_error = bool(self._message[0][1])
            if now - self._told_at >= (ERROR_S if is_error else MESSAGE_S):
                self.forget_message()
        if self._needs_drawing:
            self.draw_now()
        elif self._shows_rate and now - self._chrome_at >= RATE_S:
            self.draw_chrome()  # nothing comes any more, and the rate is to say so
        elif demo_hint.is_demo(self.attachment.state):
            self._draw_demo_hint()  # it follows the cursor, which no event tells of

    def draw_now(self) -> None:
        self._needs_drawing = False
        if self._has_chrome:
            self.navigation.page().draw()
            self.draw_chrome()  # its keys follow from what is on the page

    @property
    def _has_chrome(self) -> bool:
        """Whether there is something to draw on; not so while the screen is left."""
        screens = self.screen_stack
        # Asked at each beat: a query would look at every widget of all pages.
        return bool(screens) and any(child.id == "top" for child in screens[0].children)

    def draw_chrome(self) -> None:
        if not self._has_chrome:
            return
        top, size = self.screen_stack[0].query_one("#top", Chrome), self.size
        state, status = self.attachment.state, self.session_status
        self._shows_rate, self._chrome_at = status.tokens_per_s is not None, self.clock()
        name, page, keys = self.navigation.page_name, self.navigation.page(), self.keys
        top.show_line(0, header.header_line(state, status, size.width))
        top.show_line(1, header.tabs_line(state, name, size.width))
        self._draw_demo_hint()
        base = self.screen_stack[0]
        shown = base.heard_keys if isinstance(base, actions.MainScreen) else ()
        if not shown:
            shown = [*page.usable_keys(keys_of_scope(name, keys)), *self._common_keys(status)]
        self._bottom.show_line(1, footer_line(shown, size.width))
        message = self._message
        if self.is_small and not message:
            text = f"terminal is {size.width}x{size.height}, studio wants 80x24"
            message = line((f" {text} (works from 60x16)", "flag"))
        self._bottom.show_line(0, message)

    def _draw_demo_hint(self) -> None:
        """A third line, where a demo is shown and there is room for it."""
        state, size = self.attachment.state, self.size
        top = self.screen_stack[0].query_one("#top", Chrome)
        shown = state is not None and demo_hint.is_demo(state) and not self.is_small
        top.set_class(shown, "-hinting")  # lays the page out anew, and only where it differs
        if state is not None and shown:
            types = isinstance(self.focused, TextArea)
            hint = demo_hint.DemoHints(self.keys).hint(
                state, self.navigation.page_name, self.drafts.cursor, types=types
            )
            top.show_line(2, crop_line(line((" look: ", "flag"), hint), size.width))

    def _common_keys(self, status: header.SessionStatus) -> list[Key]:
        """Those of every page that are of use now; of a run to resume this one comes first."""
        keys, state, left_out = self.keys, self.attachment.state, set()
        if not status.living:
            left_out.add("global.steer")
        page = self.navigation.page()
        has_some = page.scope == "review" and not page.has_nothing and not self.is_small
        if status.replay or (not status.ready and not has_some):
            left_out.add("global.commit")
        shown = [key for key in keys_of_scope("global", keys) if key.id not in left_out]
        can_resume = state is not None and state.started and state.ending != "finished"
        if can_resume and not status.living and (page.scope == "live" or page.has_nothing):
            loop = keys_of_scope("loop", keys)
            shown += [replace(key, rank=10) for key in loop if key.id == "loop.resume"]
        return shown

    @property
    def _bottom(self) -> Chrome:
        return self.screen_stack[0].query_one("#bottom", Chrome)

    def forget_message(self, *, also_errors: bool = True) -> None:
        """It is not true any more: a page was opened, or the run has gone on."""
        if also_errors or not (self._message and self._message[0][1]):
            self._message = ()
            self._bottom.show_line(0, ())

    def tell(self, text: str, style: str = "") -> None:
        path = self.workspace.path
        text = text.replace(f"{path.absolute()}/", f"{path}/")
        # What failed needs the line for what happened; else its end names the file.
        if style == "failed" or cell_width(text) >= self.size.width:
            text = text.replace(f"{path}/", "")
        self._message = ((" " + fit(sanitize(text), 400), style),)
        self._told_at = self.clock()
        self._bottom.show_line(0, self._message)


def open_screen(
    workspace: Path,
    *,
    run: str | None = None,
    starting: "StartingProcess | None" = None,
    session: Session | None = None,
) -> tuple[Attachment, int]:
    """Open the screen, and return what it was attached to and an exit code when it is left."""
    from studio.tui.settings import read_settings

    settings = read_settings(workspace)
    remap_keys(settings.keys, settings.place)
    app = StudioApp(
        Workspace(workspace), run=run, starting=starting, session=session, settings=settings
    )
    with terminal.exit_on_hangup(app, save=lambda: app.drafts.save(), leave=app.leave):
        code = app.run(mouse=settings.mouse)
    return app.attachment, (app.return_code or 0) if code is None else code
