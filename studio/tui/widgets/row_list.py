"""A list with a cursor that stays on what it stands for, whatever is inserted above it."""

from __future__ import annotations

from collections.abc import Sequence

from textual.events import Click
from textual.message import Message
from textual.strip import Strip

from studio.tui.drawing.lines import Line, Row
from studio.tui.widgets.line_view import LineView, strip_of


class RowList(LineView):
    """Rows, one of them under the cursor: marked `>`, what is plain in it bold."""

    class Moved(Message):
        """The cursor stands on another row."""

        def __init__(self, rows: RowList, key: str) -> None:
            super().__init__()
            self.rows, self.key = rows, key

        @property
        def control(self) -> RowList:
            return self.rows

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.rows: list[Row] = []
        self._at = -1
        self.chosen: frozenset[str] = frozenset()  # rows of a range, marked `*`

    @property
    def key(self) -> str:
        """What is under the cursor, "" for nothing."""
        return self.rows[self._at].key if 0 <= self._at < len(self.rows) else ""

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(row.key for row in self.rows if row.key)

    def show_rows(self, rows: Sequence[Row], key: str | None = None) -> None:
        """Show these, the cursor on `key` or where it was, else on the nearest row left."""
        before = self.key
        self.rows = list(rows)
        found = self._find(before if key is None else key)
        self._at = self._nearest_row(self._at) if found is None else found
        self.show_lines([self._row_line(number) for number in range(len(self.rows))])
        self._scroll_to_cursor()
        if self.key != before:
            self.post_message(self.Moved(self, self.key))

    def mark_range(self, keys: frozenset[str]) -> None:
        self.chosen = keys
        self.show_lines([self._row_line(number) for number in range(len(self.rows))])

    def go_to(self, key: str, margin: int = 0) -> bool:
        """Put the cursor on a row, with rows around it in view; False where none has that key."""
        if (number := self._find(key)) is None:
            return False
        self._move(number)
        self._scroll_to_cursor(margin)
        return True

    def show_lines(self, lines: Sequence[Line]) -> None:
        before = len(self.lines)
        super().show_lines(lines)
        if before != len(self.lines):  # the sign in the last row counts the others
            self.refresh_line(round(self.scroll_y) + max(0, self.size.height - 1))

    def render_line(self, y: int) -> Strip:
        """A row; in the first and the last one how many more there are, where the list goes on."""
        strip, width, height = super().render_line(y), self.size.width, self.size.height
        above = round(self.scroll_y)
        below = len(self.lines) - above - height
        sign = f" {above} above" if y == 0 and above > 0 else ""
        sign = f" {below} below" if y == height - 1 > 0 and below > 0 else sign
        if not sign or width < 3 * len(sign):
            return strip
        shown = strip_of(((sign, "dim"),), len(sign), self._base, self.app.theme)
        return Strip.join([strip.crop(0, width - len(sign)), shown])

    def _find(self, key: str) -> int | None:
        keys = [row.key for row in self.rows]
        return keys.index(key) if key and key in keys else None

    def _nearest_row(self, at: int) -> int:
        """The first row from `at` on that can be chosen, else the last one before it, else -1."""
        choosable = [number for number, row in enumerate(self.rows) if row.key]
        at = min(max(at, 0), len(self.rows) - 1)
        return next((n for n in choosable if n >= at), choosable[-1] if choosable else -1)

    def _row_line(self, number: int) -> Line:
        row = self.rows[number]
        here = number == self._at
        mark = ">" if here else "*" if row.key and row.key in self.chosen else " "
        if not here:
            return ((mark + " ", "focus" if mark == "*" else ""), *row.line)
        return ((mark + " ", "focus"), *((text, style or "title") for text, style in row.line))

    def _move(self, number: int) -> None:
        if number == self._at or not 0 <= number < len(self.rows):
            return
        old, self._at = self._at, number
        for changed in (old, number):
            if 0 <= changed < len(self.lines):
                self.lines[changed] = self._row_line(changed)
                self.refresh_line(changed)
        self._scroll_to_cursor()
        self.post_message(self.Moved(self, self.key))

    def _scroll_to_cursor(self, margin: int = 0) -> None:
        height, top = self.size.height, round(self.scroll_y)
        if self._at < 0 or not height:
            return
        margin = min(margin, height // 3)
        if self._at < top + margin:
            self.scroll_to(y=max(0, self._at - margin), animate=False, force=True)
        elif self._at >= top + height - margin:
            self.scroll_to(y=self._at - height + 1 + margin, animate=False, force=True)

    def _step(self, rows: int) -> None:
        """Over rows that stand for something; others are headings."""
        numbers = range(self._at + 1, len(self.rows)) if rows > 0 else range(self._at - 1, -1, -1)
        choosable = [number for number in numbers if self.rows[number].key]
        if passed := choosable[: abs(rows)]:
            self._move(passed[-1])

    def on_resize(self) -> None:
        self._scroll_to_cursor()

    def on_click(self, event: Click) -> None:
        at = event.y + round(self.scroll_y)
        if 0 <= at < len(self.rows) and self.rows[at].key:
            self._move(at)
