"""Lines that scroll, lists with a cursor, and the lines that stand on every page."""

import math
import time
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.binding import BindingType
from textual.content import Content
from textual.events import Click
from textual.geometry import Region, Size
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from studio.secrets.sanitize import one_line
from studio.tui.drawing import cells, themes
from studio.tui.drawing.lines import Line, Row, Span, crop_line, line, plain_text, width_of
from studio.tui.keymap import Key, bindings
from studio.tui.terminal.textual_parts import FixedView


@lru_cache(maxsize=1024)
def strip_of(of: Line, width: int, base: Style, theme: str) -> Strip:
    """Exactly `width` cells of a line: the one way from a line to segments, for every terminal."""
    settled = tuple(
        # A blank where a sign could stand is not reversed, as the sign is without colours.
        (cells.flatten(text), style if text.strip() or style not in themes.LOUD else "")
        for text, style in of
    )
    segments = [
        Segment(text, base + themes.style(style, theme) if style else base)
        for text, style in crop_line(settled, width)
    ]
    return Strip(segments).adjust_cell_length(width, base)


class LineView(FixedView, can_focus=True):
    """A pane of lines. Its geometry never follows its content."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("list")]
    DEFAULT_CSS = """
    LineView { height: 1fr; width: 1fr; overflow-x: hidden; overflow-y: auto; scrollbar-size: 0 0; }
    """

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.lines: list[Line] = []
        self._folded_for = 0  # the room there was when lines were last shown
        self._base = Style()  # beneath the styles of the lines, as drawn last
        self.painted_at = math.inf  # when it was drawn first, by the clock of events
        self._has_border = classes == "pane"
        self._note = ""  # in the lower border, behind how much is out of sight

    def say_below(self, text: str = "") -> None:
        """Write this into the lower border, behind how much is out of sight."""
        self._note = text
        self._tell_more()

    def more_text(self) -> str:
        """What is out of sight; "" where nothing is."""
        is_more = len(self.lines) > round(self.scroll_y) + self.size.height
        return "more below (tab, j)" if is_more else ""

    def _tell_more(self) -> None:
        if self._has_border and self.size:
            self.border_subtitle = Content("  ".join(filter(None, (self.more_text(), self._note))))

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        self._tell_more()

    def on_resize(self) -> None:
        self._rewrap()
        self._tell_more()

    def on_show(self) -> None:
        self._rewrap()  # hidden, it had no room at all

    def _rewrap(self) -> None:
        """Where the lines were folded for another width their page draws them once more."""
        if self._folded_for != self.line_width and (
            redraw := getattr(self.app, "redraw_soon", None)
        ):
            redraw()

    @property
    def line_width(self) -> int:
        """Cells a line may take; before its place is known, those of the whole screen."""
        return self.scrollable_content_region.width or max(1, self.app.size.width)

    def show_lines(self, lines: Sequence[Line]) -> None:
        """Show these; `ScreenBuffer` sends only cells that differ from before."""
        self._folded_for = self.line_width
        if self.lines != (lines := list(lines)):
            self.lines = lines
            self._lines_changed()

    def _lines_changed(self) -> None:
        self.set_content_size(Size(self.line_width, len(self.lines)))
        self._tell_more()
        self.refresh()

    def text(self) -> str:
        """All of it, as `copy_pane` gives it."""
        return "\n".join(plain_text(line).rstrip() for line in self.lines)

    def line_at(self, at: int) -> Line:
        """How line `at` is drawn; a list puts its cursor there."""
        return self.lines[at] if at < len(self.lines) else ()

    def render_lines(self, crop: Region) -> list[Strip]:
        self.painted_at = min(self.painted_at, time.monotonic())
        self._base = self.rich_style  # once for all lines: it is worked out through all ancestors
        return super().render_lines(crop)

    def render_line(self, y: int) -> Strip:
        at = y + round(self.scroll_y)
        return strip_of(self.line_at(at), self.size.width, self._base, self.app.theme)

    def action_move(self, by: int) -> None:
        """Down so many rows, or up; a list moves its cursor."""
        self.scroll_to(y=self.scroll_y + by, animate=False)

    def action_move_page(self, by: int) -> None:
        """Half a page down, or up."""
        self.action_move(by * max(1, self.size.height // 2))

    def action_move_to_end(self, by: int) -> None:
        self.action_move(by * len(self.lines))


_KEPT = 200
"""Lines: the journal has the rest."""
_NOTHING: Line = (("Nothing has happened since this screen was opened.", "dim"),)


class Activity(LineView):
    """A pane of lines with their times; `clock_text` writes seconds since the epoch, or now."""

    def __init__(self, *, id: str, classes: str) -> None:
        super().__init__(id=id, classes=classes)
        self.border_title = Text("Activity")
        self.clock_text: Callable[[float | None], str] = lambda at: time.strftime(
            "%H:%M:%S", time.localtime(at)
        )
        self._entries: deque[Line] = deque(maxlen=_KEPT)

    def say(self, text: str, style: str = "") -> None:
        """Put a line at the end; it is drawn with `draw`."""
        self._entries.append(self._make_line(text, style, None))

    def prepend_history(self, before: Iterable[tuple[float, str]]) -> None:
        """Put what happened earlier before what is there."""
        since = list(self._entries)
        self._entries.clear()
        self._entries.extend([*(self._make_line(text, "", at) for at, text in before), *since])

    def clear_lines(self) -> None:
        self._entries.clear()

    def draw(self) -> None:
        """Show what came since; at the end of it where the end was in sight."""
        lines = list(self._entries) or [_NOTHING]
        if lines == self.lines:
            return
        at_end = round(self.scroll_y) >= len(self.lines) - self.size.height
        self.show_lines(lines)
        if at_end:
            self.show_end()

    def show_end(self) -> None:
        self.scroll_to(y=len(self.lines), animate=False, force=True)

    def on_resize(self) -> None:
        self.show_end()

    def _make_line(self, text: str, style: str, at: float | None) -> Line:
        return ((f"{self.clock_text(at)} ", "dim"), (one_line(text, 400), style))


class Chrome(Widget):
    """A few lines of fixed height that cannot be focused."""

    DEFAULT_CSS = "Chrome { height: 2; }"

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self.lines: list[Line] = []

    def show_line(self, at: int, shown: Line) -> None:
        """Draw one of the lines, if it differs."""
        while len(self.lines) <= at:
            self.lines.append(())
        if self.lines[at] != shown:
            self.lines[at] = shown
            self.refresh()

    def render_line(self, y: int) -> Strip:
        shown = self.lines[y] if y < len(self.lines) else ()
        return strip_of(shown, self.size.width, self.rich_style, self.app.theme)


def footer_line(keys: Sequence[Key], width: int) -> Line:
    """Keys with their labels, those of the lowest rank left away where not all fit."""
    shown = [key for key in keys if key.rank]
    while True:
        spans: list[Span] = [(" ", "")]
        for number, key in enumerate(shown):
            spans += [("  " if number else "", ""), (key.key_text, "key"), (f" {key.label}", "")]
        out = line(*spans)
        if width_of(out) <= width or len(shown) <= 1:
            return out
        shown.remove(min(reversed(shown), key=lambda key: key.rank))


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
        before = self.key
        self.rows = list(rows)
        number = self._find(before if key is None else key)
        self._at = self._nearest_row(self._at) if number is None else number
        self.lines = [each for row in self.rows for each in (row.line, *row.more)]
        self._starts = [0, *accumulate(1 + len(row.more) for row in self.rows)][:-1]
        self._folded_for = self.line_width
        self._lines_changed()
        self._scroll_to_cursor()
        if self.key != before:
            self.post_message(self.Moved(self, self.key))

    def mark_range(self, keys: frozenset[str]) -> None:
        self.chosen = keys
        self.refresh()

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
        self._at, self._was_moved = number, True
        self.refresh()
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
