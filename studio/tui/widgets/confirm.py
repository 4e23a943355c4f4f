"""A question that covers the page: for what is destructive or concerns many at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content

from studio.tui.drawing.lines import Line, line
from studio.tui.keymap import format_key
from studio.tui.terminal.textual_parts import Box
from studio.tui.widgets.chrome import Chrome
from studio.tui.widgets.line_view import LineView


class Confirm(Box[str]):
    """Shows lines and waits for one of the keys offered; "" is escape.

    Nothing has the focus that a key meant for the page below would press.
    """

    DEFAULT_CSS = """
    Confirm { align: center middle; background: transparent; }
    Confirm Vertical {
        width: 80%; min-width: 58; max-width: 100; height: auto; border: solid $foreground;
    }
    """

    def __init__(self, title: str, lines: Sequence[Line], keys: Mapping[str, str]) -> None:
        super().__init__()
        self._title, self._shown, self._keys = title, list(lines), dict(keys)

    def compose(self) -> ComposeResult:
        with Vertical(classes="box") as box:
            box.border_title = Content(self._title)
            box.border_subtitle = "esc leaves it"
            yield LineView(id="asked")
            yield Chrome(id="offered")

    def on_mount(self) -> None:
        self._lay_out()
        self.query_one(LineView).show_lines(self._shown)
        offered = self.query_one(Chrome)
        for number, (key, what) in enumerate(self._keys.items()):
            shown = format_key(key)
            offered.show_line(number, line(" ", (shown, "key"), f" {what}"), {shown: (key,)})

    def on_resize(self, event: events.Resize) -> None:
        self._lay_out()

    def _lay_out(self) -> None:
        """All of the keys stay in view; a long list scrolls."""
        room = self.size.height - 4 - len(self._keys)
        self.query_one(LineView).styles.height = max(1, min(len(self._shown), room))
        self.query_one(Chrome).styles.height = len(self._keys)

    def on_key(self, event: events.Key) -> None:
        if event.key == "escape" or event.key in self._keys:
            event.stop()
            self.dismiss("" if event.key == "escape" else event.key)
