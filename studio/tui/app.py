"""The app: one line to one run, the pages, and what every page needs.

Owns the session, the frame in which pages are drawn, the queue of what was asked of the run,
and how the screen is left. Knows nothing about practice; pages render, the run decides.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from rich.text import Text
from textual import events
from textual.app import App, ComposeResult, SystemCommand
from textual.binding import BindingType
from textual.containers import Container
from textual.content import Content
from textual.filter import NoColor
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import ContentSwitcher

from engines.core.errors import StudioError
from engines.core.state.run_state import RunState
from engines.record.run_dir import Workspace
from studio.current_user import login_name
from studio.secrets.sanitize import sanitize
from studio.session.base import (
    ControllerChanged,
    Disconnected,
    EventReceived,
    Message,
    Session,
    SnapshotReceived,
    TextReceived,
)
from studio.tui.drafts import Drafts
from studio.tui.drawing import themes
from studio.tui.drawing.cells import fit
from studio.tui.drawing.lines import Line, line
from studio.tui.header import SessionStatus, header_line, tabs_line
from studio.tui.keymap import KEYS, Key, bindings, keys_of_scope, remap_keys
from studio.tui.page import Page
from studio.tui.pages.diff.page import DiffPage
from studio.tui.pages.inspect.page import InspectPage
from studio.tui.pages.library.page import LibraryPage
from studio.tui.pages.live.page import LivePage
from studio.tui.pages.review.page import ReviewPage
from studio.tui.pages.runs.page import RunsPage
from studio.tui.pages.start.page import StartPage
from studio.tui.palette import Palette, commands
from studio.tui.settings.values import ScreenSettings
from studio.tui.terminal.notify import Notifier
from studio.tui.terminal.terminal import use_ascii, with_current_size
from studio.tui.throughput import Throughput
from studio.tui.widgets.chrome import Chrome, footer_line
from studio.tui.widgets.confirm import Confirm
from studio.tui.widgets.prompt import Prompt

if TYPE_CHECKING:
    from studio.run.detached import StartingProcess
    from studio.tui.terminal.frame_clock import FrameClock

RATE_S = 1.0
"""Between two drawings of a rate that falls because nothing comes."""
LEAVE_S = 1.0
"""Longer than this no process that hangs keeps a screen from closing."""
PAGES: tuple[type[Page], ...] = (
    StartPage,
    LivePage,
    ReviewPage,
    LibraryPage,
    DiffPage,
    RunsPage,
    InspectPage,
)


class _BaseScreen(Screen[None], inherit_bindings=False):
    """The screen below all others; tab is a key of the table, not Textual's own."""


