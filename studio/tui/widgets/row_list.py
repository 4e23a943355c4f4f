"""A list with a cursor that stays on what it stands for, whatever is inserted above it."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate

from textual.events import Click
from textual.geometry import Size
from textual.message import Message

from studio.tui.drawing.lines import Line, Row
from studio.tui.widgets.line_view import LineView


class RowList(LineView):
    """Rows of one line or several, one under the cursor: marked `>`, what is plain there bold."""

    class Moved(Message):
        def __init__(self, rows: "RowList", key: str) -> None:
            super().__init__()
            self.rows, self.key = rows, key

        @property
        def is_current(self) -> bool:
            """Whether the cursor still stands there: keys come faster than they are heard of.

            Who follows the cursor by drawing its list anew would chase older moves for ever.
            """
            return self.rows.key == self.key

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.rows: list[Row] = []
        self._starts: list[int] = []  # the first line of each row
        self._at = -1
        self._was_moved = False
        self.chosen: frozenset[str] = frozenset()  # rows of a range or marked ones, with a `*`

    @property
    def key(self) -> str:
        """What is under the cursor, "" for nothing."""
        return self.rows[self._at].key if 0 <= self._at < len(self.rows) else ""

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(row.key for row in self.rows if row.key)

    def show_rows(self, rows: Sequence[Row], key: str | None = None) -> None:
        """Show these, the cursor on `key` or where it was, else on the nearest row left."""
        before, drawn, count = self.key, self._drawn_lines(), len(self.lines)
        self.rows = list(rows)
        found = self._find(before if key is None else key)
        self._at = self._nearest_row(self._at) if found is None else found
        self.lines = [each for row in self.rows for each in (row.line, *row.more)]
        self._starts = [0, *accumulate(1 + len(row.more) for row in self.rows)][:-1]
        self._folded_for = self.line_width
        self._redraw_changed(drawn)
        if len(self.lines) != count:
            self.set_content_size(Size(self.line_width, len(self.lines)))
        self._scroll_to_cursor()
        self._tell_more()
        if self.key != before:
            self.post_message(self.Moved(self, self.key))

    def mark_range(self, keys: frozenset[str]) -> None:
        drawn, self.chosen = self._drawn_lines(), keys
        self._redraw_changed(drawn)

    def go_to(self, key: str, margin: int = 0) -> bool:
        """Put the cursor on a row, with lines around it in view; False where none has that key."""
        if (number := self._find(key)) is None:
            return False
        self._move(number)
        self._scroll_to_cursor(margin=margin)
        return True

    def line_at(self, at: int) -> Line:
        if not 0 <= at < len(self.lines):
            return ()
        number = bisect_right(self._starts, at) - 1
        if at != self._starts[number]:
            return (("  ", ""), *self.lines[at])
        row, here = self.rows[number], number == self._at
        star = "*" if row.key and row.key in self.chosen else " "
        if not here:
            return ((star + " ", "focus" if star == "*" else ""), *row.line)
        return ((">" + star, "focus"), *((text, style or "title") for text, style in row.line))

    def _drawn_lines(self) -> list[Line]:
        top = round(self.scroll_y)
        return [self.line_at(at) for at in range(top, top + self.size.height)]

    def _redraw_changed(self, drawn: Sequence[Line]) -> None:
        """Draw again what in sight differs from what was drawn."""
        if not self.size:
            self.refresh_line(0)
        for at, before in enumerate(drawn, round(self.scroll_y)):
            if self.line_at(at) != before:
                self.refresh_line(at)

    @property
    def out_of_sight(self) -> tuple[int, int]:
        """Rows that begin above what is seen, and rows that end below it."""
        top = round(self.scroll_y)
        above = bisect_right(self._starts, top - 1)
        whole = bisect_right([*self._starts, len(self.lines)], top + self.size.height, 1) - 1
        hidden = self.rows[:above], self.rows[max(0, whole) :]
        return sum(bool(row.key) for row in hidden[0]), sum(bool(row.key) for row in hidden[1])

    def more_text(self) -> str:
        """`3 more above, 12 more below`; "" where all are seen."""
        counts = zip(self.out_of_sight, ("above", "below"), strict=True)
        return ", ".join(f"{n} more {where}" for n, where in counts if n)

    def on_resize(self) -> None:
        # Where nobody has moved yet, how low the list was as its rows came decides nothing.
        self._scroll_to_cursor(None if self._was_moved else 0)

    def _find(self, key: str) -> int | None:
        keys = [row.key for row in self.rows]
        return keys.index(key) if key and key in keys else None

    def _nearest_row(self, at: int) -> int:
        """The first row from `at` on that can be chosen, else the last one before it, else -1."""
        choosable = [number for number, row in enumerate(self.rows) if row.key]
        at = min(max(at, 0), len(self.rows) - 1)
        return next((n for n in choosable if n >= at), choosable[-1] if choosable else -1)

    def _move(self, number: int) -> None:
        if number == self._at or not 0 <= number < len(self.rows):
            return
        old, self._at, self._was_moved = self._at, number, True
        for changed in (old, number):
            if 0 <= changed < len(self.rows):
                self.refresh_line(self._starts[changed])
        self._scroll_to_cursor()
        self.post_message(self.Moved(self, self.key))

    def _scroll_to_cursor(self, top: int | None = None, margin: int = 0) -> None:
        """All lines of the row in sight, or as many from its first on as there is room for.

        As little as can be is scrolled from `top`, where the list stands if it is None. The heading
        that the row stands under comes into sight with it where there is room for both.
        """
        height, top = self.size.height, round(self.scroll_y) if top is None else top
        if self._at < 0 or not height:
            return
        margin = min(margin, height // 3)
        start = max(0, self._starts[self._at] - margin)
        end = self._starts[self._at] + 1 + len(self.rows[self._at].more) + margin
        heads = self._at
        while heads and not self.rows[heads - 1].key:
            heads -= 1
        if end - self._starts[heads] <= height:
            start = min(start, self._starts[heads])
        if start < top or end - start > height:
            top = start
        elif end > top + height:
            top = end - height
        # A row is seen from its first line on, also where it is wrapped anew.
        top = self._starts[min(bisect_left(self._starts, top), self._at)]
        if top != round(self.scroll_y):
            self.scroll_to(y=top, animate=False, force=True)

    def action_move(self, by: int) -> None:
        """Over rows that stand for something; others are headings."""
        numbers = range(self._at + 1, len(self.rows)) if by > 0 else range(self._at - 1, -1, -1)
        choosable = [number for number in numbers if self.rows[number].key]
        if passed := choosable[: abs(by)]:
            self._move(passed[-1])

    def action_move_page(self, by: int) -> None:
        """Half a page of lines on, but one row at least."""
        if self.rows and self._at >= 0:
            at = self._starts[self._at] + by * max(1, self.size.height // 2)
            at = min(max(0, at), len(self.lines) - 1)
            self.action_move(bisect_right(self._starts, at) - 1 - self._at or by)

    def on_click(self, event: Click) -> None:
        at = event.y + round(self.scroll_y)
        if 0 <= at < len(self.lines):
            number = bisect_right(self._starts, at) - 1
            if self.rows[number].key:
                self._move(number)
