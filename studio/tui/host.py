"""What pages, boxes over them and helpers of the terminal may ask of the screen they are on.

`studio.tui.app` is the one implementation; nothing below it may import the app.
"""

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from engines.record.run_dir import Workspace
from studio.session.session import Session
from studio.tui.drafts import Drafts
from studio.tui.drawing.lines import Lines
from studio.tui.header import SessionStatus
from studio.tui.keymap import Key
from studio.tui.settings.file import ScreenSettings

T = TypeVar("T")


class Host(Protocol):
    """The screen on one workspace, attached to at most one run at a time."""

    settings: ScreenSettings
    workspace: Workspace
    person: str  # who decides here, for the journal
    environ: Mapping[str, str]
    keys: tuple[Key, ...]  # remaps included
    clock: Callable[[], float]  # monotonic, in seconds

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

    def expect_question(self, work: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        """The same work, which may `confirm`: until that stands, no key is acted on."""

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
