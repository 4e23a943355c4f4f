"""The end of a growing text, wrapped as it comes: costs what is added, not what is kept.

What is shown is `wrap(escape_unsafe(text))` of what is kept, wherever the text was cut on its way.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from engines.core.text.sanitize import escape_unsafe
from studio.tui.drawing.cells import normalize_width, wrap_pieces

ROWS = 400

_OPEN_END = re.compile(
    "(?:[\u200c\u200d]?\U0001f3f4[\U000e0061-\U000e007a]{0,5}|[\u200c\u200d])\\Z"
)
"""What may be shown otherwise once more is known: joiners, and the beginning of a flag."""


class StreamSanitizer:
    """Makes text harmless that comes in pieces; secrets are masked where it comes from.

    What it passes on will not change. `provisional_text` is the rest as it is shown if nothing
    follows: some characters at most.
    """

    __slots__ = ("_before", "_pass_on", "_waiting")

    def __init__(self, pass_on: Callable[[str], None]) -> None:
        self._pass_on = pass_on
        self._before = ""  # the last character passed on, which the next one may depend on
        self._waiting = ""

    @property
    def provisional_text(self) -> str:
        return self._sanitize(self._waiting) if self._waiting else ""

    def feed(self, text: str) -> None:
        text = self._waiting + text
        found = None if text.isascii() else _OPEN_END.search(text)
        ready = text[: found.start()] if found else text
        self._waiting = text[len(ready) :]
        if ready:
            self._pass_on(self._sanitize(ready))
            self._before = ready[-1]

    def _sanitize(self, text: str) -> str:
        if not self._before or text.isascii():
            return escape_unsafe(text)
        return escape_unsafe(self._before + text)[len(escape_unsafe(self._before)) :]


class TailBuffer:
    """The last `cap` rows of one text at one width, in cells."""

    __slots__ = ("_cap", "_open", "_pieces", "_rows", "_stream", "first", "width")

    def __init__(self, width: int, cap: int = ROWS) -> None:
        self.width = max(1, width)
        self._cap = max(1, cap)
        self.reset()

    def reset(self, text: str = "") -> None:
        """Begin anew."""
        self._pieces: list[str] = []  # rows that are done, with what ends them
        self._rows: list[str] = []  # the same as they are shown
        self._open = ""  # from where the last row begins
        self.first = 0  # how many rows were dropped: the number of the first one kept
        self._stream = StreamSanitizer(self._add)
        self.feed(text)

    def feed(self, text: str) -> None:
        """Take what comes next; where it was cut does not matter."""
        if text:
            self._stream.feed(text)

    def resize(self, width: int) -> None:
        """Wrap what is kept to another width."""
        width = max(1, width)
        if width == self.width:
            return
        kept = "".join(self._pieces) + self._open
        self.width = width
        self._pieces, self._rows, self._open, self.first = [], [], "", 0
        self._wrap(kept)

    @property
    def total(self) -> int:
        """Rows there were, the dropped ones included."""
        return self.first + len(self._rows) + len(self._last_rows())

    def rows(self, start: int, end: int) -> list[str]:
        """Rows by their numbers, those that are not there left away."""
        start, end = max(0, start - self.first), max(0, end - self.first)
        out = self._rows[start:end]
        if end > len(self._rows):
            done = len(self._rows)
            out += self._last_rows()[max(0, start - done) : end - done]
        return out

    @property
    def text(self) -> str:
        """What is kept, inert."""
        return "".join(self._pieces) + self._open + normalize_width(self._stream.provisional_text)

    def is_line_start(self, row: int) -> bool:
        """Whether this row is where a line of the text begins, and no rest of one."""
        before = row - 1 - self.first
        if before < 0:
            return row == 0
        return before < len(self._pieces) and self._pieces[before].endswith("\n")

    def last_line(self) -> str:
        """The last line of the text in which something stands, whole as far as it is kept."""
        line = self._open + normalize_width(self._stream.provisional_text)
        for piece in reversed(self._pieces):
            if piece.endswith("\n"):
                if line.strip():
                    break
                line = ""
            line = piece + line
        return line.strip()

    def _add(self, text: str) -> None:
        self._wrap(self._open + normalize_width(text))

    def _wrap(self, text: str) -> None:
        pieces = wrap_pieces(text, self.width)
        self._open = pieces.pop()
        if pieces:
            self._pieces += pieces
            self._rows += [piece.rstrip(" \n") for piece in pieces]
            # In blocks, so that dropping costs nothing a row.
            if (surplus := len(self._rows) - self._cap) > 0:
                del self._pieces[:surplus], self._rows[:surplus]
                self.first += surplus

    def _last_rows(self) -> list[str]:
        rest = normalize_width(self._stream.provisional_text)
        # What is open fits into one row, which need not be wrapped again.
        pieces = wrap_pieces(self._open + rest, self.width) if rest else [self._open]
        return [piece.rstrip(" \n") for piece in pieces]
