"""A text that is edited in place: enter hands it in, escape keeps it for later."""

import math
import time
from typing import ClassVar

from rich.segment import Segment
from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.strip import Strip
from textual.widgets import TextArea

from engines.core.text.sanitize import escape_unsafe
from studio.tui.drawing.cells import normalize_width
from studio.tui.keymap import offer_keys
from studio.tui.terminal.textual_parts import make_compact

MOST_CHARS = 200_000
"""What is pasted beyond is refused: nothing that a person reviews is as long."""
_MOVES = {
    "escape": "keeps it for later",
    "ctrl+w": "cuts a word",
    "ctrl+k": "cuts the rest",
    "ctrl+a": "line start",
    "ctrl+e": "line end",
}
EDIT_KEYS = offer_keys({"enter": "hands it in", **_MOVES})
"""What the bottom line tells of while a text is edited."""
MEND_KEYS = offer_keys({"ctrl+o": "hands it in", "enter": "new line", **_MOVES})
_ANSWERS = {"y": "approves it anyway (also enter)", "e": "goes back to the text (also esc)"}
ASK_KEYS = offer_keys(_ANSWERS)


class EditBox(TextArea):
    """Wraps softly. An experience is one line, so enter ends it and pasted lines are joined.

    With `several_lines` enter begins a new line, and ctrl+o hands the text in. From then on
    nothing is typed until `release`, and with a question none before that is answered.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+o", "hand_in", "hand in", show=False, id="edit.hand_in")
    ]
    DEFAULT_CSS = """
    EditBox { padding: 0; height: 1fr; display: none; }
    """

    class HandedIn(Message):
        """Enter: the text as it stands."""

        def __init__(self, box: "EditBox", text: str, anyway: bool) -> None:
            super().__init__()
            self.box, self.text, self.anyway = box, text, anyway

    class Answered(Message):
        """A key while nothing may be typed: back to the text, or one that means nothing now."""

        def __init__(self, goes_back: bool) -> None:
            super().__init__()
            self.goes_back = goes_back

    class Left(Message):
        """Escape; the text is kept by who opened the box."""

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id, classes="pane", highlight_cursor_line=False)
        make_compact(self)
        self.cursor_blink = False
        self.several_lines = False
        self._is_held = False  # the text was handed in, and nothing is typed
        self.asks = False  # whether it is to be taken in spite of what was said about it
        self._readable_at = math.inf  # when that question was drawn, by the clock of events

    def render_line(self, y: int) -> Strip:
        """As Textual draws it, without the joiners and marks that terminals measure differently."""
        strip = super().render_line(y)
        if all(segment.text.isascii() for segment in strip):
            return strip
        shown = [Segment(normalize_width(text), style, control) for text, style, control in strip]
        return Strip(shown).adjust_cell_length(strip.cell_length, self.rich_style)

    def on_resize(self) -> None:
        # Textual has drawn it by now, and then folds its text anew without drawing that.
        self.refresh()

    def open(self, text: str, *, several_lines: bool = False) -> None:
        """Show a text with the cursor at its end, and take the keys."""
        self.several_lines = several_lines
        self.release()
        text = escape_unsafe(text)
        self.load_text(text if several_lines else " ".join(text.split()))
        self.display = True
        self.move_cursor(self.document.end)
        self.screen.set_focus(self, scroll_visible=False)  # at once: the next key is its own

    def close(self) -> None:
        self.display = False
        self.release()

    def release(self, *, asks: bool = False) -> None:
        """What was handed in has an answer: typing goes on, or a question is asked first."""
        self._is_held = self.asks = asks
        self._readable_at = math.inf
        self.call_after_refresh(self._note_time)

    def _note_time(self) -> None:
        self._readable_at = time.monotonic()

    def action_hand_in(self) -> None:
        anyway, self._is_held = self.asks, True
        text = self.text if self.several_lines else " ".join(self.text.split())
        self.post_message(self.HandedIn(self, text, anyway))

    async def _on_key(self, event: events.Key) -> None:
        if self._is_held:
            if self.asks and event.key in ("y", "enter") and event.time >= self._readable_at:
                self.action_hand_in()
                self.asks = False
            else:
                goes_back = self.asks and event.key in ("e", "escape")
                self._is_held, self.asks = not goes_back, self.asks and not goes_back
                self.post_message(self.Answered(goes_back))
        elif event.key == "escape":
            self.post_message(self.Left())
        elif event.key == "enter" and not self.several_lines:
            self.action_hand_in()
        elif event.key not in ("tab", "shift+tab"):
            return
        event.stop()
        event.prevent_default()

    async def _on_paste(self, event: events.Paste) -> None:
        """Pasted text comes in as it will be kept: nothing hidden, and on one line where one is."""
        event.stop()
        event.prevent_default()
        if self._is_held:
            self.post_message(self.Answered(goes_back=False))
            return
        text = escape_unsafe(event.text.replace("\r\n", "\n").replace("\r", "\n"))
        if not self.several_lines:
            text = " ".join(text.split("\n"))
        if len(self.text) + len(text) > MOST_CHARS:
            self.app.bell()
            return
        if result := self._replace_via_keyboard(text, *self.selection):
            self.move_cursor(result.end_location)
