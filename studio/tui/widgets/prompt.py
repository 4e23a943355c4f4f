"""One line at the bottom that asks for a text, without covering anything."""

from asyncio import Future, get_running_loop
from collections.abc import Callable, Sequence
from typing import cast

from textual import events
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.widget import Widget
from textual.widgets import Input, Static

from studio.tui.host import Host
from studio.tui.keymap import Key, offer_keys
from studio.tui.terminal.textual_parts import Box, is_visible, make_compact
from studio.tui.widgets.line_view import LineView

ASK_KEYS = offer_keys({"enter": "hands it in", "escape": "leaves"})
"""What the bottom line tells of while a text is asked for."""


class _Field(Input):
    """An input that leaves on escape, and offers its first letter to who asked."""

    def __init__(self) -> None:
        super().__init__(select_on_focus=False)
        make_compact(self)

    def on_mount(self) -> None:
        self.cursor_blink = False

    def on_key(self, event: events.Key) -> None:
        prompt = self.screen.query_one(Prompt)
        shortcut = None if self.value else prompt.shortcut
        if event.key == "escape" or (shortcut is not None and shortcut(event.key)):
            event.stop()
            event.prevent_default()
            prompt.answer(None)


class Prompt(Horizontal):
    """Hidden until something is asked; gives the focus back afterwards."""

    DEFAULT_CSS = """
    Prompt { height: 1; display: none; }
    Prompt Static { width: auto; height: 1; text-style: bold; }
    Prompt Input { border: none; height: 1; padding: 0; width: 1fr; background: transparent; }
    Prompt Input:focus { border: none; }
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._asked: Future[str | None] | None = None
        self._before: Widget | None = None
        self.shortcut: Callable[[str], bool] | None = None

    def compose(self) -> ComposeResult:
        yield Static("", markup=False)
        yield _Field()

    @property
    def is_asking(self) -> bool:
        return self._asked is not None

    def ask(
        self, label: str, value: str = "", shortcut: Callable[[str], bool] | None = None
    ) -> Future[str | None]:
        """Ask for a line, with a value to begin with; None where it was left.

        The field has the focus at once: the next key is its own. `shortcut` hears the first key
        while nothing is typed; True: that was the answer.
        """
        if self._asked is None:
            self._before = self.screen.focused
        elif not self._asked.done():
            self._asked.set_result(None)  # the line goes on, with another question
        asked: Future[str | None] = get_running_loop().create_future()
        self._asked = asked
        self.shortcut = shortcut
        self.query_one(Static).update(f" {label} ")
        field = self.query_one(_Field)
        field.value = value
        field.cursor_position = len(value)
        self.display = True
        self.screen.set_focus(field, scroll_visible=False)
        self._redraw_keys()
        return asked

    def _redraw_keys(self) -> None:
        """The line below tells the keys that are heard now."""
        if redraw := getattr(self.app, "draw_chrome", None):
            self.call_later(redraw)

    def answer(self, text: str | None) -> None:
        asked, self._asked, self.shortcut = self._asked, None, None
        self.display = False
        before, self._before = self._before, None
        # A page may have opened meanwhile: nothing that is out of sight may hear keys.
        seen = before is not None and before.is_attached and is_visible(before)
        self.screen.set_focus(before if seen else None, scroll_visible=False)
        self._redraw_keys()
        if asked is not None and not asked.done():
            asked.set_result(text)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.answer(event.value)


class PromptBox(Box[None]):
    """Lines or rows over a page, and a prompt below them."""

    offers: tuple[Key, ...]
    hint: str  # on the lower border

    def __init__(self, title: str, view: LineView, prompt: Prompt) -> None:
        super().__init__()
        self.view, self.prompt = view, prompt
        self.frame = Vertical(view, prompt, classes="box")
        self.frame.border_title, self.frame.border_subtitle = title, self.hint

    @property
    def host(self) -> Host:
        return cast("Host", self.app)

    @property
    def offered(self) -> Sequence[Key]:
        return ASK_KEYS if self.prompt.is_asking else self.offers

    def compose(self) -> ComposeResult:
        yield self.frame

    def on_mount(self) -> None:
        self.view.focus()
        self.call_after_refresh(self.show)

    def on_resize(self, event: events.Resize) -> None:
        self.call_after_refresh(self.show)

    def show(self) -> None:
        """Show what there is now."""
        raise NotImplementedError

    def action_leave(self) -> None:
        self.dismiss(None)
