"""The lines that stand on every page: where the run is, the pages, the last action, the keys."""

from __future__ import annotations

from collections.abc import Sequence

from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from studio.tui.drawing.lines import Line, Span, line, width_of
from studio.tui.keymap import Key
from studio.tui.widgets.line_view import strip_of


class Chrome(Widget):
    """A few lines of fixed height that cannot be focused."""

    DEFAULT_CSS = "Chrome { height: 2; }"

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.lines: list[Line] = []

    def show_line(self, at: int, shown: Line) -> None:
        """Draw one of the lines, if it differs."""
        while len(self.lines) <= at:
            self.lines.append(())
        if self.lines[at] != shown:
            self.lines[at] = shown
            self.refresh(Region(0, at, self.size.width, 1))

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
