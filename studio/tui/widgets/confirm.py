"""A question over the page: for what is destructive or concerns many at once."""

from __future__ import annotations

from collections.abc import Mapping

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content

from studio.tui.drawing.lines import Lines, line, paragraph
from studio.tui.keymap import format_key
from studio.tui.terminal.textual_parts import Box
from studio.tui.widgets.chrome import Chrome
from studio.tui.widgets.line_view import LineView


class Confirm(Box[str]):
    """Shows lines and waits for one of the keys offered; "" is escape. What is long scrolls.

    Nothing has the focus that a key meant for the page below would press.
    """

    DEFAULT_CSS = """
    Confirm { align: center middle; background: transparent; }
    Confirm Vertical {
        width: 94%; max-width: 120; height: auto; border: solid $foreground;
    }
    """

    def __init__(self, title: str, lines: Lines, keys: Mapping[str, str]) -> None:
        super().__init__()
        self._title, self._lines, self._keys = title, lines, dict(keys)

    def compose(self) -> ComposeResult:
        with Vertical(classes="box") as box:
            box.border_title = Content(self._title)
            yield LineView(id="asked")
            yield Chrome(id="offered")

    def on_mount(self) -> None:
        self._lay_out()
        offered = self.query_one(Chrome)
        for number, (key, what) in enumerate(self._keys.items()):
            shown = format_key(key)
            offered.show_line(number, line(" ", (shown, "key"), f" {what}"), {shown: (key,)})

    def on_resize(self, event: events.Resize) -> None:
        self._lay_out()

    def _lay_out(self) -> None:
        """All of the keys stay in view; a long list scrolls."""
        width, room = min(120, self.size.width * 94 // 100) - 2, self.size.height - 4
        if callable(self._lines):
            shown = [*self._lines(width)]
        else:
            shown = [row for each in self._lines for row in paragraph(each, width, "  ")]
        room = max(1, room - len(self._keys))
        asked = self.query_one(LineView)
        asked.styles.height = min(len(shown), room)
        asked.show_lines(shown)
        self.query_one(Chrome).styles.height = len(self._keys)
        more = "more below (j), " if len(shown) > room else ""
        self.query_one(Vertical).border_subtitle = f"{more}esc leaves it"

    def on_key(self, event: events.Key) -> None:
        if event.key == "escape" or event.key in self._keys:
            event.stop()
            if event.key == "escape":
                self.dismiss("")
            elif self.query_one(LineView).was_painted:
                self.dismiss(event.key)
            else:
                self.query_one(Vertical).border_subtitle = "it is shown only now: press again"
