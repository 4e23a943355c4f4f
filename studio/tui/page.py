"""What the pages have in common, and what they and their boxes may ask of the screen (`Host`).

`studio.tui.app` is the one host; nothing below it may import the app.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import ClassVar, Protocol, TypeVar, cast

from textual.containers import Container
from textual.widget import Widget

from engines.core.errors import RecordError, StudioError
from engines.core.state.run_state import RunState
from engines.record.appender import write_atomic
from engines.record.run_dir import Workspace
from studio.session.session import Message, Session
from studio.tui.drafts import Drafts
from studio.tui.drawing.lines import Lines
from studio.tui.header import SessionStatus
from studio.tui.keymap import Key, bindings
from studio.tui.settings import ScreenSettings
from studio.tui.terminal.frames import FrameClock


class Page(Container):
    """One page. It draws when the app says so, never by itself for events of the run."""

    scope: ClassVar[str] = ""  # of its keys, and its id
    DEFAULT_CSS = "Page { height: 1fr; width: 1fr; }"

    def __init_subclass__(cls, **options: bool) -> None:
        if "BINDINGS" not in vars(cls):
            cls.BINDINGS = [*bindings(cls.scope)]
        super().__init_subclass__(**options)

    def __init__(self) -> None:
        super().__init__(id=self.scope)
        self.filter_text = ""
        self.has_nothing = False  # nothing is here that its keys could be about; set as it is drawn

    @property
    def host(self) -> "Host":
        return cast("Host", self.app)

    @property
    def session(self) -> Session | None:
        return self.host.session

    @property
    def state(self) -> RunState | None:
        session = self.host.session
        return session.state if session is not None else None

    @property
    def is_open(self) -> bool:
        return self.host.page_name == self.scope

    def draw(self) -> None:
        """Show what is; called when the page opens, and at most ten times a second after events."""

    def draw_if_open(self) -> None:
        if self.is_open:
            self.host.draw_now()

    def run_exclusive(self, group: str, work: Callable[[], Awaitable[object]]) -> None:
        """Run it beside the screen, in place of older work of its group.

        A callable, since a coroutine that is replaced before it began is never awaited.
        """
        self.run_worker(work, group=group, exclusive=True)

    def export_file(self, name: str, read: Callable[[], bytes], what: str) -> None:
        """Write what `read` returns into `exports/` of the workspace, in place of an older file.

        In a thread; then the path is told, or why there is none. `what` is such as "3 runs".
        """

        async def export() -> None:
            try:
                path = await asyncio.to_thread(_write_export, self.host.workspace, name, read)
            except StudioError as error:
                self.host.tell(str(error), "failed")
            else:
                self.host.tell(f"{what} written to {path}")

        self.run_exclusive("export", export)

    def handle_message(self, message: Message) -> None:
        """One message of the session, also while another page is open; must be cheap."""

    def open_at(self, target: str = "") -> None:
        """It was opened, perhaps at an id. Focus goes to `initial_focus`."""
        if target:
            self.go_to(target)

    def initial_focus(self) -> Widget | None:
        return next((w for w in self.query("*") if w.focusable), None)

    def panes(self) -> list[Widget]:
        """What `tab` and the jump letters go through, in reading order."""
        return [w for w in self.query("*") if w.can_focus and w.display and w.focusable]

    def usable_keys(self, keys: Sequence[Key]) -> Sequence[Key]:
        """Its own keys as the line at the bottom is to offer them now."""
        return () if self.has_nothing else keys

    def go_to(self, name: str) -> bool:
        """Show an id if this page has it."""
        return False

    def apply_filter(self, text: str) -> None:
        self.filter_text = text
        self.draw()

    def go_back(self) -> bool:
        """Escape: True where something was closed here."""
        if self.filter_text:
            self.apply_filter("")
            return True
        return False

    def footer_keys(self) -> Sequence[Key]:
        """What the bottom line shows instead of the page's keys, while something else is heard."""
        return ()

    def text_to_copy(self, whole: bool) -> str:
        """What `y` copies of the focused pane, or `Y`."""
        from studio.tui.drawing.lines import plain_text
        from studio.tui.widgets.line_view import LineView, RowList

        view = self.app.focused
        if isinstance(view, RowList) and not (whole and view.keys):
            found = next((row for row in view.rows if row.key and row.key == view.key), None)
            lines = (found.line, *found.more) if found is not None else ()
            return "\n".join(plain_text(each).strip() for each in lines)
        return view.text() if isinstance(view, LineView) else ""


