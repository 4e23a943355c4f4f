"""One rollout of the canvas: its growing text, wrapped as it comes, and the rows drawn of it.

Wrapping costs what is added, not what is kept. What is shown is `wrap(escape_unsafe(text))` of
what is kept, wherever the text was cut on its way.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

from engines.core.text.sanitize import escape_unsafe
from engines.core.text.tool_text import (
    MARK,
    CallMark,
    ResultMark,
    argument_text,
    call_mark,
    call_text,
    result_mark,
    split_marks,
    split_status,
    unfinished_mark,
)
from engines.core.types import ToolCall, ToolResult
from studio.tui.drawing.cells import (
    GLYPHS_UNICODE,
    Glyphs,
    cell_width,
    crop,
    fit,
    normalize_width,
    wrap,
    wrap_pieces,
)

ROWS = 400
_UNFOLDED_ROWS = 5
"""So many times as many while tool blocks are unfolded: folded again, nothing is missing."""

_OPEN_END = re.compile(
    "(?:[\u200c\u200d]?\U0001f3f4[\U000e0061-\U000e007a]{0,5}|[\u200c\u200d])\\Z"
)
"""What may be shown otherwise once more is known: joiners, and the beginning of a flag."""


_BLOCK = re.compile(f"({MARK}[0-9]+\n)")
"""Stands for a tool block among the pieces; sanitized text never holds its first character."""


class TailBuffer:
    """The last `cap` rows of one text at one width, in cells.

    A tool block is one piece with as many rows as it has; the pieces beside its other rows are "".
    Text is made harmless as it comes; secrets are masked where it comes from. What was wrapped
    will not change.
    """

    def __init__(self, width: int, cap: int = ROWS, signs: Glyphs = GLYPHS_UNICODE) -> None:
        self.width = max(1, width)
        self._cap = max(1, cap)
        self._signs = signs
        self.unfolded = False
        self.reset()

    def reset(self, text: str = "") -> None:
        self._pieces: list[str] = []  # rows that are done, with what ends them
        self._rows: list[str] = []  # the same as they are shown
        self._open = ""  # from where the last row begins
        self.blocks: dict[str, ToolBlock] = {}  # by the pieces that stand for them
        self.first = 0  # how many rows were dropped: the number of the first one kept
        self._before = ""  # the last character wrapped, which the next one may depend on
        self._waiting = ""  # some characters at most, that may be shown otherwise yet
        self.feed(text)

    def feed(self, text: str) -> None:
        """Take what comes next; where it was cut does not matter."""
        text = self._waiting + text
        found = None if text.isascii() else _OPEN_END.search(text)
        ready = text[: found.start()] if found else text
        self._waiting = text[len(ready) :]
        if ready:
            self._wrap(self._open + normalize_width(self._sanitize(ready)))
            self._before = ready[-1]

    def _sanitize(self, text: str) -> str:
        if not self._before or text.isascii():
            return escape_unsafe(text)
        return escape_unsafe(self._before + text)[len(escape_unsafe(self._before)) :]

    @property
    def _provisional_text(self) -> str:
        """What waits, as it is shown if nothing follows."""
        return normalize_width(self._sanitize(self._waiting)) if self._waiting else ""

    def feed_mark(self, mark: CallMark | ResultMark) -> None:
        """Take a tool call in, or the result of one, which joins its call wherever that stands."""
        block = None
        if isinstance(mark, ResultMark):
            found = (
                piece
                for piece in self.blocks
                if (block := self.blocks[piece]).result is None and block.call.id == mark.id
            )
            if (piece := next(found, None)) is not None:
                self.blocks[piece].result = mark
                self._draw_block(piece)
                return
            block = ToolBlock(CallMark(mark.id, mark.name, ""), mark)  # its call scrolled away
        else:
            block = ToolBlock(mark)
        if self._open or self._sanitize(self._waiting):
            self.feed("\n")
        number = int(next(reversed(self.blocks))[1:]) + 1 if self.blocks else 0
        piece = f"{MARK}{number}\n"
        self.blocks[piece] = block
        self._add_block(piece)

    def resize(self, width: int, *, unfolded: bool | None = None) -> None:
        """Wrap what is kept to another width, or with its tool blocks folded or not."""
        width, unfolded = max(1, width), self.unfolded if unfolded is None else unfolded
        if width == self.width and (unfolded == self.unfolded or not self.blocks):
            self.unfolded = unfolded
            return
        kept = "".join(self._pieces) + self._open
        self.width, self.unfolded = width, unfolded
        self._pieces, self._rows, self._open, self.first = [], [], "", 0
        for piece in _BLOCK.split(kept) if self.blocks else (kept,):
            if piece in self.blocks:
                self._add_block(piece)
            else:
                self._wrap(self._open + piece)

    def anchor(self, row: int) -> int:
        """What a row is called whether tool blocks are folded or not: see `row_of`."""
        return sum(map(bool, self._pieces[: max(0, row - self.first)]))

    def row_of(self, anchor: int) -> int:
        solid = (at for at, piece in enumerate(self._pieces) if piece)
        return self.first + next(islice(solid, anchor, None), len(self._pieces))

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
        return self._join_pieces(lambda block: block.text)

    @property
    def marked_text(self) -> str:
        """The same with marks, to be fed to another buffer."""
        return self._join_pieces(lambda block: block.marks)

    def _join_pieces(self, write: "Callable[[ToolBlock], str]") -> str:
        pieces = self._pieces
        if self.blocks:
            pieces = [write(self.blocks[p]) if p in self.blocks else p for p in pieces]
        return "".join(pieces) + self._open + self._provisional_text

    def is_line_start(self, row: int) -> bool:
        """Whether this row is where a line of the text begins, and no rest of one."""
        before = row - 1 - self.first
        if before < 0:
            return row == 0
        return before < len(self._pieces) and self._pieces[before].endswith("\n")

    def last_line(self) -> str:
        """The last line of the text in which something stands, whole as far as it is kept."""
        line = self._open + self._provisional_text
        for at, piece in enumerate(reversed(self._pieces), 1):
            if piece.endswith("\n"):
                if line.strip():
                    break
                if piece in self.blocks:
                    return self._rows[-at]
                line = ""
            line = piece + line
        return line.strip()

    def _wrap(self, text: str) -> None:
        pieces = wrap_pieces(text, self.width)
        self._open = pieces.pop()
        if pieces:
            self._pieces += pieces
            self._rows += [piece.rstrip(" \n") for piece in pieces]
            self._drop_surplus()

    def _drop_surplus(self) -> None:
        # In blocks, so that dropping costs nothing a row.
        cap = self._cap * (_UNFOLDED_ROWS if self.unfolded else 1)
        if (surplus := len(self._rows) - cap) > 0:
            if self.blocks:
                for piece in self._pieces[:surplus]:
                    self.blocks.pop(piece, None)
            del self._pieces[:surplus], self._rows[:surplus]
            self.first += surplus

    def _add_block(self, piece: str) -> None:
        self._pieces.append(piece)
        self._rows.append("")
        self._draw_block(piece)

    def _draw_block(self, piece: str) -> None:
        rows = self.blocks[piece].rows(self.width, self._signs, unfolded=self.unfolded)
        at = self._pieces.index(piece)
        end = next(
            (n for n in range(at + 1, len(self._pieces)) if self._pieces[n]), len(self._rows)
        )
        self._pieces[at:end] = [piece, *[""] * (len(rows) - 1)]
        self._rows[at:end] = rows
        self._drop_surplus()

    def _last_rows(self) -> list[str]:
        rest = self._provisional_text
        # What is open fits into one row, which need not be wrapped again.
        pieces = wrap_pieces(self._open + rest, self.width) if rest else [self._open]
        return [piece.rstrip(" \n") for piece in pieces]


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
            if MARK not in text and not self._mark:
                self._tail.feed(text)
                return
            text = self._mark + text
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


_MOST_CHARS, _MOST_ROWS = 10_000, 100
"""Of a call and of a result, unfolded in a pane that keeps a few hundred; Inspect has all."""
_WIDE = 40
"""Cells from which on there is room for wider gaps."""


@dataclass(slots=True)
class ToolBlock:
    """One call; `result` is None while it runs."""

    call: CallMark
    result: ResultMark | None = None

    def rows(self, width: int, signs: Glyphs, *, unfolded: bool) -> list[str]:
        """Rows of at most `width` cells; at least one."""
        if not unfolded:
            return [self._folded_row(width, signs)]
        name = fit(f"{signs.unfolded} {_one_line(self.call.name)}", width, signs.ellipsis)
        code = _rail(argument_text(self.call.arguments), width, signs)
        told = fit(f"-> {self._status_text(signs)}", width, signs.ellipsis)
        return [name, *code, told, *_rail(self._result_text, width, signs)]

    def _folded_row(self, width: int, signs: Glyphs) -> str:
        gap = "  " if width >= _WIDE else " "
        head = f"{signs.folded} {_one_line(self.call.name)}{gap}"
        shown = _one_line(self._result_text.strip().partition("\n")[0])
        said = self._status_text(signs)
        if self.result is not None and self.result.status == "ok":
            said = shown or "(nothing)"
        elif shown:
            said += f": {shown}"
        asked = _one_line(argument_text(self.call.arguments))
        left = width - cell_width(head)
        # What came back has half of the row at least, and all that the call leaves.
        end = f"{gap}-> {said}"
        end = fit(end, max(8, width // 2, left - cell_width(asked)), signs.ellipsis)
        asked = fit(asked, max(0, left - cell_width(end)), signs.ellipsis)
        return fit(head + asked + end, width, signs.ellipsis)

    def _status_text(self, signs: Glyphs) -> str:
        """In a word, with a sign where it went wrong."""
        if self.result is None:
            return f"running {signs.ellipsis}"
        return "ok" if self.result.status == "ok" else f"{signs.error} {self.result.status}"

    @property
    def _result_text(self) -> str:
        """What came back, without the status that a model is told before it."""
        if self.result is None:
            return ""
        return split_status(self.result.text)[1] if self.result.status != "ok" else self.result.text

    @property
    def text(self) -> str:
        """As it is copied."""
        asked = call_text(self.call.name, self.call.arguments)
        status = f"-> {self.result.status}\n" if self.result else ""
        return escape_unsafe(f"{asked}\n{status}{self._result_text}".rstrip("\n") + "\n")

    @property
    def marks(self) -> str:
        """As it stood in the stream."""
        call = ToolCall(self.call.id, self.call.name, self.call.arguments)
        if (found := self.result) is None:
            return call_mark(call)
        return call_mark(call) + result_mark(call, ToolResult(found.text, found.status))


def _one_line(text: str) -> str:
    return escape_unsafe(" ".join(text[:_MOST_CHARS].split()))


def _rail(text: str, width: int, signs: Glyphs) -> list[str]:
    """Its lines, each behind a rail that says where it begins and ends."""
    text = text.strip("\n")
    rows = wrap(escape_unsafe(text[:_MOST_CHARS]), max(1, width - 2)) if text else []
    if len(rows) > _MOST_ROWS or len(text) > _MOST_CHARS:
        rows = [*rows[: _MOST_ROWS - 1], fit("(more of it in Inspect)", max(1, width - 2))]
    return [f"{signs.v} {row}" for row in rows]