class StudioApp(App[int], inherit_bindings=False):  # ctrl+q is no key of ours
    """The screen on a workspace, attached to at most one run at a time."""

    pump: FrameClock  # from the first frame on
    TITLE = "studio"
    CSS_PATH = "studio.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings("global", "loop")]
    ENABLE_COMMAND_PALETTE = True
    ALLOW_SELECT = False  # the terminal selects; shift-drag where the mouse is taken
    HORIZONTAL_BREAKPOINTS = [  # noqa: RUF012  (Textual declares it so)
        (0, "-tiny"),
        (60, "-narrow"),
        (100, "-wide"),
        (140, "-very-wide"),
    ]
    VERTICAL_BREAKPOINTS = [  # noqa: RUF012
        (0, "-flat"),
        (16, "-short"),
        (30, "-tall"),
    ]

    def __init__(
        self,
        workspace: Workspace,
        *,
        run: str | None = None,
        starting: StartingProcess | None = None,
        session: Session | None = None,
        settings: ScreenSettings | None = None,
        environ: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = settings or ScreenSettings()
        self.environ = os.environ if environ is None else environ
        super().__init__(ansi_color=None)
        themes.register_themes(self, self.environ, self.settings.theme)
        self.animation_level = "none"
        self.workspace = workspace
        self.person = login_name()
        self.session: Session | None = session
        self.drafts = Drafts(None)
        self.tempo = Throughput()
        self.clock = clock
        self.keys: tuple[Key, ...] = KEYS
        self.page_name = "start"
        self.trail: list[tuple[str, str]] = []  # (page, id) to go back to
        self.ready = False  # everything is decided, the commit waits
        self.ended_here = ""  # how the run ended while the screen was attached
        self.refusal: tuple[str, int] | None = None  # why nothing could be started
        self.shown_run, self._starting = run, starting
        self._asked_to_start: tuple[str, ...] = ()  # what a start under way was asked with
        self.budget: dict[str, float] = {}  # limits of the run: calls, tokens, cost_usd
        self._told: Line = ()  # what the last-action line says
        self._told_small = False  # and it was said since the terminal is too small
        self._cut = False  # the line to the process; it is being tried again
        self._came_from_start = False  # what goes wrong is told on the start page, then
        self._dirty = False
        self._asked: asyncio.Queue[Coroutine[Any, Any, None]] = asyncio.Queue()
        self._listening: asyncio.Task[None] | None = None
        self._interrupted = 0.0
        self._rate_shown, self._chrome_at = False, 0.0
        self._drawn = False  # the first frame was, so that every page has its parts
        self._title = ""
        self.last_key = 0.0  # when one was pressed, by the clock
        self.notifier = Notifier(self)

    # -- what is there -------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        yield Chrome(id="top")
        with ContentSwitcher(initial="start", id="pages"):
            for page in PAGES:
                yield page()
        yield Container(Chrome(id="bottom"), Prompt(id="prompt"), id="foot")

    def get_default_screen(self) -> Screen[Any]:
        return _BaseScreen(id="_default")

    def page(self, name: str | None = None) -> Page:
        return self.screen_stack[0].query_one(f"#{name or self.page_name}", Page)

    @property
    def pages(self) -> list[Page]:
        return list(self.screen_stack[0].query(Page))

    @property
    def state(self) -> RunState | None:
        return self.session.state if self.session is not None else None

    def on_mount(self) -> None:
        self.keys = remap_keys(self.settings.keys, self.settings.place)
        self.set_keymap(dict(self.settings.keys))
        from studio.tui.terminal.frame_clock import install_frame_clock

        install_frame_clock(
            self, self.environ, low_bandwidth=self.settings.low_bandwidth
        ).add_drain(self.draw_frame)
        # After ctrl+z and fg the terminal is another page; Textual draws only what changed.
        self.app_resume_signal.subscribe(self, lambda _: self.action_redraw())
        self.apply_settings()
        if self.session is not None or self.shown_run is not None or self._starting is not None:
            self.open_page("live")
        else:
            self.open_page("start")
        self.run_worker(self._process_requests(), exit_on_error=True)
        self.call_after_refresh(self._open_initial_run)

    def _open_initial_run(self) -> None:
        """After the first frame: nothing may hold that up."""
        self._drawn = True
        if self._starting is not None:
            self.run_worker(self._wait_for_start(self._starting), exit_on_error=True)
        elif self.shown_run is not None:
            self.attach(self.shown_run)
        elif self.session is not None:
            self._listen(self.session)

    async def _wait_for_start(self, starting: StartingProcess) -> None:
        """Wait for a process to say which run it is, or why there is none."""
        from studio.run.detached import ReadyRun

        self.tell("starting: reading the run file, asking the model for a sign of life …")
        outcome = await starting.wait_ready()
        if self._starting is starting:
            self._starting, self._asked_to_start = None, ()
        if isinstance(outcome, ReadyRun):
            if outcome.warning:
                self.tell(outcome.warning, "flag")
            elif outcome.text:
                self.tell("; ".join(outcome.text.splitlines()))
            self.attach(outcome.run)
        elif self._came_from_start:
            self.show_refusal(outcome.text)
        else:
            self.refusal = (outcome.text, outcome.code)
            self.exit(outcome.code)

    def show_refusal(self, text: str) -> None:
        """A run could not be started from here: say why, whole, where it was asked for."""
        self.tell(text, "failed")
        page = self.page("start")
        if isinstance(page, StartPage):
            page.show_refusal(text)
        self.redraw_soon()

    def start_run(self, arguments: Sequence[str]) -> None:
        """Start a run's process and attach to it; errors are told on the start page.

        Args:
            arguments: of `studio headless`, such as `["rehearsal", "--review", "wait"]`.
        """
        if self._asked_to_start == (asked := tuple(arguments)):
            self.tell("it is being started already")
            return
        self._asked_to_start = asked
        self.queue_request(self._start_run(asked))  # after every decision that was asked before
        self.redraw_soon()

    async def _start_run(self, arguments: tuple[str, ...]) -> None:
        from studio.run import detached

        self._came_from_start = True
        try:
            if self.session is not None:
                await self.session.release_lock()  # else the process finds its run taken, by us
            self._starting = starting = detached.start(arguments, self.workspace.path)
        except StudioError as error:
            self._asked_to_start = ()
            self.show_refusal(str(error))
            return
        self.draw_now()
        self.run_worker(self._wait_for_start(starting), exit_on_error=True)

    def attach(self, run: str) -> None:
        """Leave the run that is shown, if any, and show this one."""
        self.run_worker(self._attach_to(run), exclusive=True, group="attach", exit_on_error=True)

    async def _attach_to(self, run: str) -> None:
        from studio.session.live import LiveSession
        from studio.session.offline_screen import OfflineSession

        try:
            folder = self.workspace.run(run)
        except StudioError as error:
            self.tell(str(error), "failed")
            return
        await self._close_session()
        self.shown_run = run
        self._listen(
            LiveSession(
                folder,
                self.person,
                fallback=lambda: OfflineSession(self.workspace, folder, self.person),
            )
        )
        if self.page_name == "start":
            self.open_page("live")

    def _listen(self, session: Session) -> None:
        self.session = session
        self._cut, self.budget = False, {}
        self.drafts = Drafts(session.run)
        self.tempo = Throughput()
        self._listening = asyncio.create_task(self._read_messages(session))

    async def _read_messages(self, session: Session) -> None:
        try:
            async for message in session.messages():
                if session is not self.session:
                    return
                self._handle_message(message)
        except Exception as error:  # a bug, and no reason to leave without a word
            self._handle_exception(error)

    def _handle_message(self, message: Message) -> None:
        now = self.clock()
        self._cut = isinstance(message, Disconnected) and not message.ended
        match message:
            case EventReceived(event=event):
                self.tempo.add_event(event, now)
                kind = type(event).__name__
                if kind == "StageEntered":
                    self.ready = getattr(event, "stage", "") == "ready"
                elif kind in ("DecisionUndone", "LessonCommitted", "LessonReturned"):
                    self.ready = False
                elif kind == "RunEnded":
                    self.ended_here = getattr(event, "how", "")
                elif kind == "OperationDecided":
                    self.drafts.save()
            case TextReceived(pieces=pieces):
                self.tempo.add_pieces(pieces, now)
            case SnapshotReceived():
                if self.session is not None and self.session.living:
                    self.run_worker(self._ask_budget(self.session))
                self.drafts.writes = self.session is None or self.session.controls
                self.call_after_refresh(self._restore_place)
            case ControllerChanged(mine=mine, who=who):
                self._change_controller(mine, who)
            case Disconnected(ended=True) if (
                self.state is not None and self.state.ending == "finished"
            ):
                self.ready = False
                self.tell("the run is finished, and its process has ended")
            case Disconnected(reason=reason, ended=ended):
                self.ready = False
                how = "" if ended else "; trying again"
                self.tell(f"{reason}{how}", "" if ended else "failed")
        for page in self.pages:
            page.handle_message(message)
        self.redraw_soon()

    def _change_controller(self, mine: bool, who: str) -> None:
        """Who decides keeps the drafts: they go from screen to screen through their file."""
        if mine and not self.drafts.writes:
            self.drafts.take_over_file()
        elif not mine:
            self.drafts.save()
        self.drafts.writes = mine
        session = self.session
        if not mine and (session is None or session.living):
            self.tell(f"{who or 'nobody'} decides now; T takes over")

    def _restore_place(self) -> None:
        """Once a run is known: the page and place the person left it at."""
        if self.drafts.restored:
            return
        self.drafts.restored = True
        wanted, cursor = self.drafts.left_at
        if any(wanted == page.scope for page in PAGES) and self.page_name in ("live", "start"):
            self.open_page(wanted, cursor, from_trail=True)
        self.drafts.page = self.page_name

    async def _ask_budget(self, session: Session) -> None:
        """Its limits stand as long as the run's process does."""
        with contextlib.suppress(StudioError):
            answer = await session.control("status")
            if session is self.session:
                self.budget = dict(answer.get("budget", {}))
                self.redraw_soon()

    async def _close_session(self) -> str:
        session, self.session = self.session, None
        self.drafts.save()
        if self._listening is not None:
            self._listening.cancel()
            self._listening = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                return await session.close() if session is not None else ""
        return ""

    def apply_settings(self) -> None:
        """Let the terminal show what the settings say; also after one was changed."""
        wanted = themes.choose_theme(self.environ, self.settings.theme)
        if wanted != self.theme:
            if not self.environ.get("NO_COLOR"):  # left over from a theme without colours
                self._filters = [one for one in self._filters if not isinstance(one, NoColor)]
            themes.register_themes(self, self.environ, self.settings.theme)
        plain = self.settings.ascii
        if plain is None:
            encoding = getattr(sys.__stderr__, "encoding", None)
            plain = themes.needs_ascii(self.environ, encoding)
        use_ascii(self, plain)
        self.pump.low_bandwidth = self.settings.low_bandwidth
        self.redraw_soon()

    def send_to_terminal(self, sequence: str) -> None:
        """A control sequence for the terminal itself, beside what is drawn."""
        if self._driver is not None and not self.is_headless:
            self._driver.write(sequence)

    async def on_event(self, event: events.Event) -> None:
        if isinstance(event, events.Key):
            self.last_key = self.clock()
        elif isinstance(event, events.Resize) and hasattr(self, "pump"):
            event = with_current_size(self, event)
            self.pump.picture.forget()  # the terminal has moved its rows about
            if event.size == self.size:  # it has its old one again: Textual draws nothing then
                self.call_after_refresh(self.action_redraw)
        await super().on_event(event)

    def action_command_palette(self) -> None:
        if not isinstance(self.screen, Palette):
            self.push_screen(Palette(id="--command-palette"))

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        return commands(self)

    # -- drawing -------------------------------------------------------------------------

    def redraw_soon(self) -> None:
        """Draw the open page in the next frame."""
        self._dirty = True

    def draw_frame(self) -> None:
        """Called by the pump, at most ten times a second."""
        now = self.clock()
        self.notifier.tick(self.state, now, self.last_key)
        self.drafts.save_if_due(now)
        if self.drafts.trouble:
            self.tell(self.drafts.trouble, "failed")
            self.drafts.trouble = ""
        if self._dirty:
            self._dirty = False
            self.draw_now()
        elif self._rate_shown and now - self._chrome_at >= RATE_S:
            self.draw_chrome()  # nothing comes any more, and the rate is to say so

    def draw_now(self) -> None:
        """Draw at once: after a key nobody waits for the next frame."""
        self._dirty = False
        if not self.screen_stack or not self.screen_stack[0].query("#top"):
            return  # the screen is being left, and a frame was under way
        self.draw_chrome()
        self.page().draw()

    @property
    def session_status(self) -> SessionStatus:
        session, now = self.session, self.clock()
        eta = ""
        if session is not None and not session.state.undecided_operations:
            eta = self.tempo.remaining_text(session.state)
        return SessionStatus(
            living=session is not None and session.living,
            drives=session is not None and session.controls,
            driver=session.controller if session is not None else "",
            starting=self._starting is not None or bool(self._asked_to_start),
            opening=session is not None and session.state.started is None,
            parted=self._cut,
            ready=self.ready,
            tokens_per_s=self.tempo.tokens_per_s(now),
            rate_of_shown=self.tempo.is_shown_only(now),
            budget=self.budget,
            pace_tokens_per_s=session.pace_tokens_per_s if session is not None else None,
            eta=eta,
        )

    def draw_chrome(self) -> None:
        base = self.screen_stack[0]
        top, bottom = base.query_one("#top", Chrome), base.query_one("#bottom", Chrome)
        width = self.size.width
        facts = self.session_status
        self._rate_shown, self._chrome_at = facts.tokens_per_s is not None, self.clock()
        top.show_line(0, header_line(self.state, facts, width))
        top.show_line(1, tabs_line(self.state, self.page_name, width))
        living = self.session is not None and self.session.living
        shown = [*self.page().usable_keys(keys_of_scope(self.page_name, self.keys))]
        for scope in (*(("loop",) if living else ()), "global"):
            shown += keys_of_scope(scope, self.keys)
        shown = [*self.page().footer_keys()] or shown
        bottom.show_line(1, footer_line(shown, width))
        said = self._told
        if not self.is_small:
            self._told_small = False
        elif not self._told_small:
            size = f"terminal is {self.size.width}x{self.size.height}, studio wants 80x24"
            said = line((f" {size} (works from 60x16)", "flag"))
        bottom.show_line(0, said)

    @property
    def is_small(self) -> bool:
        """Whether the terminal is smaller than what the pages are made for."""
        return self.size.width < 60 or self.size.height < 16

    def tell(self, text: str, style: str = "") -> None:
        """Say it on the line above the keys: what was done last, or what went wrong.

        Paths are named from the workspace on, so that the line has room for what happened.
        """
        for folder in (self.workspace.path.absolute(), self.workspace.path):
            text = text.replace(f"{folder}/", "")
        self._told, self._told_small = ((" " + fit(sanitize(text), 400), style),), self.is_small
        self.screen_stack[0].query_one("#bottom", Chrome).show_line(0, self._told)

    def on_resize(self, event: events.Resize) -> None:
        self.call_after_refresh(self.draw_now)

    # -- asking the run and the person ---------------------------------------------------

    def queue_request(self, work: Coroutine[Any, Any, None]) -> None:
        """Ask something of the run; one thing after another, in the order of the keys."""
        self._asked.put_nowait(work)

    async def _process_requests(self) -> None:
        while True:
            work = await self._asked.get()
            try:
                await work
            except StudioError as error:
                self.tell(str(error), "failed")
            self.redraw_soon()
            self._asked.task_done()

    async def wait_for_requests(self) -> None:
        """Wait until everything asked so far was answered."""
        await self._asked.join()

    async def ask(
        self, label: str, value: str = "", shortcut: Callable[[str], bool] | None = None
    ) -> str | None:
        """Ask the person for a line at the bottom; None where they left."""
        foot = self.screen_stack[0].query_one("#prompt", Prompt)
        self.screen_stack[0].query_one("#bottom").display = True
        answer = await foot.ask(label, value, shortcut)
        if self.focused is None and (home := self.page().initial_focus()) is not None:
            home.focus(scroll_visible=False)  # another page opened meanwhile
        return answer

    async def confirm(self, title: str, lines: Sequence[Line], keys: Mapping[str, str]) -> str:
        """Show lines over the page until one of the keys is pressed; "" for escape.

        Await it in a worker (`run_worker`), never in a key's own handler.
        """
        return await self.push_screen_wait(Confirm(title, lines, keys))

    # -- pages ---------------------------------------------------------------------------

    def open_page(self, name: str, target: str = "", *, from_trail: bool = False) -> None:
        """Show a page, perhaps at an id."""
        if target and not from_trail and name != self.page_name:
            # Only who went after something comes back; number keys go where they say.
            self.trail = [*self.trail[-20:], (self.page_name, self.drafts.cursor)]
        self.page_name = name
        page = self.page(name)
        page.open_at(target)
        if self._drawn:  # before it is shown: what it held when it was left may be long past
            page.draw()
        self.screen_stack[0].query_one("#pages", ContentSwitcher).current = name
        if (home := page.initial_focus()) is not None and not self.query_one(Prompt).is_asking:
            # At once, where `Widget.focus` waits its turn: the next key may have come already,
            # and it is this page's.
            self.screen_stack[0].set_focus(home, scroll_visible=False)
        self.drafts.page = name
        self.call_after_refresh(self.draw_now)

    def action_page(self, name: str) -> None:
        self.trail.clear()
        self.open_page(name)

    async def action_back(self) -> None:
        if self.page().go_back():
            self.draw_now()
        elif self.trail:
            name, target = self.trail.pop()
            self.open_page(name, target, from_trail=True)
        else:
            self.tell("nothing is open here to close: q leaves, 1-6 are pages")

    def action_filter(self) -> None:
        self.run_worker(self._filter())

    async def _filter(self) -> None:
        page = self.page()
        text = await self.ask("filter:", page.filter_text)
        if text is not None:
            page.apply_filter(text.strip())
            self.draw_now()

    def action_goto(self) -> None:
        self.run_worker(self._goto(self.focused))

    async def _goto(self, before: Widget | None) -> None:
        def go_to_top(key: str) -> bool:
            if key == "g" and before is not None and hasattr(before, "action_top"):
                before.action_top()
                return True
            return False

        wanted = (await self.ask("go to (g: top):", shortcut=go_to_top) or "").strip()
        if not wanted:
            return
        if self.page().go_to(wanted):
            self.draw_now()
            return
        for page in self.pages:
            if page.go_to(wanted):
                self.open_page(page.scope, wanted)
                return
        self.tell(f"{wanted}: nothing here is called so", "failed")

    def action_next_pane(self) -> None:
        self._move_pane_focus(1)

    def action_previous_pane(self) -> None:
        self._move_pane_focus(-1)

    def _move_pane_focus(self, by: int) -> None:
        panes = self.page().panes()
        if not panes:
            return
        at = panes.index(self.focused) if self.focused in panes else -by
        panes[(at + by) % len(panes)].focus(scroll_visible=False)

    def action_jump(self) -> None:
        self.run_worker(self._jump_to_pane())

    async def _jump_to_pane(self) -> None:
        """Letters on the panes; the next key chooses."""
        panes = self.page().panes()
        letters = "asdfghjklqwertyuiop"[: len(panes)]
        # As content, in and out: text in a title is never markup.
        titles = [_border_title(pane) for pane in panes]
        for letter, pane, title in zip(letters, panes, titles, strict=False):
            pane.border_title = Content(f"({letter}) ") + title
        chosen: list[Widget] = []

        def choose_pane(key: str) -> bool:
            if key in letters:
                chosen.append(panes[letters.index(key)])
            return True

        try:
            await self.ask("pane:", shortcut=choose_pane)
        finally:
            for pane, title in zip(panes, titles, strict=True):
                if _border_title(pane).plain[4:] == title.plain:  # else it has another one by now
                    pane.border_title = title
        if chosen:
            chosen[0].focus(scroll_visible=False)

    def action_copy(self) -> None:
        self._copy(whole=False)

    def action_copy_pane(self) -> None:
        self._copy(whole=True)

    def _copy(self, *, whole: bool) -> None:
        from studio.tui.terminal.clipboard import copy_text

        self.tell(copy_text(self, self.page().text_to_copy(whole)))

    def action_help(self) -> None:
        from studio.tui.help import HelpScreen

        self.push_screen(HelpScreen(self.page()))

    def action_settings(self) -> None:
        from studio.tui.settings.screen import SettingsScreen

        self.push_screen(SettingsScreen())

    def action_redraw(self) -> None:
        self.pump.picture.forget()  # something else wrote on the terminal
        self.refresh(repaint=True, layout=True)
        self.screen.refresh(repaint=True)

    # -- the run ---------------------------------------------------------------------------

    def ask_run(self, work: Callable[[Session], Awaitable[str]]) -> None:
        """Ask the run and tell what came of it."""
        session = self.session
        if session is None:
            self.tell("no run is open here: 5 lists them, 0 starts one", "failed")
            return

        async def tell_answer() -> None:
            self.tell(await work(session))

        self.queue_request(tell_answer())

    def action_pause(self) -> None:
        paused = self.state is not None and self.state.status == "paused"

        async def send_request(session: Session) -> str:
            await session.control("resume" if paused else "pause")
            return "going on" if paused else "paused: nothing new begins (p goes on)"

        self.ask_run(send_request)

    def action_pause_now(self) -> None:
        async def send_request(session: Session) -> str:
            await session.control("pause", now=True)
            return "paused: tries under way hold at their next call (p goes on)"

        self.ask_run(send_request)

    def action_step(self) -> None:
        async def send_request(session: Session) -> str:
            await session.control("step")
            return "one batch through its commit, then it holds"

        self.ask_run(send_request)

    def action_stop(self) -> None:
        self.run_worker(self._stop())

    async def _stop(self) -> None:
        session = self.session
        if session is not None and not session.living:
            with contextlib.suppress(StudioError):
                await session.control("status")  # it looks whether a process is back
        if session is None or not session.living:
            self.tell("no process of a run is there to stop", "failed")
            return
        keys = {"s": "after this step", "n": "now; what is recorded is kept"}
        told = [line("Everything recorded is kept; the run can be resumed.")]
        if not (key := await self.confirm("Stop the run?", told, keys)):
            return

        async def send_request(session: Session) -> str:
            await session.control("stop", after_step=key == "s")
            return "it ends after this step" if key == "s" else "it ends now"

        self.ask_run(send_request)

    def action_take_over(self) -> None:
        async def send_request(session: Session) -> str:
            await session.take_control()
            return "you decide now"

        self.ask_run(send_request)

    # -- leaving -----------------------------------------------------------------------------

    def action_interrupt(self) -> None:
        now = self.clock()
        if now - self._interrupted < 2.0:
            self.action_detach()
        else:
            self._interrupted = now
            self.tell("ctrl+c again leaves the screen; the run goes on")

    def action_detach(self) -> None:
        self.run_worker(self._detach_and_exit(), exclusive=True, group="detach")

    async def _detach_and_exit(self) -> None:
        await self._close_session()
        self.exit(0)

    async def on_unmount(self) -> None:
        """However the screen ends: drafts on disk, the line closed, the title given back."""
        self.notifier.restore_title()
        await self._close_session()

    def _fatal_error(self) -> None:
        """A bug: its traceback goes out after the terminal is restored, and without values.

        Textual's own prints local variables, among which are texts of models and keys.
        """
        import traceback

        self._exit_renderables.append(Text(sanitize(traceback.format_exc())))
        self._close_messages_no_wait()


def _border_title(pane: Widget) -> Content:
    """Of its border; Textual gives it out as markup only."""
    found = getattr(pane, "_border_title", None)
    return found if isinstance(found, Content) else Content("")


def open_screen(
    workspace: Path, *, run: str | None = None, starting: StartingProcess | None = None
) -> tuple[StudioApp, int]:
    """Open the screen and return when it is left.

    Raises:
        StudioError: the settings of the screen cannot be used, or stderr is no terminal.
    """
    from studio.tui.settings.file import read_settings
    from studio.tui.terminal.terminal import check_terminal, exit_on_hangup

    check_terminal(sys.stderr, sys.stdin, os.environ)
    settings = read_settings(workspace)
    remap_keys(settings.keys, settings.place)
    app = StudioApp(Workspace(workspace), run=run, starting=starting, settings=settings)
    with exit_on_hangup(app):
        code = app.run(mouse=settings.mouse)
    return app, (app.return_code or 0) if code is None else code
