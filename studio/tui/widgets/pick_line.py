"""The line above a list that is chosen from: letters narrow the list, arrows go through it."""

from __future__ import annotations

from textual import events
from textual.message import Message
from textual.widgets import Input

from studio.tui.keymap import offer_keys
from studio.tui.terminal.textual_parts import make_compact
from studio.tui.widgets.row_list import RowList

PICK_KEYS = offer_keys({"enter": "chooses", "escape": "leaves", "down": "next", "up": "previous"})
"""What the bottom line tells of meanwhile."""


class PickLine(Input):
    """Has the focus, so that no letter that is typed is a key of the screen."""

    DEFAULT_CSS = """
    PickLine { border: none; height: 1; padding: 0 2; width: 1fr; background: transparent; }
    PickLine:focus { border: none; }
    """

    class Left(Message):
        """Escape."""

    def __init__(self, of: str, *, id: str | None = None) -> None:
        super().__init__(id=id, select_on_focus=False, placeholder="type here")
        make_compact(self)
        self.cursor_blink = False
        self._of = of  # the id of the list

    def on_key(self, event: events.Key) -> None:
        rows = self.screen.query_one(f"#{self._of}", RowList)
        match event.key:
            case "escape":
                self.post_message(self.Left())
            case "down" | "up":
                rows.action_move(1 if event.key == "down" else -1)
            case "pagedown" | "pageup":
                rows.action_move_page(1 if event.key == "pagedown" else -1)
            case _:
                return
        event.stop()
        event.prevent_default()
