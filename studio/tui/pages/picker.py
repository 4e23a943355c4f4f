"""A list to choose from in the place of what a page shows, narrowed by what is typed above it."""

from collections.abc import Callable, Sequence

from textual import events
from textual.widgets import Input

from studio.tui.drawing.lines import Row
from studio.tui.keymap import Key, offer_keys
from studio.tui.page import Page
from studio.tui.terminal.textual_parts import make_compact
from studio.tui.widgets.line_view import RowList

_KEYS = offer_keys({"enter": "chooses", "escape": "leaves", "down": "next", "up": "previous"})


class PickLine(Input):
    """Has the focus, so that no letter that is typed is a key of the screen."""

    DEFAULT_CSS = """
    PickLine { border: none; height: 1; padding: 0 2; width: 1fr; background: transparent; }
    PickLine:focus { border: none; }
    """

    def __init__(self, picker: "Picker", *, id: str) -> None:
        super().__init__(id=id, select_on_focus=False, placeholder="type here")
        make_compact(self)
        self.cursor_blink = False
        self._picker = picker

    def on_key(self, event: events.Key) -> None:
        """Arrows go through the list."""
        match event.key:
            case "escape":
                self._picker.close()
            case "down" | "up":
                self._picker.list.action_move(1 if event.key == "down" else -1)
            case "pagedown" | "pageup":
                self._picker.list.action_move_page(1 if event.key == "pagedown" else -1)
            case _:
                return
        event.stop()
        event.prevent_default()

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        if self._picker.side:
            self._picker.draw()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        if self._picker.side:
            self._picker.choose()


class Picker:
    """A line and a list; `choose` is called for enter. It is open while `side` says what for."""

    def __init__(self, page: Page, choose: Callable[[], None]) -> None:
        self._page, self.choose = page, choose
        self.line = PickLine(self, id=f"{page.scope}-pick")
        self.list = RowList(id=f"{page.scope}-choices", classes="pane")
        self.side = ""
        self._narrowed = ""  # what the list was last narrowed to

    @property
    def keys(self) -> Sequence[Key]:
        """What is heard while it is open."""
        return _KEYS if self.side else ()

    def open(self, side: str) -> None:
        self._turn_to(side)
        self.load()

    def close(self) -> None:
        self._turn_to("")

    def _turn_to(self, side: str) -> None:
        page = self._page
        self.side, self._narrowed, page.filter_text = side, "", ""
        page.set_class(bool(side), "-choosing")
        with page.prevent(Input.Changed):
            self.line.value = ""
        page.screen.set_focus(page.initial_focus(), scroll_visible=False)
        page.call_after_refresh(page.draw_if_open)  # only then the size of the list is known
        page.host.draw_now()

    def show_narrowed(self, rows: Sequence[Row], likeliest: str) -> None:
        """Show what is left; the cursor on the likeliest, unless somebody has moved since."""
        text = self.line.value.strip()
        self.list.show_rows(rows, likeliest if text != self._narrowed else None)
        self._narrowed = text

    def load(self) -> None:
        """Have read what there is."""
        raise NotImplementedError

    def draw(self) -> None:
        """Draw the list for what is typed."""
        raise NotImplementedError
