"""One rollout of the canvas: what is known of it, and the rows that are drawn of it."""

from __future__ import annotations

from dataclasses import dataclass

from engines.core.text.tool_marks import MARK, split_marks, unfinished_mark
from studio.tui.drawing.cells import GLYPHS_UNICODE, Glyphs, cell_width, crop, fit, normalize_width
from studio.tui.drawing.tail import TailBuffer

_PENDING_CHARS = 65_536
"""Text of a pane that is not drawn waits up to here before it is wrapped."""


@dataclass(frozen=True, slots=True)
class PaneModel:
    """What a pane says besides its text. All of it is inert already."""

    id: str
    title: str
    state: str = "streaming"  # a field of `Glyphs`: won, lost, streaming, queued, error, skipped
    tokens: int | None = None
    footer: str = ""
    note: str = ""  # instead of the text where there is none, such as "queued"


class Pane:
    """The rows of one text in a window that fills and then moves on by half its height.

    Once the text is whole the window shows as much of its end as there is room for.
    """

    def __init__(self, model: PaneModel, signs: Glyphs = GLYPHS_UNICODE) -> None:
        self.model = model
        self.head = model  # what its title was drawn from
        self.lead = ""  # what its line on the wall begins with
        self.shown: list[str] = []  # rows as they are drawn
        self.above = 0  # rows of the text before those
        self._tail = TailBuffer(20, signs=signs)
        self.pending: list[str] = []  # what came since it was drawn
        self._size = 0  # characters pending
        self._mark = ""  # the beginning of one, whose end has not come yet
        self._top = 0  # below 0: as low as the window is full
        self._unfolds = False  # its tool blocks
        self._last: str | None = None  # the last line of the text, once somebody asked

    @property
    def text(self) -> str:
        self._drain()
        return self._tail.text

    @property
    def marked_text(self) -> str:
        """Its text with tool calls and results as they stood in the stream."""
        self._drain()
        return self._tail.marked_text + self._mark

    @property
    def has_tools(self) -> bool:
        self._drain()
        return bool(self._tail.blocks)

    def feed(self, text: str) -> None:
        if text:
            self.pending.append(text)
            self._size += len(text)
            if self._size > _PENDING_CHARS:
                self._drain()

    def reset(self, text: str) -> None:
        self.pending, self._size, self._top, self._last = [], 0, 0, None
        self._mark = ""
        self._tail.reset()
        self.feed(text)

    def _drain(self) -> None:
        if self.pending:
            self._last = None
            text = "".join(self.pending)
            self.pending, self._size = [], 0
            if MARK in text or self._mark:
                self._feed_marks(self._mark + text)
            else:
                self._tail.feed(text)

    def _feed_marks(self, text: str) -> None:
        self._mark = unfinished_mark(text)
        for part in split_marks(text):
            if isinstance(part, str):
                self._tail.feed(part)
            else:
                self._tail.feed_mark(part)

    def toggle_tools(self, row: int) -> tuple[bool, int]:
        """Fold its tool blocks, or unfold them: whether they are now, and where that row is."""
        self._unfolds, at = not self._unfolds, self._tail.anchor(row)
        self._tail.resize(self._tail.width, unfolded=self._unfolds)
        self._top = -1
        return self._unfolds, self._tail.row_of(at)

    def visible_rows(
        self, columns: int, rows: int, glyphs: Glyphs, top: int | None = None
    ) -> list[str]:
        """The rows to draw in a window; `top` is the row to begin with, None follows the end."""
        self._drain()
        total, grows = self._tail.total, self.model.state == "streaming"
        wrapped_for = self._tail.width, self._tail.unfolded
        if wrapped_for != (max(1, columns), self._unfolds) or self._top < 0:
            self._tail.resize(columns, unfolded=self._unfolds)
            total = self._tail.total
            self._top = max(0, total - rows)  # all that fits
        if top is None:
            if not grows:
                self._top = max(0, total - rows)
            elif total > self._top + rows or self._top < self._tail.first:
                self._top = max(self._tail.first, total - (rows + 1) // 2)
            self._top = max(0, min(self._top, total - 1))
            if total <= rows:
                self._top = 0
            start = self._top
        else:
            start = max(self._tail.first, min(top, total - 1))
        self.above = start
        out = [
            row if row.isascii() else crop(row, columns)
            for row in self._tail.rows(start, start + rows)
        ]
        if not any(out) and self.model.note:
            return [fit(self.model.note, columns, glyphs.ellipsis)]
        if grows and start + len(out) == total and any(out) and cell_width(out[-1]) < columns - 1:
            out[-1] += f" {glyphs.cursor}"
        return out

    def scroll_range(self, rows: int) -> tuple[int, int]:
        """The first row there is, and the last one a window of so many rows may begin with."""
        self._drain()
        return self._tail.first, max(self._tail.first, self._tail.total - rows)

    def wall_parts(self, columns: int, glyphs: Glyphs) -> tuple[str, str]:
        """Its one line on the wall: the head, and the text after it."""
        model = self.head
        mark = getattr(glyphs, model.state, "?")
        tokens = f"{model.tokens:>5}t" if model.tokens is not None else " " * 6
        head = crop(f"{model.title} {mark} {tokens} ", columns)
        footer = f"{normalize_width(model.footer)} " if model.footer else ""
        room = max(1, columns - cell_width(head) - cell_width(footer))
        if model.state == "streaming":
            text = self._growing_row(room, glyphs)
        else:
            text = model.note or self._last_line_text(room, glyphs)
        return head, crop(footer + text, columns - cell_width(head))

    def _growing_row(self, columns: int, glyphs: Glyphs) -> str:
        """The row that is being filled; after a sign where its line began before it."""
        self._drain()
        lead = f"{glyphs.ellipsis} "
        self._tail.resize(columns - len(lead), unfolded=False)
        total = self._tail.total
        for at in (total - 1, total - 2):  # the last one may have just begun
            row = "".join(self._tail.rows(at, at + 1)) if at >= 0 else ""
            if row:
                text = row if self._tail.is_line_start(at) else lead + row
                return f"{text} {glyphs.cursor}" if cell_width(text) < columns - 1 else text
        return fit(self.model.note, columns, glyphs.ellipsis)

    def _last_line_text(self, columns: int, glyphs: Glyphs) -> str:
        """Of a text that is whole how its last line begins: there the answer stands."""
        self._drain()
        if self._last is None:
            self._last = self._tail.last_line()
        return fit(self._last, columns, glyphs.ellipsis)

    def title(self, glyphs: Glyphs, *, with_footer: bool) -> str:
        """Such as `r0 + 812t`, and how many rows of the text are above those in view."""
        model = self.head
        about = "~" * (model.state == "streaming")  # the text goes on, the count comes behind it
        tokens = f" {about}{model.tokens}t" if model.tokens is not None else ""
        footer = f" {model.footer}" if with_footer and model.footer else ""
        above = f"  {self.above} above" if self.above and model.state != "queued" else ""
        return f"{model.title} {getattr(glyphs, model.state, '?')}{tokens}{footer}{above}"
