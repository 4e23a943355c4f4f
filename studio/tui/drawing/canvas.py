"""All streams of a page in one widget, so that 128 of them cost little more than one.

Between two flushes text is only kept; a flush marks the cells that differ from what is drawn.
Geometry comes from the widget's size and the number of panes alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
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

from studio.tui.drawing import themes
from studio.tui.drawing.cells import cell_width, choose_glyphs, fit, pad
from studio.tui.drawing.lines import Span
from studio.tui.drawing.pane import Pane, PaneModel

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
