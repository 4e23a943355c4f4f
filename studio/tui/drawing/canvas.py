"""All streams of a page in one widget, so that 128 of them cost little more than one.

Between two flushes text is only kept; a flush marks the cells that differ from what is drawn.
Geometry comes from the widget's size and the number of panes alone.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice, zip_longest
from os.path import commonprefix
from typing import Literal

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

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
from studio.tui.drawing import themes
from studio.tui.drawing.cells import (
    GLYPHS_UNICODE,
    Glyphs,
    cell_width,
    choose_glyphs,
    crop,
    fit,
    normalize_width,
    pad,
    wrap,
    wrap_pieces,
)
from studio.tui.drawing.lines import Span

_REGION_BYTES = 10
"""What it takes to move the cursor to a changed cell."""


class StreamCanvas(Widget, can_focus=True):
    """Panes of growing text; `flush` brings them up to date."""

    DEFAULT_CSS = "StreamCanvas { width: 1fr; height: 1fr; }"

    class VisibleChanged(Message):
        """Other panes are on screen now: theirs is the text to ask for."""

        def __init__(self, ids: tuple[str, ...]) -> None:
            super().__init__()
            self.ids = ids

    class FocusChanged(Message):
        def __init__(self, id: str) -> None:
            super().__init__()
            self.id = id

    def __init__(self, *, ascii: bool = False, id: str | None = None) -> None:
        super().__init__(id=id)
        self.follow = True
        self.caption = ""  # title of the wall's box; without one it has no box
        self._glyphs = choose_glyphs(ascii)
        self.mode: Mode = "group"
        self._columns: int | None = None
        self._panes: dict[str, Pane] = {}
        self._order: tuple[str, ...] = ()
        self.focused_id: str | None = None  # the pane that keys mean
        self._boxes: dict[str, Box] = {}  # of the panes on screen
        self._bands: dict[int, list[str]] = {}  # rows of cells → panes in them, left to right
        self._base = Style()  # beneath the styles of texts, as drawn last
        self._scrolled = 0  # the first row of a text that is not followed
        self._turn = 0

    # -- what there is -----------------------------------------------------------------------

    @property
    def visible_ids(self) -> tuple[str, ...]:
        """Panes that are drawn, in reading order."""
        return tuple(self._boxes)

    @property
    def is_dirty(self) -> bool:
        """Whether a flush would draw something."""
        panes = (self._panes[id] for id in self._boxes)
        return any(pane.pending or pane.head != pane.model for pane in panes)

    def pane_text(self, id: str, *, marked: bool = False) -> str:
        """What is kept of a pane's text, sanitized; `marked`: as it streamed, for a canvas."""
        if (pane := self._panes.get(id)) is None:
            return ""
        return pane.marked_text if marked else pane.text

    @property
    def has_tools(self) -> bool:
        """Whether the focused pane shows a tool call."""
        return self.focused_id in self._boxes and self._panes[self.focused_id].has_tools

    def set_panes(self, panes: Sequence[PaneModel], *, columns: int | None = None) -> None:
        """Show these panes in this order, and forget texts of others; cheap where nothing changed.

        `columns` are those of the grid; None: as many as the width suggests.
        """
        order = tuple(model.id for model in panes)
        for model in panes:
            if (pane := self._panes.get(model.id)) is None:
                self._panes[model.id] = Pane(model, self._glyphs)
            else:
                pane.model = model
        if (order, columns) == (self._order, self._columns):
            return
        self._panes = {id: self._panes[id] for id in order}
        self._order, self._columns = order, columns
        if self.focused_id not in self._panes:
            self.focused_id = order[0] if order else None
        self._arrange()

    def set_mode(self, mode: "Mode") -> None:
        """Zoom: one line each, a grid, or the focused one alone."""
        if mode != self.mode:
            self.mode, self.follow = mode, True
            self._arrange()

    def set_caption(self, caption: str) -> None:
        """Put a box with this title around the wall."""
        if caption != self.caption:
            self.caption = caption
            self._arrange()

    # -- text --------------------------------------------------------------------------------

    def feed(self, id: str, text: str) -> None:
        """Keep text for the next flush; that of a pane that is not there is dropped."""
        if (pane := self._panes.get(id)) is not None:
            pane.feed(text)

    def reset(self, id: str, text: str = "") -> None:
        if (pane := self._panes.get(id)) is not None:
            pane.reset(text)
            if id in self._boxes:
                self._repaint(id)

    def flush(self, budget: int | None = None, *, heads: bool = True) -> int:
        """Bring what is drawn up to date; returns about how many bytes that takes.

        Args:
            budget: bytes after which the other panes wait for the next flush; the focused
                one comes first, the others in turn. None: all of them.
            heads: titles too where only their count of tokens changed.
        """
        first = [self.focused_id] if self.focused_id in self._boxes else []
        others = [id for id in self._boxes if id not in first]
        turn = self._turn % max(1, len(others))
        regions: list[Region] = []
        spent = done = 0
        for id in (*first, *others[turn:], *others[:turn]):
            # One besides the focused always has its turn: that one may use up every budget.
            if budget is not None and spent >= budget and done > len(first):
                break
            done += 1
            changed = self._update_pane(id, heads)
            spent += sum(_REGION_BYTES + region.width for region in changed)
            regions += changed
        self._turn += done - len(first)
        self._refresh_regions(regions)
        return spent

    # -- focus and scrolling -----------------------------------------------------------------

    def focus_pane(self, id: str) -> None:
        """Let keys mean this pane, and bring it on screen."""
        if id not in self._panes or id == self.focused_id:
            return
        before, self.focused_id = self.focused_id, id
        self.follow = True
        if self.mode == "solo" or id not in self._boxes:
            self._arrange()
        else:
            boxes = [self._boxes[at] for at in (before, id) if at in self._boxes]
            self._refresh_regions([_title_region(box) for box in boxes])
        self.post_message(self.FocusChanged(id))

    def move_focus(self, dx: int, dy: int) -> str | None:
        """To the pane beside, above or below; returns its id. Solo and wall know one direction."""
        if self.focused_id is None:
            return None
        at = self._order.index(self.focused_id)
        per_row = 1
        if self.mode == "group" and self._boxes:
            first = next(iter(self._boxes.values()))
            per_row = sum(box.y == first.y for box in self._boxes.values())
        target = at + dx + dy * per_row
        if 0 <= target < len(self._order):
            self.focus_pane(self._order[target])
        return self.focused_id

    def toggle_follow(self) -> bool:
        """Stay where the text is, or go on with its end."""
        self.follow = not self.follow
        if not self.follow:
            self._scrolled = self._scroll_range()[1]
        self._repaint(self.focused_id)
        return self.follow

    def toggle_tools(self) -> bool | None:
        """Fold the tool calls of the focused pane, or unfold them; None where it has none."""
        if self.mode == "wall" or not self.has_tools or self.focused_id is None:
            return None
        unfolded = self._panes[self.focused_id].toggle_tools()
        self._repaint(self.focused_id)
        return unfolded

    def scroll_rows(self, rows: int) -> None:
        """Move within the text of the focused pane, in solo; at its end it is followed again."""
        if self.mode != "solo" or self.focused_id not in self._boxes:
            return
        least, most = self._scroll_range()
        start = most if self.follow else self._scrolled
        self._scrolled = min(max(start + rows, least), most)
        self.follow = rows > 0 and self._scrolled == most
        self._repaint(self.focused_id)

    def _scroll_range(self) -> tuple[int, int]:
        if self.focused_id not in self._boxes:
            return 0, 0
        return self._panes[self.focused_id].scroll_range(
            max(1, self._boxes[self.focused_id].height - 2)
        )

    def on_resize(self, event: events.Resize) -> None:
        self._arrange()

    def on_mount(self) -> None:
        if clock := getattr(self.app, "frame_clock", None):
            clock.watch(self)

    def on_unmount(self) -> None:
        if clock := getattr(self.app, "frame_clock", None):
            clock.unwatch(self)

    def on_click(self, event: events.Click) -> None:
        for id in self._bands.get(event.y, []):
            box = self._boxes[id]
            if box.x <= event.x < box.x + box.width:
                self.focus_pane(id)

    # -- geometry ----------------------------------------------------------------------------

    def _arrange(self) -> None:
        before = self.visible_ids
        columns, rows = self.size
        at = self._order.index(self.focused_id) if self.focused_id in self._order else 0
        if self.mode == "solo":
            boxes = [Box(at, 0, 0, columns, rows)] if self._order and columns and rows else []
        elif self.mode == "wall":
            edge = self._border_width
            width, height = columns - 2 * edge, rows - 2 * edge
            shown = visible_range(len(self._order), height if width > 0 else 0, at)
            boxes = [Box(index, edge, edge + y, width, 1) for y, index in enumerate(shown)]
        else:
            boxes = grid(len(self._order), columns, rows, self._columns, at)
        self._boxes = {self._order[box.index]: box for box in boxes}
        self._bands = {}
        for id, box in self._boxes.items():
            for y in range(box.y, box.y + box.height):
                self._bands.setdefault(y, []).append(id)
        for id in self._boxes:
            self._update_pane(id, True)
        if self.is_mounted:
            self.refresh()
            if before != self.visible_ids:
                self.post_message(self.VisibleChanged(self.visible_ids))

    @property
    def _border_width(self) -> int:
        return 1 if self.caption and min(self.size) > 2 else 0

    # -- what changed ------------------------------------------------------------------------

    def _repaint(self, id: str | None) -> None:
        if id is not None and id in self._boxes:
            self._refresh_regions(self._update_pane(id, True))

    def _refresh_regions(self, regions: list[Region]) -> None:
        if regions and self.is_mounted:
            self.refresh(*regions)

    def _update_pane(self, id: str, heads: bool) -> list[Region]:
        """Take what came for a pane into what is drawn; returns the cells that change."""
        pane, box = self._panes[id], self._boxes[id]
        regions: list[Region] = []
        above = pane.above
        # A count of tokens alone can wait.
        now = pane.model if heads else replace(pane.model, tokens=pane.head.tokens)
        if now != pane.head:
            pane.head = pane.model
            if self.mode != "wall":
                regions.append(_title_region(box))
        if self.mode == "wall":
            pane.lead, text = pane.wall_parts(box.width, self._glyphs)
            new, left, top = [pane.lead + text], box.x, box.y
        else:
            left, top, room = box.x + 1, box.y + 1, box.width - 2
            has_footer = _has_footer(pane, box)
            height = box.height - 2 - has_footer
            start = self._scrolled if self.mode == "solo" and not self.follow else None
            new = pane.visible_rows(room, height, self._glyphs, start) if height > 0 else []
            if has_footer:
                new = [*new, *[""] * (height - len(new)), fit(pane.head.footer, room)]
            if above != pane.above and not regions:
                regions.append(_title_region(box))
        old, pane.shown = pane.shown, new
        for y, (before, after) in enumerate(zip_longest(old, new, fillvalue=""), top):
            if before != after:
                begin, end = _changed_range(before, after)
                regions.append(Region(left + begin, y, max(1, end - begin), 1))
        return regions

    def render_lines(self, crop: Region) -> list[Strip]:
        """Rows of cells: it has no border or padding that Textual's own cache would add."""
        self._base = self.rich_style  # once for all rows: it is worked out through all ancestors
        background = self.background_colors[1]
        filters = self.get_line_filters()
        x1, x2 = crop.column_span
        out = []
        for y in crop.line_range:
            strip = self.render_line(y)
            for line_filter in filters:
                strip = strip.apply_filter(line_filter, background)
            out.append(strip.crop(x1, x2))
        return out

    def render_line(self, y: int) -> Strip:
        columns, rows = self.size
        signs = self._glyphs
        edge = self._border_width if self.mode == "wall" else 0
        if edge and y == 0:
            title = _add_hidden(self.caption, list(self._boxes.values()), len(self._order))
            spans = [(signs.top_border(title, columns), "")]
        elif edge and y == rows - 1:
            spans = [(signs.bottom_border(columns), "")]
        else:
            ids = self._bands.get(y, ())
            spans = [span for id in ids for span in self._row_spans(id, y)]
            rest = columns - 2 * edge - sum(self._boxes[id].width for id in ids)
            border = [(signs.v, "")] * edge
            spans = [*border, *spans, (" " * rest, ""), *border]
        segments = []
        for text, name in spans:
            if text:
                style = self._base + themes.style(name, self.app.theme) if name else self._base
                segments.append(Segment(text, style))
        return Strip(segments, columns)

    def _row_spans(self, id: str, y: int) -> list[Span]:
        pane, box = self._panes[id], self._boxes[id]
        signs = self._glyphs
        if self.mode == "wall":
            drawn = pane.shown[0] if pane.shown else ""
            style = "focus" if id == self.focused_id else pane.head.state
            rest = pad(drawn[len(pane.lead) :], box.width - cell_width(pane.lead))
            return [(pane.lead, style), (rest, "")]
        if y == box.y:
            title = pane.title(signs, with_footer=not _has_footer(pane, box))
            border = signs.top_border(title, box.width)
            inner = border[3:].rstrip(signs.h + signs.tr).rstrip()
            style = "focus" if id == self.focused_id else pane.head.state
            return [(border[:3], ""), (inner, style), (border[3 + len(inner) :], "")]
        if y == box.y + box.height - 1:
            return [(signs.bottom_border(box.width), "")]
        at = y - box.y - 1
        text = pane.shown[at] if at < len(pane.shown) else ""
        return [(f"{signs.v}{pad(text, box.width - 2)}{signs.v}", "")]


