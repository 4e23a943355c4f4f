"""Lines that scroll, of which only those that changed are sent to the terminal."""

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.binding import BindingType
from textual.content import Content, ContentText
from textual.geometry import Region, Size
from textual.strip import Strip
from textual.widget import Widget

from studio.secrets.sanitize import one_line
from studio.tui.drawing import themes
from studio.tui.drawing.cells import flatten
from studio.tui.drawing.lines import Line, crop_line, plain_text
from studio.tui.keymap import bindings
from studio.tui.terminal.textual_parts import FixedView


@lru_cache(maxsize=1024)
def strip_of(of: Line, width: int, base: Style, theme: str) -> Strip:
    """Exactly `width` cells of a line: the one way from a line to segments, for every terminal."""
    settled = tuple(
        # A blank where a sign could stand is not reversed, as the sign is without colours.
        (flatten(text), style if text.strip() or style not in themes.LOUD else "")
        for text, style in of
    )
    segments = [
        Segment(text, base + themes.style(style, theme) if style else base)
        for text, style in crop_line(settled, width)
    ]
    return Strip(segments).adjust_cell_length(width, base)


class BorderTitle:
    """A title of a border: setting one draws its row alone, and nothing where it is the same.

    Textual's own draws the whole widget, with what is in it, whatever the title was.
    """

    def __init__(self, *, below: bool = False) -> None:
        self._below = below

    def __set_name__(self, owner: type[Widget], name: str) -> None:
        self._kept = f"_{name}"
        self._given = f"_given_{name}"

    def __set__(self, of: Widget, title: Text | ContentText | None) -> None:
        if isinstance(title, Text):
            title = Content.from_rich_text(title)
        if title == of.__dict__.get(self._given, ""):
            return
        of.__dict__[self._given] = title
        shown = None if title is None else of.render_str(title).expand_tabs(4).split()[0]
        setattr(of, self._kept, shown)
        width, height = of.outer_size
        at = Region(-1, height - 2 if self._below else -1, width, 1)
        of.refresh(*([at] if height else []))  # hidden, it has no rows

    def __get__(self, of: Widget, owner: type[Widget] | None = None) -> str | None:
        title = getattr(of, self._kept, None)
        return None if title is None else title.markup


class LineView(FixedView, can_focus=True):
    """A pane of lines. Its geometry never follows its content."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("list")]
    DEFAULT_CSS = """
    LineView { height: 1fr; width: 1fr; overflow-x: hidden; overflow-y: auto; scrollbar-size: 0 0; }
    """
    border_title = BorderTitle()
    border_subtitle = BorderTitle(below=True)

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.lines: list[Line] = []
        self._folded_for = 0  # the room there was when lines were last shown
        self._base = Style()  # beneath the styles of the lines, as drawn last
        self.painted_at = math.inf  # when it was drawn first, by the clock of events
        # What the lower border says beside how much is out of sight; None where there is none.
        self._said_below = "" if classes == "pane" else None

    def say_below(self, text: str = "") -> None:
        """Write this into the lower border, behind how much is out of sight."""
        self._said_below = text
        self._tell_more()

    def more_text(self) -> str:
        """What is out of sight; "" where nothing is."""
        is_more = len(self.lines) > round(self.scroll_y) + self.size.height
        return "more below (tab, j)" if is_more else ""

    def _tell_more(self) -> None:
        if self._said_below is not None and self.size:
            parts = filter(None, (self.more_text(), self._said_below))
            self.border_subtitle = Content("  ".join(parts))

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
        """Show these; only those that differ from before are drawn again."""
        old, self.lines = self.lines, list(lines)
        self._folded_for = self.line_width
        if len(old) != len(self.lines):
            self.set_content_size(Size(self.line_width, len(self.lines)))
            self._tell_more()
        if not self.size:
            if old != self.lines:
                self.refresh_line(0)
            return
        top = round(self.scroll_y)
        for at in range(top, top + self.size.height):
            before = old[at] if at < len(old) else None
            after = self.lines[at] if at < len(self.lines) else None
            if before != after:
                self.refresh_line(at)

    def refresh_line(self, at: int) -> None:
        """Draw one line again; while it is hidden, all of them once it is shown.

        What Textual keeps of a hidden widget is drawn again when it is shown, and has no rows by
        which it could be marked.
        """
        y, size = at - round(self.scroll_y), self.size
        if not size:
            self.refresh()
        elif 0 <= y < size.height:
            self.refresh(Region(0, y, size.width, 1))

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

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.border_title = Text("Activity")
        self.clock_text: Callable[[float | None], str] = lambda at: time.strftime(
            "%H:%M:%S", time.localtime(at)
        )
        self._entries: deque[Line] = deque(maxlen=_KEPT)
        self._changed = True

    def say(self, text: str, style: str = "") -> None:
        """Put a line at the end; it is drawn with `draw`."""
        self._entries.append(self._make_line(text, style, None))
        self._changed = True

    def prepend_history(self, before: Iterable[tuple[float, str]]) -> None:
        """Put what happened earlier before what is there."""
        since = list(self._entries)
        self._entries.clear()
        self._entries.extend([*(self._make_line(text, "", at) for at, text in before), *since])
        self._changed = True

    def clear_lines(self) -> None:
        self._entries.clear()
        self._changed = True

    def draw(self) -> None:
        """Show what came since; at the end of it where the end was in sight."""
        if not self._changed:
            return
        self._changed = False
        at_end = round(self.scroll_y) >= len(self.lines) - self.size.height
        self.show_lines(list(self._entries) or [_NOTHING])
        if at_end:
            self.show_end()

    def show_end(self) -> None:
        self.scroll_to(y=len(self.lines), animate=False, force=True)

    def on_resize(self) -> None:
        self.show_end()

    def _make_line(self, text: str, style: str, at: float | None) -> Line:
        return ((f"{self.clock_text(at)} ", "dim"), (one_line(text, 400), style))
