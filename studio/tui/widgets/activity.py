"""What happened, newest last, a line each; stays where the person scrolled to."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable

from rich.text import Text

from studio.secrets.sanitize import one_line
from studio.tui.drawing.lines import Line
from studio.tui.widgets.line_view import LineView

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