def _add_hidden(caption: str, boxes: "Sequence[Box]", panes: int) -> str:
    """The caption of the wall, and how many panes are above and below those in view."""
    above, below = (boxes[0].index, panes - 1 - boxes[-1].index) if boxes else (0, panes - 1)
    hidden = [f"{above} above"] * (above > 0) + [f"{below} below"] * (below > 0)
    return "  ".join((caption, *hidden))


def _changed_range(before: str, after: str) -> tuple[int, int]:
    """The cells, from and to, in which two rows differ at most."""
    if before.isascii() and after.isascii():
        same = commonprefix((before, after))  # noqa: RUF071 - characters are what is meant
        return len(same), max(len(before), len(after))
    # A mark may join the last character that is the same: the whole row is safe.
    return 0, max(cell_width(before), cell_width(after))


def _title_region(box: "Box") -> Region:
    return Region(box.x, box.y, box.width, 1)


def _has_footer(pane: Pane, box: "Box") -> bool:
    return bool(pane.head.footer) and box.height >= 6


Mode = Literal["wall", "group", "solo"]

LEAST_WIDTH, LEAST_HEIGHT = 22, 3


@dataclass(frozen=True, slots=True)
class Box:
    """Where a pane stands, borders included; in cells."""

    index: int  # of the pane
    x: int
    y: int
    width: int
    height: int


