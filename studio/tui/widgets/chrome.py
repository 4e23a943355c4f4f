"""The lines that stand on every page: where the run is, the pages, the last action, the keys."""

from collections.abc import Mapping, Sequence

from textual.events import Click
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from studio.tui.drawing.cells import cell_width as cells
from studio.tui.drawing.lines import Line, Span, line, width_of
from studio.tui.keymap import Key
from studio.tui.widgets.line_view import strip_of

Presses = Mapping[str, Sequence[str]]
"""The text of a part of a line, and the keys that it stands for, by Textual's names."""


class Chrome(Widget):
    """A few lines of fixed height that cannot be focused."""

    DEFAULT_CSS = "Chrome { height: 2; }"

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.lines: list[Line] = []
        self._presses: dict[int, Presses] = {}

    def show_line(self, at: int, shown: Line, presses: Presses | None = None) -> None:
        """Draw one of the lines, if it differs; a click on a part of it presses keys."""
        self._presses[at] = presses or {}
        while len(self.lines) <= at:
            self.lines.append(())
        if self.lines[at] != shown:
            self.lines[at] = shown
            self.refresh(Region(0, at, self.size.width, 1))

    def on_click(self, event: Click) -> None:
        if event.y < len(self.lines):
            for key in keys_at(self.lines[event.y], self._presses[event.y], event.x):
                self.app.simulate_key(key)

    def render_line(self, y: int) -> Strip:
        shown = self.lines[y] if y < len(self.lines) else ()
        return strip_of(shown, self.size.width, self.rich_style, self.app.theme)


def keys_at(shown: Line, presses: Presses, x: int) -> Sequence[str]:
    """The keys of the part at a column: it begins with what is in `presses`, and ends at a gap."""
    at, found = 0, None
    for text, _ in shown:
        if text.strip("[ ]") in presses:
            found = presses[text.strip("[ ]")]
        elif not text.strip():
            found = None
        at += cells(text)
        if x < at:
            return found or ()
    return ()


def footer_presses(keys: Sequence[Key]) -> Presses:
    """What a click on each key of the footer presses; the second of two where one was pressed."""
    return {key.key_text: key.presses for key in keys if key.rank}


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
