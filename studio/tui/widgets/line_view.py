"""Drawing lines by the line, so that only lines that changed are sent to the terminal.

`LineView` scrolls text; `studio.tui.widgets.row_list.RowList` adds a cursor.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.segment import Segment
from textual.geometry import Region, Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from studio.tui import themes
from studio.tui.keymap import bindings
from studio.tui.lines import Line, cropped, plain


class LineView(ScrollView, can_focus=True):
    """A pane of lines. Its geometry never follows its content."""

    BINDINGS = bindings("list")
    DEFAULT_CSS = """
    LineView { height: 1fr; width: 1fr; overflow-x: hidden; overflow-y: auto; scrollbar-size: 0 0; }
    """

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._lines: list[Line] = []

    @property
    def lines(self) -> Sequence[Line]:
        return self._lines

    @property
    def room(self) -> int:
        """Cells a line may take."""
        return max(1, self.scrollable_content_region.width)

    def show_lines(self, lines: Sequence[Line]) -> None:
        """Show these; only those that differ from before are drawn again."""
        old, self._lines = self._lines, list(lines)
        if len(old) != len(self._lines):
            self.virtual_size = Size(self.room, len(self._lines))
        top = round(self.scroll_y)
        for y in range(self.size.height):
            at = y + top
            before = old[at] if at < len(old) else None
            after = self._lines[at] if at < len(self._lines) else None
            if before != after:
                self.refresh(Region(0, y, self.size.width, 1))

    def text(self) -> str:
        """All of it, as `copy_pane` gives it."""
        return "\n".join(plain(line).rstrip() for line in self._lines)

    def line_at(self, at: int) -> Line:
        """How line `at` is drawn; a list puts its cursor there."""
        return self._lines[at] if at < len(self._lines) else ()

    def render_line(self, y: int) -> Strip:
        at = y + round(self.scroll_y)
        width = self.size.width
        base = self.rich_style
        segments = [
            Segment(text, base + themes.style(style, self.app.theme) if style else base)
            for text, style in cropped(self.line_at(at), width)
        ]
        return Strip(segments).adjust_cell_length(width, base)

    def _scroll_by(self, rows: int) -> None:
        self.scroll_to(y=self.scroll_y + rows, animate=False)

    def action_down(self) -> None:
        self._scroll_by(1)

    def action_up(self) -> None:
        self._scroll_by(-1)

    def action_page_down(self) -> None:
        self._scroll_by(max(1, self.size.height // 2))

    def action_page_up(self) -> None:
        self._scroll_by(-max(1, self.size.height // 2))

    def action_top(self) -> None:
        self.scroll_to(y=0, animate=False)

    def action_bottom(self) -> None:
        self.scroll_to(y=len(self._lines), animate=False)
