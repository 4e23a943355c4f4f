"""A question over the page, for what is destructive, or a list to tick for what concerns many."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

from textual import events
from textual.app import App, ComposeResult
from textual.containers import Vertical
from textual.content import Content

from studio.tui.drawing.cells import Glyphs, choose_glyphs
from studio.tui.drawing.lines import Lines, Row, line, paragraph
from studio.tui.host import Host
from studio.tui.keymap import Key, format_key, offer_keys
from studio.tui.terminal.textual_parts import Box, TerminalApp
from studio.tui.widgets.chrome import Chrome, footer_line, footer_presses
from studio.tui.widgets.line_view import LineView
from studio.tui.widgets.row_list import RowList

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


_TICK = 4
"""Cells of a tick and the blank behind it."""


Title = Callable[[int, int], str]
"""What is done with so many of so many."""
RowsFor = Callable[[int], Sequence[Row]]
"""Rows for a width."""


async def choose(
    app: App[Any], title: Title, rows: RowsFor, *, enter: str
) -> tuple[str, ...] | None:
    """Show rows over the page; the keys of those left ticked by `enter`, None for escape.

    Await it in a worker, never in a key's own handler.
    """
    signs = choose_glyphs(app.has_class("-ascii"))
    return await app.push_screen_wait(TickList(title, rows, signs, enter=enter))


class TickList(Question[tuple[str, ...] | None]):
    """Rows that are all ticked at first."""

    def __init__(self, title: Title, rows: RowsFor, signs: Glyphs, *, enter: str) -> None:
        super().__init__()
        self._title, self._make_rows, self._signs, self._enter = title, rows, signs, enter
        self._rows: Sequence[Row] = ()
        self._off: set[str] = set()

    def compose(self) -> ComposeResult:
        with Vertical(classes="box"):
            yield RowList(id="ticked")
            yield Chrome(id="offered")

    @property
    def offered(self) -> Sequence[Key]:
        moves = {"escape": "leaves it", "space": "ticks", "j": "down", "k": "up"}
        return offer_keys({"enter": self._enter, **moves})

    def on_mount(self) -> None:
        self._lay_out()

    def on_resize(self, event: events.Resize) -> None:
        self._lay_out()

    def _lay_out(self) -> None:
        """The keys stay in view, a long list scrolls; wordings are whole at any width."""
        listed = self.query_one(RowList)
        width = min(120, self.size.width * 94 // 100) - 2
        self._rows = self._make_rows(width - 2 - _TICK)
        lines = sum(1 + len(row.more) for row in self._rows)
        listed.styles.height = max(1, min(lines, self.size.height - 7))
        offered = self.query_one(Chrome)
        offered.styles.height = 1
        offered.show_line(0, footer_line(self.offered, width), footer_presses(self.offered))
        self._draw()

    def _draw(self) -> None:
        listed, total = self.query_one(RowList), sum(bool(row.key) for row in self._rows)
        listed.show_rows([self._ticked(row) for row in self._rows])
        title = self._title(total - len(self._off), total)
        self.query_one(Vertical).border_title = Content(title)
        self.call_after_refresh(self._say_more)

    def _say_more(self) -> None:
        """How many rows are out of sight, once it is known where they stand."""
        text = self.query_one(RowList).more_text()
        self.query_one(Vertical).border_subtitle = Content(text)

    def _ticked(self, row: Row) -> Row:
        sign = " " if row.key in self._off else self._signs.approved
        tick = line((f"[{sign}] " if row.key else " " * _TICK, "focus"))
        return replace(
            row,
            line=(*tick, *row.line),
            more=tuple(((" " * _TICK, ""), *each) for each in row.more),
        )

    def on_row_list_moved(self, event: RowList.Moved) -> None:
        event.stop()
        self._say_more()

    def hear(self, key: str) -> bool:
        left = tuple(row.key for row in self._rows if row.key and row.key not in self._off)
        if key == "space":
            self._off ^= {key for key in [self.query_one(RowList).key] if key}
            self._draw()
        elif key == "escape":
            self.dismiss(None)
        elif key == "enter" and left:
            self.dismiss(left)
        elif key == "enter":
            self.query_one(Vertical).border_subtitle = "nothing is ticked: space ticks, esc leaves"
        return key in ("space", "escape", "enter")
