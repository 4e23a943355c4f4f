"""A list over the page in which each entry is ticked or not; enter takes what is ticked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from textual import events
from textual.app import App, ComposeResult
from textual.containers import Vertical
from textual.content import Content

from studio.tui.drawing.cells import Glyphs, choose_glyphs
from studio.tui.drawing.lines import Row, line
from studio.tui.keymap import Key, offer_keys
from studio.tui.widgets.chrome import Chrome, footer_line, footer_presses
from studio.tui.widgets.confirm import Question
from studio.tui.widgets.row_list import RowList

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
