"""One rollout of the canvas: its growing text, wrapped as it comes, and the rows drawn of it.

Wrapping costs what is added, not what is kept. What is shown is `wrap(escape_unsafe(text))` of
what is kept, wherever the text was cut on its way.
"""

import re
from collections import deque
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
_OPEN_END = re.compile(
    "(?:[\u200c\u200d]?\U0001f3f4[\U000e0061-\U000e007a]{0,5}|[\u200c\u200d])\\Z"
)
"""What may be shown otherwise once more is known: joiners, and the beginning of a flag."""


@dataclass(slots=True)
class _Entry:
    """A row that is done with what ends it, or a tool block with its rows."""

    piece: "str | ToolBlock"
    rows: list[str]

    @property
    def ends_line(self) -> bool:
        return not isinstance(self.piece, str) or self.piece.endswith("\n")


class TailBuffer:
    """The end of one text at one width in cells: the last `cap` rows and tool blocks.

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
        self._entries: deque[_Entry] = deque()
        self._count = 0  # rows of them
        self.first = 0  # how many rows were dropped: the number of the first one kept
        self._open = ""  # from where the last row begins
        self._before = ""  # the last character wrapped, which the next one may depend on
        self._waiting = ""  # some characters at most, that may be shown otherwise yet
        self.feed(text)

    def feed(self, text: str) -> None:
        """Take what comes next; where it was cut does not matter."""
        text = self._waiting + text
        unsettled = None if text.isascii() else _OPEN_END.search(text)
        ready = text[: unsettled.start()] if unsettled else text
        self._waiting = text[len(ready) :]
        if ready:
            self._wrap(self._open + self._sanitize(ready))
            self._before = ready[-1]

    def _sanitize(self, text: str) -> str:
        if self._before and not text.isascii():
            before = escape_unsafe(self._before)
            return normalize_width(escape_unsafe(self._before + text)[len(before) :])
        return normalize_width(escape_unsafe(text))

    def feed_mark(self, mark: CallMark | ResultMark) -> None:
        """Take a tool call in, or the result of one, which joins its call wherever that stands."""
        if isinstance(mark, ResultMark):
            for entry in self._entries:
                block = entry.piece
                if isinstance(block, ToolBlock) and not block.result and block.call.id == mark.id:
                    block.result = mark
                    self._count -= len(entry.rows)
                    entry.rows = block.rows(self.width, self._signs, unfolded=self.unfolded)
                    self._count += len(entry.rows)
                    return
        if self._open or self._waiting:
            self._wrap(self._open + self._sanitize(self._waiting) + "\n")
            self._waiting = ""
        if isinstance(mark, ResultMark):  # its call scrolled away
            self._add_block(ToolBlock(CallMark(mark.id, mark.name, ""), mark))
        else:
            self._add_block(ToolBlock(mark))

    def resize(self, width: int, *, unfolded: bool) -> bool:
        """Wrap what is kept to another width, or with its tool blocks folded or not."""
        if (max(1, width), unfolded) == (self.width, self.unfolded):
            return False
        entries, last, text = self._entries, self._open, ""
        self.width, self.unfolded = max(1, width), unfolded
        self._entries, self._count, self.first = deque(), 0, 0
        for entry in entries:
            if isinstance(entry.piece, str):
                text += entry.piece
            else:
                self._wrap(text)
                self._add_block(entry.piece)
                text = ""
        self._wrap(text + last)
        return True

    @property
    def total(self) -> int:
        """Rows there were, the dropped ones included."""
        return self.first + self._count + 1

    @property
    def has_blocks(self) -> bool:
        return any(not isinstance(entry.piece, str) for entry in self._entries)

    def rows(self, start: int, end: int) -> list[str]:
        """Rows by their numbers, those that are not there left away."""
        rows, at = [self._open.rstrip(" \n")], self.total - 1
        for entry in reversed(self._entries):
            if at <= start:
                break
            rows[:0] = entry.rows
            at -= len(entry.rows)
        return rows[max(0, start - at) : max(0, end - at)]

    @property
    def text(self) -> str:
        """What is kept, inert."""
        pieces = (e.piece if isinstance(e.piece, str) else e.piece.text for e in self._entries)
        return "".join(pieces) + self._open + self._sanitize(self._waiting)

    @property
    def marked_text(self) -> str:
        """The same with marks, to be fed to another buffer."""
        pieces = (e.piece if isinstance(e.piece, str) else e.piece.marks for e in self._entries)
        return "".join(pieces) + self._open + self._waiting

    def growing_row(self) -> tuple[str, bool]:
        """The row that is being filled, or the one before; and whether a line begins with it."""
        row, before = self._open.rstrip(), list(islice(reversed(self._entries), 2))
        if not row and before:
            row = before.pop(0).rows[-1]
        return row, before[0].ends_line if before else not self.first

    def last_line(self) -> str:
        """The last line of the text in which something stands, whole as far as it is kept."""
        line = self._open
        for entry in reversed(self._entries):
            if entry.ends_line:
                if line.strip():
                    break
                line = ""
            if not isinstance(entry.piece, str):
                return entry.rows[-1]
            line = entry.piece + line
        return line.strip()

    def _wrap(self, text: str) -> None:
        *pieces, self._open = wrap_pieces(text, self.width)
        for piece in pieces:
            self._add(_Entry(piece, [piece.rstrip(" \n")]))

    def _add_block(self, block: "ToolBlock") -> None:
        rows = block.rows(self.width, self._signs, unfolded=self.unfolded)
        self._open = ""
        self._add(_Entry(block, rows))

    def _add(self, entry: _Entry) -> None:
        self._entries.append(entry)
        self._count += len(entry.rows)
        if len(self._entries) > self._cap:
            dropped = len(self._entries.popleft().rows)
            self._count -= dropped
            self.first += dropped


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
        self._kept = TailBuffer(20, signs=signs)
        self.pending: list[str] = []  # what came since it was drawn
        self._mark = ""  # the beginning of one, whose end has not come yet
        self._top = 0
        self._unfolds = False  # its tool blocks

    @property
    def text(self) -> str:
        return self._tail.text

    @property
    def marked_text(self) -> str:
        """Its text with tool calls and results as they stood in the stream."""
        return self._tail.marked_text + self._mark

    @property
    def has_tools(self) -> bool:
        return self._tail.has_blocks

    def feed(self, text: str) -> None:
        if text:
            self.pending.append(text)

    def reset(self, text: str) -> None:
        self.pending, self._top, self._mark = [], 0, ""
        self._kept.reset()
        self.feed(text)

    @property
    def _tail(self) -> TailBuffer:
        """What is kept with all that came."""
        if self.pending:
            text = self._mark + "".join(self.pending)
            self.pending.clear()
            self._mark = unfinished_mark(text) if MARK in text else ""
            for part in split_marks(text) if MARK in text else (text,):
                if isinstance(part, str):
                    self._kept.feed(part)
                else:
                    self._kept.feed_mark(part)
        return self._kept

    def toggle_tools(self) -> bool:
        """Fold its tool blocks, or unfold them: whether they are now."""
        self._unfolds = not self._unfolds
        return self._unfolds

    def visible_rows(
        self, columns: int, rows: int, glyphs: Glyphs, top: int | None = None
    ) -> list[str]:
        """The rows to draw in a window; `top` is the row to begin with, None follows the end."""
        tail, grows = self._tail, self.model.state == "streaming"
        is_new = tail.resize(columns, unfolded=self._unfolds)
        total = tail.total
        if top is not None:
            start = max(tail.first, min(top, total - 1))
        else:
            if is_new or not grows or total <= rows:
                self._top = max(0, total - rows)  # all that fits
            elif total > self._top + rows or self._top < tail.first:
                self._top = max(tail.first, total - (rows + 1) // 2)
            start = self._top
        self.above = start
        out = [
            row if row.isascii() else crop(row, columns) for row in tail.rows(start, start + rows)
        ]
        if not any(out) and self.model.note:
            return [fit(self.model.note, columns, glyphs.ellipsis)]
        if grows and start + len(out) == total and any(out) and cell_width(out[-1]) < columns - 1:
            out[-1] += f" {glyphs.cursor}"
        return out

    def scroll_range(self, rows: int) -> tuple[int, int]:
        """The first row there is, and the last one a window of so many rows may begin with."""
        tail = self._tail
        return tail.first, max(tail.first, tail.total - rows)

    def wall_parts(self, columns: int, glyphs: Glyphs) -> tuple[str, str]:
        """Its one line on the wall: the head, and the text after it."""
        model, tail = self.head, self._tail
        tokens = f"{model.tokens:>5}t" if model.tokens is not None else " " * 6
        head = crop(f"{model.title} {getattr(glyphs, model.state, '?')} {tokens} ", columns)
        footer = f"{normalize_width(model.footer)} " if model.footer else ""
        room = max(1, columns - cell_width(head) - cell_width(footer))
        # Of a text that is whole how its last line begins: there the answer stands.
        text = fit(model.note or tail.last_line(), room, glyphs.ellipsis)
        if model.state == "streaming":
            lead = f"{glyphs.ellipsis} "
            tail.resize(room - len(lead), unfolded=False)
            row, begins_line = tail.growing_row()
            text = row if begins_line else lead + row
            if not row:
                text = fit(model.note, room, glyphs.ellipsis)
            elif cell_width(text) < room - 1:
                text += f" {glyphs.cursor}"
        return head, crop(footer + text, columns - cell_width(head))

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
        status = fit(f"-> {self._status_text(signs)}", width, signs.ellipsis)
        return [name, *code, status, *_rail(self._result_text, width, signs)]

    def _folded_row(self, width: int, signs: Glyphs) -> str:
        head = f"{signs.folded} {_one_line(self.call.name)}  "
        first = _one_line(self._result_text.strip().partition("\n")[0])
        outcome = self._status_text(signs)
        if self.result is not None and self.result.status == "ok":
            outcome = first or "(nothing)"
        elif first:
            outcome += f": {first}"
        arguments = _one_line(argument_text(self.call.arguments))
        room = width - cell_width(head)
        # What came back has half of the row at least, and all that the call leaves.
        end = fit(f"  -> {outcome}", max(width // 2, room - cell_width(arguments)), signs.ellipsis)
        arguments = fit(arguments, max(0, room - cell_width(end)), signs.ellipsis)
        return fit(head + arguments + end, width, signs.ellipsis)

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
        call = call_text(self.call.name, self.call.arguments)
        status = f"-> {self.result.status}\n" if self.result else ""
        return escape_unsafe(f"{call}\n{status}{self._result_text}".rstrip("\n") + "\n")

    @property
    def marks(self) -> str:
        """As it stood in the stream."""
        call = ToolCall(self.call.id, self.call.name, self.call.arguments)
        if self.result is None:
            return call_mark(call)
        return call_mark(call) + result_mark(call, ToolResult(self.result.text, self.result.status))


def _one_line(text: str) -> str:
    return escape_unsafe(" ".join(text[:_MOST_CHARS].split()))


def _rail(text: str, width: int, signs: Glyphs) -> list[str]:
    """Its lines, each behind a rail that says where it begins and ends."""
    text = text.strip("\n")
    rows = wrap(escape_unsafe(text[:_MOST_CHARS]), max(1, width - 2)) if text else []
    if len(rows) > _MOST_ROWS or len(text) > _MOST_CHARS:
        rows = [*rows[: _MOST_ROWS - 1], fit("(more of it in Inspect)", max(1, width - 2))]
    return [f"{signs.v} {row}" for row in rows]
