"""A question over the page: for what is destructive or concerns many at once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeVar, cast

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content

from studio.tui.drawing.lines import Lines, line, paragraph
from studio.tui.host import Host
from studio.tui.keymap import Key, format_key, offer_keys
from studio.tui.terminal.textual_parts import Box, TerminalApp
from studio.tui.widgets.chrome import Chrome
from studio.tui.widgets.line_view import LineView

T = TypeVar("T")


class Question(Box[T]):
    """A box that a key decides something in: none that was pressed before it could be read."""

    DEFAULT_CSS = """
    Question { align: center middle; background: transparent; }
    Question Vertical { width: 94%; max-width: 120; height: auto; border: solid $foreground; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._early: dict[str, None] = {}  # keys that were pressed before

    def refuses(self, event: events.Key) -> bool:
        # It may have been asked for, and be made only now.
        painted_at = min((view.painted_at for view in self.query(LineView)), default=math.inf)
        if is_early := event.time < painted_at:
            self._early[format_key(event.key)] = None
            text = f"pressed before the question stood, so not taken: {', '.join(self._early)}"
            cast("Host", self.app).tell(text, "flag")
        return is_early

    def on_screen_resume(self) -> None:
        # Those that were held for it.
        self.app.call_later(cast(TerminalApp, self.app).act_on_keys)

    def on_key(self, event: events.Key) -> None:
        if self.refuses(event) or self.hear(event.key):
            event.stop()

    def hear(self, key: str) -> bool:
        raise NotImplementedError


class Confirm(Question[str]):
    """Shows lines and waits for one of the keys offered; "" is escape. What is long scrolls.

    Nothing has the focus that a key meant for the page below would press.
    """

    def __init__(self, title: str, lines: Lines, keys: Mapping[str, str]) -> None:
        super().__init__()
        self._title, self._lines, self._keys = title, lines, dict(keys)

    @property
    def offered(self) -> Sequence[Key]:
        return offer_keys({**self._keys, "escape": "leaves it"})

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
        """All of the keys stay in view, and the last lines of the page; a long list scrolls."""
        width, room = min(120, self.size.width * 94 // 100) - 2, self.size.height - 6
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

    def hear(self, key: str) -> bool:
        if is_answer := key == "escape" or key in self._keys:
            self.dismiss("" if key == "escape" else key)
        return is_answer