def grid(
    count: int, width: int, height: int, columns: int | None = None, focus: int = 0
) -> list[Box]:
    """Boxes of the panes that fit; rows of them are left away above and below the focus."""
    if count < 1 or width < 3 or height < LEAST_HEIGHT:
        return []
    if not columns:  # as few rows as panes of some width allow, evenly filled
        columns = -(-count // -(-count // max(1, width // LEAST_WIDTH)))
    columns = min(count, max(1, min(columns, width // 3)))
    rows = -(-count // columns)
    shown = min(rows, height // LEAST_HEIGHT)
    top = min(max(0, focus // columns - shown // 2), rows - shown)
    xs, ys = _split_evenly(width, columns), _split_evenly(height, shown)
    boxes = []
    for index in range(top * columns, min(count, (top + shown) * columns)):
        row, column = divmod(index, columns)
        (x, box_width), (y, box_height) = xs[column], ys[row - top]
        boxes.append(Box(index, x, y, box_width, box_height))
    return boxes


def visible_range(count: int, height: int, focus: int = 0) -> range:
    """The panes that have a line on the wall, the focused one among them."""
    shown = min(count, max(0, height))
    top = min(max(0, focus - shown // 2), count - shown)
    return range(top, top + shown)


def _split_evenly(total: int, parts: int) -> list[tuple[int, int]]:
    """Starts and sizes that fill `total`; the first ones are larger by one."""
    size, more = divmod(total, parts)
    return [(i * size + min(i, more), size + (i < more)) for i in range(parts)]


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
