"""All streams of a page in one widget, so that 128 of them cost little more than one.

Between two flushes text is only kept; a flush marks the cells that differ from what is drawn.
Geometry comes from the widget's size and the number of panes alone. Each pane wraps its growing
text as it comes: wrapping costs what is added, not what is kept.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from os.path import commonprefix
from typing import Literal

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from engines.core.frozen import frozen
from engines.core.text import sanitize, tool_text
from engines.core.types import Names
from studio.tui.drawing import lines, themes
from studio.tui.drawing.cells import (
    GLYPHS as _SIGNS,
)
from studio.tui.drawing.cells import (
    cell_width,
    crop,
    fit,
    normalize_width,
    pad,
    wrap,
    wrap_pieces,
)

_REGION_BYTES = 10
"""What it takes to move the cursor to a changed cell."""
ROWS = 400
"""Wrapped rows of a text that are kept at least, and twice as many at most."""
MOST_CHARS = 64_000
"""Of a text as it came; the first half of a longer one is dropped."""
LEAST_WALL_ROWS = 11
"""A wall of so many rows leaves some for the text of the focused pane below it."""
Mode = Literal["wall", "group", "solo"]
_FOLLOWED = "followed"  # the pane below the wall; no rollout is called so


@frozen
class PaneModel:
    """What a pane says besides its text. All of it is sanitized already."""

    id: str
    title: str
    state: str = "streaming"  # a field of `Glyphs`: won, lost, streaming, queued, error, skipped
    tokens: int | None = None  # once it has ended
    footer: str = ""
    note: str = ""  # instead of the text where there is none, such as "queued"


@dataclass(slots=True)
class ToolBlock:
    """One tool call; `result` is None while it runs."""

    call: tool_text.CallMark
    result: tool_text.ResultMark | None = None

    def rows(self, width: int, *, unfolded: bool) -> list[str]:
        """Rows of at most `width` cells; at least one."""
        if not unfolded:
            return [self._folded_row(width)]
        name = fit(f"{_SIGNS.unfolded} {_join_lines(self.call.name)}", width, _SIGNS.ellipsis)
        code = _add_rail(tool_text.argument_text(self.call.arguments), width)
        status = fit(f"-> {self._status_text()}", width, _SIGNS.ellipsis)
        return [name, *code, status, *_add_rail(self._result_text, width)]

    def _folded_row(self, width: int) -> str:
        head = f"{_SIGNS.folded} {_join_lines(self.call.name)}  "
        first = _join_lines(self._result_text.strip().partition("\n")[0])
        outcome = self._status_text()
        if self.result is not None and self.result.status == "ok":
            outcome = first or "(nothing)"
        elif first:
            outcome += f": {first}"
        arguments = _join_lines(tool_text.argument_text(self.call.arguments))
        room = width - cell_width(head)
        # What came back has half of the row at least, and all that the call leaves.
        end = fit(f"  -> {outcome}", max(width // 2, room - cell_width(arguments)), _SIGNS.ellipsis)
        arguments = fit(arguments, max(0, room - cell_width(end)), _SIGNS.ellipsis)
        return fit(head + arguments + end, width, _SIGNS.ellipsis)

    def _status_text(self) -> str:
        """In a word, with a sign where it went wrong."""
        if self.result is None:
            return f"running {_SIGNS.ellipsis}"
        return "ok" if self.result.status == "ok" else f"{_SIGNS.error} {self.result.status}"

    @property
    def _result_text(self) -> str:
        """What came back, without the status that a model is told before it."""
        if self.result is None or self.result.status == "ok":
            return self.result.text if self.result is not None else ""
        return tool_text.split_status(self.result.text)[1]

    @property
    def text(self) -> str:
        """As it is copied."""
        call = tool_text.call_text(self.call.name, self.call.arguments)
        status = f"-> {self.result.status}\n" if self.result else ""
        return sanitize.escape_unsafe(f"{call}\n{status}{self._result_text}".rstrip("\n") + "\n")


def _join_lines(text: str) -> str:
    return sanitize.escape_unsafe(" ".join(text.split()))


def _add_rail(text: str, width: int) -> list[str]:
    """Its lines, each behind a rail that says where it begins and ends."""
    text = text.strip("\n")
    rows = wrap(sanitize.escape_unsafe(text), max(1, width - 2)) if text else []
    return [f"{_SIGNS.v} {row}" for row in rows]


def _sanitize(text: str) -> str:
    return normalize_width(sanitize.escape_unsafe(text))


def _split_blocks(text: str) -> list[str | ToolBlock]:
    """Texts and tool calls in their order, each call with its result wherever that stands."""
    parts: list[str | ToolBlock] = []
    running: dict[str, list[ToolBlock]] = {}  # calls without a result, by their id
    for part in tool_text.split_marks(text):
        if isinstance(part, str):
            parts.append(part)
        elif isinstance(part, tool_text.ResultMark) and running.get(part.id):
            running[part.id].pop(0).result = part
        elif isinstance(part, tool_text.ResultMark):  # its call scrolled away
            parts.append(ToolBlock(tool_text.CallMark(part.id, part.name, ""), part))
        else:
            block = ToolBlock(part)
            parts.append(block)
            running.setdefault(part.id, []).append(block)
    return parts


class Pane:
    """One growing text, and its rows in a window that fills and then moves on by half its height.

    What is shown is `wrap(escape_unsafe(text))` of what is kept, wherever the text was cut on
    its way; tool calls stand in it as rows of their own. Secrets are masked where it comes from.
    """

    def __init__(self, model: PaneModel) -> None:
        self.model = model
        self.head = model  # what its title was drawn from
        self.lead = ""  # what its line on the wall begins with
        self.shown: list[str] = []  # rows as they are drawn
        self.above = 0  # rows of the text before those
        self.pending: list[str] = []  # what came since it was drawn
        self.received = 0  # characters of the text
        self.is_read = False  # whether the text is that of the record, or is going to be
        self._width, self._unfolds = 20, False
        self._raw = ""  # as it came, with marks
        self._top = 0
        self._clear_rows()

    def feed(self, text: str) -> None:
        if text:
            self.pending.append(text)
            self.received += len(text)

    def reset(self, text: str) -> None:
        self.pending, self.received, self._raw, self._top = [], 0, "", 0
        self._clear_rows()
        self.feed(text)

    # -- the text, and its rows ----------------------------------------------------------------

    @property
    def raw(self) -> str:
        """All that is kept, as it came."""
        return self._raw + "".join(self.pending)

    @property
    def text(self) -> str:
        """All that is kept, as it is copied."""
        out = ""
        for part in _split_blocks(self.raw):
            if isinstance(part, str):
                out += _sanitize(part)
            else:
                out += ("\n" if out and not out.endswith("\n") else "") + part.text
        return out

    @property
    def has_tools(self) -> bool:
        return tool_text.MARK in self.raw

    def toggle_tools(self) -> bool:
        """Fold its tool calls, or unfold them: whether they are now."""
        self._unfolds = not self._unfolds
        self._wrap_again()
        return self._unfolds

    def _take_pending(self) -> None:
        text = "".join(self.pending)
        self.pending.clear()
        holds_mark = tool_text.MARK in text or tool_text.unfinished_mark(self._raw)
        self._raw += text
        if len(self._raw) > MOST_CHARS:
            self._raw = tool_text.last_chars(self._raw, MOST_CHARS // 2)
        if holds_mark:
            self._wrap_again()  # a result changes the row of its call, wherever that stands
        elif text:
            self._wrap(text)

    def _clear_rows(self) -> None:
        self._rows: list[str] = []  # that will not change, with the blanks that end them
        self._first = 0  # how many were dropped: the number of the first one kept
        self._line = ""  # as it came, from where the rows below begin
        self._growing = [""]  # rows that may change yet, one at least

    def _wrap_again(self) -> None:
        self._clear_rows()
        for part in _split_blocks(self._raw):
            if isinstance(part, str):
                self._wrap(part)
                continue
            if self._line:
                self._wrap("\n")
            rows = part.rows(self._width, unfolded=self._unfolds)
            self._rows += [f"{row}\n" for row in rows]

    def _wrap(self, text: str) -> None:
        whole, newline, line = (self._line + text).rpartition("\n")
        if newline:
            self._rows += wrap_pieces(_sanitize(f"{whole}\n"), self._width)[:-1]
        *done, last = wrap_pieces(_sanitize(line), self._width)
        if "".join(done) + last == line:  # nothing in it depends on what comes next
            self._rows += done
            self._line, self._growing = last, [last]
        else:
            self._line, self._growing = line, [*done, last]
        if len(self._rows) > 2 * ROWS:
            self._first += len(self._rows) - ROWS
            del self._rows[:-ROWS]

    @property
    def _total(self) -> int:
        """Rows there were, the dropped ones included."""
        return self._first + len(self._rows) + len(self._growing)

    def visible_rows(self, columns: int, rows: int, top: int | None = None) -> list[str]:
        """The rows to draw in a window; `top` is the row to begin with, None follows the end."""
        is_new = self._set_width(columns)
        total, grows = self._total, self.model.state == "streaming"
        if is_new or not grows or total <= rows:
            self._top = max(self._first, total - rows)  # all that fits
        elif not self._first <= self._top < total <= self._top + rows:
            self._top = max(self._first, total - (rows + 1) // 2)
        start = self._top
        if top is not None:
            start = max(self._first, min(top, total - 1))
        self.above = start
        at = start - self._first
        out = []
        for row in [*self._rows[at : at + rows], *self._growing[-(total - start) :]][:rows]:
            row = row.rstrip(" \n")
            out.append(row if row.isascii() else crop(row, columns))
        if not any(out) and self.model.note:
            return [fit(self.model.note, columns, _SIGNS.ellipsis)]
        ends_here = start + len(out) == total and any(out)
        if grows and ends_here and cell_width(out[-1]) < columns - 1:
            out[-1] += f" {_SIGNS.cursor}"
        return out

    def _set_width(self, columns: int) -> bool:
        """Wrap what came to a width; whether it is another one than before."""
        self._take_pending()
        if columns == self._width:
            return False
        self._width = columns
        self._wrap_again()
        return True

    def scroll_range(self, rows: int) -> tuple[int, int]:
        """The first row there is, and the last one a window of so many rows may begin with."""
        self._take_pending()
        return self._first, max(self._first, self._total - rows)

    def last_line(self) -> str:
        """The last line of the text in which something stands, whole as far as it is kept."""
        line = "".join(self._growing)
        for row in reversed(self._rows):
            if row.endswith("\n"):
                if line.strip():
                    break
                line = ""
            line = row + line
        return line.strip()

    def wall_parts(self, columns: int) -> tuple[str, str]:
        """Its one line on the wall: the head, and the text after it."""
        model = self.head
        tokens = f"{model.tokens:>5}t" if model.tokens is not None else " " * 6
        head = crop(f"{model.title} {getattr(_SIGNS, model.state, '?')} {tokens} ", columns)
        footer = f"{normalize_width(model.footer)} " if model.footer else ""
        room = max(1, columns - cell_width(head) - cell_width(footer))
        lead = f"{_SIGNS.ellipsis} "
        self._set_width(max(1, room - len(lead)))
        line = self.last_line()
        if model.state == "streaming" and line:
            # It fills its room from the left, so that only what is new is sent.
            rows = wrap(line, self._width)
            text = lead + rows[-1] if len(rows) > 1 else line
            if cell_width(text) < room - 1:
                text += f" {_SIGNS.cursor}"
        else:
            # Of a text that is whole how its last line begins: there the answer stands.
            text = fit(model.note or line, room, _SIGNS.ellipsis)
        return head, crop(footer + text, columns - cell_width(head))

    def title(self, *, with_footer: bool) -> str:
        """Such as `r0 + 812t`, and how many rows of the text are above those in view."""
        model = self.head
        tokens = f" {model.tokens}t" if model.tokens is not None else ""
        footer = f" {model.footer}".rstrip() if with_footer else ""
        above = f"  {self.above} above" if self.above and model.state != "queued" else ""
        sign = getattr(_SIGNS, model.state, "?")
        return f"{model.title.strip()} {sign}{tokens}{footer}{above}"


class StreamCanvas(Widget, can_focus=True):
    """Panes of growing text; `flush` brings them up to date."""

    DEFAULT_CSS = "StreamCanvas { width: 1fr; height: 1fr; }"

    class Changed(Message):
        """Other panes are in view, or keys mean another one."""

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self.follow = True
        self.mode: Mode = "group"
        self.focused_id = ""  # the pane that keys mean
        self._caption = ""  # the line above the wall
        self._follows_below = False  # whether the wall leaves room for the focused text
        self._panes: dict[str, Pane] = {}
        self._order: Names = ()
        self._boxes: dict[str, Box] = {}  # of the panes on screen
        self._bands: dict[int, list[str]] = {}  # rows of cells → panes in them, left to right
        self._base = Style()  # beneath the styles of texts, as drawn last
        self._scrolled = 0  # the first row of a text that is not followed
        self._turn = 0

    # -- what there is -----------------------------------------------------------------------

    @property
    def visible_ids(self) -> Names:
        """Panes that are drawn, in reading order."""
        return tuple(id for id in self._order if id in self._boxes)

    @property
    def is_dirty(self) -> bool:
        """Whether a flush would draw something."""
        panes = (self._panes[id] for id in self._boxes)
        return any(pane.pending or pane.head != pane.model for pane in panes)

    def pane(self, id: str) -> Pane | None:
        return self._panes.get(id)

    def pane_text(self, id: str) -> str:
        """What is kept of a pane's text, sanitized."""
        return self._panes[id].text if id in self._panes else ""

    @property
    def has_tools(self) -> bool:
        """Whether the focused pane shows a tool call."""
        return self.focused_id in self._boxes and self._panes[self.focused_id].has_tools

    def set_panes(self, models: Sequence[PaneModel]) -> None:
        """Show these in this order, and forget texts of others; cheap where nothing changed."""
        order = tuple(model.id for model in models)
        for model in models:
            if model.id not in self._panes:
                self._panes[model.id] = Pane(model)
            for name in self._names_of(model.id):
                self._panes[name].model = model
        if order == self._order:
            return
        self._panes = {id: self._panes[id] for id in order}
        self._order = order
        if self.focused_id not in self._panes:
            self.focused_id = order[0] if order else ""
        self._arrange()

    def set_mode(self, mode: Mode, caption: str = "", *, follows_below: bool = False) -> None:
        """Zoom: one line each below a caption, a grid, or the focused one alone.

        `follows_below`: below the lines stands the text of the focused one, where there is room.
        """
        if mode != self.mode:
            self.follow = True
        layout = mode, caption, follows_below
        if layout != (self.mode, self._caption, self._follows_below):
            self.mode, self._caption, self._follows_below = layout
            self._arrange()

    # -- text --------------------------------------------------------------------------------

    def feed(self, id: str, text: str) -> None:
        """Keep text for the next flush; that of a pane that is not there is dropped."""
        for name in self._names_of(id):
            self._panes[name].feed(text)

    def reset(self, id: str, text: str = "") -> None:
        for name in self._names_of(id):
            self._panes[name].reset(text)
            self._repaint(name)

    def _names_of(self, id: str) -> list[str]:
        """The panes that show a text: its own, and that below the wall if it is the focused one."""
        names = [id, _FOLLOWED] if id == self.focused_id else [id]
        return [name for name in names if name in self._panes]

    def flush(self, budget: int | None = None) -> int:
        """Bring what is drawn up to date; returns about how many bytes that takes.

        `budget` are the bytes after which the other panes wait for the next flush; the focused
        one comes first, the others in turn. None: all of them.
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
            changed = self._update_pane(id)
            spent += sum(_REGION_BYTES + region.width for region in changed)
            regions += changed
        self._turn += done - len(first)
        self._refresh_regions(regions)
        return spent

    # -- focus and scrolling -----------------------------------------------------------------

    def focus_pane(self, id: str) -> None:
        """Let keys mean this pane, and bring it on screen."""
        if id in self._order and id != self.focused_id:
            self.focused_id, self.follow = id, True
            self._arrange()

    def move_focus(self, dx: int, dy: int) -> None:
        """To the pane beside, above or below. Solo and wall know one direction."""
        if not self._order:
            return
        at = self._order.index(self.focused_id)
        per_row = 1
        if self.mode == "group" and self._boxes:
            first = next(iter(self._boxes.values()))
            per_row = sum(box.y == first.y for box in self._boxes.values())
        target = at + dx + dy * per_row
        if self.mode == "wall":
            target = min(max(target, 0), len(self._order) - 1)
        if 0 <= target < len(self._order):
            self.focus_pane(self._order[target])

    def toggle_follow(self) -> bool:
        """Stay where the text is, or go on with its end."""
        self.follow = not self.follow
        if not self.follow:
            self._scrolled = self._scroll_range()[1]
        self._repaint(self.focused_id)
        return self.follow

    def toggle_tools(self) -> bool | None:
        """Fold the tool calls of the focused pane, or unfold them; None where it has none."""
        if self.mode == "wall" or not self.has_tools:
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
        height = self._boxes[self.focused_id].height
        return self._panes[self.focused_id].scroll_range(max(1, height - 2))

    def on_resize(self, event: events.Resize) -> None:
        self._arrange()

    def on_click(self, event: events.Click) -> None:
        for id in self._bands.get(event.y, []):
            box = self._boxes[id]
            if box.x <= event.x < box.x + box.width:
                self.focus_pane(id)

    # -- geometry ----------------------------------------------------------------------------

    def _arrange(self) -> None:
        columns, rows = self.size
        at = self._order.index(self.focused_id) if self._order else 0
        self._panes.pop(_FOLLOWED, None)
        followed_rows = 0
        if self.mode == "solo":
            boxes = [Box(at, 0, 0, columns, rows)] if self._order and columns and rows else []
        elif self.mode == "wall":
            if self._follows_below and self._order and rows >= LEAST_WALL_ROWS:
                followed_rows = max(5, rows // 3)
            top = 1 if self._caption else 0
            room = rows - top - followed_rows if columns else 0
            in_view = visible_range(len(self._order), room, at)
            boxes = [Box(index, 0, y, columns, 1) for y, index in enumerate(in_view, top)]
        else:
            boxes = grid(len(self._order), columns, rows, at)
        self._boxes = {self._order[box.index]: box for box in boxes}
        if followed_rows:
            focused = self._panes[self.focused_id]
            self._panes[_FOLLOWED] = followed = Pane(focused.model)
            followed.feed(focused.raw)
            self._boxes[_FOLLOWED] = Box(at, 0, rows - followed_rows, columns, followed_rows)
        self._bands = {}
        for id, box in self._boxes.items():
            for y in range(box.y, box.y + box.height):
                self._bands.setdefault(y, []).append(id)
            self._update_pane(id)
        if self.is_mounted:
            self.refresh()
            self.post_message(self.Changed())

    # -- what changed ------------------------------------------------------------------------

    def _repaint(self, id: str) -> None:
        if id in self._boxes:
            self._refresh_regions(self._update_pane(id))

    def _refresh_regions(self, regions: list[Region]) -> None:
        if regions and self.is_mounted:
            self.refresh(*regions)

    def _update_pane(self, id: str) -> list[Region]:
        """Take what came for a pane into what is drawn; returns the cells that change."""
        pane, box = self._panes[id], self._boxes[id]
        regions: list[Region] = []
        above = pane.above
        has_new_title = pane.model != pane.head
        pane.head = pane.model
        if box.height == 1:
            pane.lead, text = pane.wall_parts(box.width)
            new, left, top = [pane.lead + text], box.x, box.y
        else:
            left, top, room = box.x + 1, box.y + 1, box.width - 2
            has_footer = _has_footer(pane, box)
            height = box.height - 2 - has_footer
            start = self._scrolled if self.mode == "solo" and not self.follow else None
            new = pane.visible_rows(room, height, start) if height > 0 else []
            if has_footer:
                new = [*new, *[""] * (height - len(new)), fit(pane.head.footer, room)]
            if has_new_title or above != pane.above:
                regions.append(Region(box.x, box.y, box.width, 1))
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
        columns = self.size.width
        if self.mode == "wall" and self._caption and y == 0:
            spans = [(pad(self._wall_title(), columns), "title")]
        else:
            ids = self._bands.get(y, ())
            spans = [span for id in ids for span in self._row_spans(id, y)]
            spans.append((" " * (columns - sum(self._boxes[id].width for id in ids)), ""))
        segments = []
        for text, name in spans:
            if text:
                style = self._base + themes.style(name, self.app.theme) if name else self._base
                segments.append(Segment(text, style))
        return Strip(segments, columns)

    def _wall_title(self) -> str:
        """The caption of the wall, and how many panes are above and below those in view."""
        shown = [box.index for box in self._boxes.values()] or [-1]
        above, below = max(0, min(shown)), len(self._order) - 1 - max(shown)
        title = f" {self._caption}"
        if above:
            title += f"  {above} above"
        return f"{title}  {below} below" if below else title

    def _row_spans(self, id: str, y: int) -> list[lines.Span]:
        pane, box = self._panes[id], self._boxes[id]
        style = "focus" if id == self.focused_id else pane.head.state
        if box.height == 1:
            drawn = pane.shown[0] if pane.shown else ""
            text = pad(drawn[len(pane.lead) :], box.width - cell_width(pane.lead))
            return [(pane.lead, style), (text, "")]
        if y == box.y:
            title = pane.title(with_footer=not _has_footer(pane, box))
            title += " (follow)" if id == _FOLLOWED else ""
            border = _SIGNS.top_border(title, box.width)
            inner = border[3:].rstrip(_SIGNS.h + _SIGNS.tr).rstrip()
            return [(border[:3], ""), (inner, style), (border[3 + len(inner) :], "")]
        if y == box.y + box.height - 1:
            return [(_SIGNS.bottom_border(box.width), "")]
        at = y - box.y - 1
        text = pane.shown[at] if at < len(pane.shown) else ""
        return [(f"{_SIGNS.v}{pad(text, box.width - 2)}{_SIGNS.v}", "")]


def _changed_range(before: str, after: str) -> tuple[int, int]:
    """The cells, from and to, in which two rows differ at most."""
    if before.isascii() and after.isascii():
        same = commonprefix((before, after))  # noqa: RUF071 - characters are what is meant
        return len(same), max(len(before), len(after))
    # A mark may join the last character that is the same: the whole row is safe.
    return 0, max(cell_width(before), cell_width(after))


def _has_footer(pane: Pane, box: "Box") -> bool:
    return bool(pane.head.footer) and box.height >= 6


LEAST_WIDTH, LEAST_HEIGHT = 22, 3


@frozen
class Box:
    """Where a pane stands, borders included; in cells."""

    index: int  # of the pane
    x: int
    y: int
    width: int
    height: int


def grid(count: int, width: int, height: int, focus: int = 0) -> list[Box]:
    """Boxes of the panes that fit; rows of them are left away above and below the focus."""
    if count < 1 or width < 3 or height < LEAST_HEIGHT:
        return []
    # As few rows as panes of some width allow, evenly filled.
    columns = -(-count // -(-count // max(1, width // LEAST_WIDTH)))
    rows = -(-count // columns)
    in_view = visible_range(rows, height // LEAST_HEIGHT, focus // columns)
    xs, ys = _split_evenly(width, columns), _split_evenly(height, len(in_view))
    boxes = []
    for index in range(in_view.start * columns, min(count, in_view.stop * columns)):
        row, column = divmod(index, columns)
        (x, box_width), (y, box_height) = xs[column], ys[row - in_view.start]
        boxes.append(Box(index, x, y, box_width, box_height))
    return boxes


def visible_range(count: int, height: int, focus: int) -> range:
    """The panes that have a line on the wall, the focused one among them."""
    shown = min(count, max(0, height))
    top = min(max(0, focus - shown // 2), count - shown)
    return range(top, top + shown)


def _split_evenly(total: int, parts: int) -> list[tuple[int, int]]:
    """Starts and sizes that fill `total`; the first ones are larger by one."""
    size, more = divmod(total, parts)
    return [(i * size + min(i, more), size + (i < more)) for i in range(parts)]