def _write_export(workspace: Workspace, name: str, read: Callable[[], bytes]) -> str:
    target = workspace.path / "exports" / name
    try:
        data = read()
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RecordError(
            str(target), f"it could not be written: {error.strerror}.", "Look at `studio doctor`."
        ) from error
    write_atomic(target, data)
    return str(target)


async def resume_run(host: "Host", run: str, how: str, why: str, given: Sequence[str] = ()) -> None:
    """Start a run's process again; where a budget ended it, ask for a larger one.

    `how` and `why` it ended; `given` are settings for the rest of it.
    """
    words = ["--resume", run, *given]
    if how == "budget" and not any(word.startswith("budget.") for word in given):
        from studio.facts.next_command import budget_override

        key = budget_override(why).removesuffix("…")
        more = (await host.ask("budget reached; resume with", key) or "").strip()
        if more in ("", key):
            host.tell("not resumed: the budget is still the one that was reached")
            return
        words += more.split()
    host.start_run(words)


T = TypeVar("T")


class Host(Protocol):
    """The screen on one workspace, attached to at most one run at a time."""

    settings: ScreenSettings
    workspace: Workspace
    person: str  # who decides here, for the journal
    environ: Mapping[str, str]
    keys: tuple[Key, ...]  # remaps included
    clock: Callable[[], float]  # monotonic, in seconds
    frame_clock: FrameClock

    # -- what is there -------------------------------------------------------------------

    @property
    def session(self) -> Session | None:
        """To the run that is shown; None where none is."""

    @property
    def session_status(self) -> SessionStatus: ...

    @property
    def drafts(self) -> Drafts:
        """Of the run that is shown."""

    @property
    def is_small(self) -> bool:
        """Whether the terminal is smaller than what the pages are made for."""

    @property
    def is_asking(self) -> bool:
        """Whether the person types an answer at the bottom line now."""

    # -- what is shown -------------------------------------------------------------------

    @property
    def page_name(self) -> str:
        """The scope of the page that is open."""

    def open_page(self, name: str, target: str = "") -> None:
        """Show a page, perhaps at an id; escape comes back from there."""

    def tell(self, text: str, style: str = "") -> None:
        """Say on the line above the keys what was done last, or what went wrong."""

    def forget_message(self, *, also_errors: bool = True) -> None:
        """Take back what `tell` said: another page is open, or it is true no longer."""

    def redraw_soon(self) -> None:
        """Draw the open page in the next frame."""

    def draw_now(self) -> None:
        """Draw the open page and the lines around it at once: a key was pressed."""

    def draw_chrome(self) -> None:
        """Draw the lines above and below the page alone."""

    def apply_settings(self) -> None:
        """Let the terminal show what the settings say, after one was changed."""

    # -- asking the person ---------------------------------------------------------------

    def ask(
        self, label: str, value: str = "", shortcut: Callable[[str], bool] | None = None
    ) -> Awaitable[str | None]:
        """Ask for a line at the bottom, from now on; None where the person left it."""

    async def confirm(self, title: str, lines: Lines, keys: Mapping[str, str]) -> str:
        """Show lines over the page until one of the keys is pressed; "" for escape.

        Await it in a worker (`run_worker`), never in a key's own handler.
        """

    # -- asking the run ------------------------------------------------------------------

    def attach(self, run: str) -> None:
        """Leave the run that is shown, if any, and show this one."""

    def start_run(self, arguments: Sequence[str]) -> None:
        """Start a run's process with arguments of `studio headless`, and attach to it."""

    def ask_run(self, work: Callable[[Session], Awaitable[str]]) -> None:
        """Ask the run, and tell what it answered."""

    def queue_request(self, work: Coroutine[object, object, object]) -> None:
        """Ask something of the run; one thing after another, in the order of the keys."""

    async def wait_for_requests(self) -> None:
        """Wait until everything asked so far was answered."""

    # -- the terminal --------------------------------------------------------------------

    def leave(self) -> None:
        """Close the screen; the run goes on."""

    def send_to_terminal(self, sequence: str) -> None:
        """Write a control sequence, beside what is drawn."""

    def copy_to_clipboard(self, text: str) -> None:
        """Copy by OSC 52."""
