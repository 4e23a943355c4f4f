"""The panes of the review page: where they stand, their titles, and the box for a wording.

A pane has the rows that its content needs. That is seen to when another operation comes under the
cursor, for a key or another size, never for what a run says meanwhile.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from engines.core.types import OperationKind
from studio.tui.drawing.cells import Glyphs, choose_glyphs
from studio.tui.drawing.lines import Line
from studio.tui.keymap import Key
from studio.tui.page import Page
from studio.tui.pages.review.view import Item
from studio.tui.widgets.edit_box import ASK_KEYS, EDIT_KEYS, MEND_KEYS, EditBox
from studio.tui.widgets.line_view import Chrome, LineView, RowList

_LEAST = {"list": 6, "change": 6, "evidence": 5, "similar": 4}
"""Rows that a pane has at any rate, borders included."""
_ASKING = "y approves it, e goes back to the text"


@dataclass(frozen=True, slots=True)
class Editing:
    """A text in the box, and what becomes of it when it is handed in."""

    item: Item
    before: str  # as it stood when the box was opened
    kind: OperationKind | None = None
    target: str | None = None
    others: tuple[Item, ...] = ()  # that are merged into it

    @property
    def draft_key(self) -> str:
        """Where the text is kept; a merge is another text than an edit."""
        if self.others:
            return f"{self.item.id}>{'+'.join(item.id for item in self.others)}"
        return f"{self.item.id}>{self.target}" if self.target else self.item.id

    @property
    def height(self) -> int:
        """Lines that its text takes about, where the box has the width of a small screen."""
        return self.before.count("\n") + len(self.before) // 60 + 3

    @property
    def is_merge(self) -> bool:
        op = self.item.operation
        into_another = op is not None and self.target is not None and self.target != op.target
        return bool(self.others) or into_another


class ChangeView(LineView):
    """Knows which change stands on the screen: keys decide nothing that was never drawn."""

    def __init__(self, on_resized: Callable[[], None]) -> None:
        super().__init__(id="review-change", classes="pane")
        self._on_resized = on_resized
        self._shows: object = None
        self.painted: object = None  # the token of the change that was painted last

    def show_change(self, token: object, lines: Sequence[Line], *, has_parts: bool = False) -> None:
        """Show lines of what `token` stands for; None: of nothing that could be decided."""
        if token != self._shows:
            self._shows = token
            self.scroll_to(y=0, animate=False, force=True)
            # One row at least is painted, also where the lines are those of before.
            self.refresh(Region(0, 0, self.size.width, 1))
        self.show_lines(lines)
        self.say_below("choose parts (tab, space)" if has_parts else "")

    def render_line(self, y: int) -> Strip:
        self.painted = self._shows
        return super().render_line(y)

    def on_resize(self) -> None:
        super().on_resize()
        self._on_resized()


class TabRows(RowList):
    """A list that shares its place with others where there is no room for all."""

    def __init__(self, panes: "ReviewPanes", id: str) -> None:
        super().__init__(id=id, classes="pane")
        self._panes = panes

    def focus(self, scroll_visible: bool = True) -> Self:
        self._panes.show_tab(self)
        super().focus(scroll_visible)
        return self

    def on_resize(self) -> None:
        super().on_resize()
        self._panes.redraw_resized()


class ReviewPanes:
    def __init__(self, page: Page) -> None:
        self._page = page
        self.operations = RowList(id="review-ops", classes="pane")
        self.legend = Chrome(id="review-legend")
        self._left = Vertical(id="review-left")
        self.change = ChangeView(self.redraw_resized)
        self.box = EditBox(id="review-edit", classes="pane")
        self.evidence = TabRows(self, "review-evidence")
        self.similar = TabRows(self, "review-similar")
        self.source = TabRows(self, "review-source")
        self.opened_evidence = False
        self.editing: Editing | None = None  # what is in the box; None: it is closed
        self.objection = ""  # what speaks against the text in the box
        self._objected_to = ""  # that text
        self._tabs = {self.evidence: "Evidence", self.similar: "Similar", self.source: "Source"}
        self._tab = self.evidence
        self._rows: Rows = ()  # of the panes one above the other
        self._rows_before: Rows = ()  # as the item came under the cursor
        self._item = ""
        self._placed_for: object = None

    def compose(self) -> ComposeResult:
        with self._left:
            yield self.operations
            yield self.box
            yield self.legend
        with Vertical(id="review-right"):
            yield self.change
            yield from self._tabs

    @property
    def focusable(self) -> list[Widget]:
        """What `tab` goes through, in reading order."""
        if self.editing is not None:
            return [self.box]
        tabs: list[Widget] = [self.evidence, self.similar]
        return [self.operations, self.change, *tabs, *([self.source] if self.is_tabbed else [])]

    @property
    def is_tabbed(self) -> bool:
        """Whether evidence, similar ones and source share one place."""
        return not self._page.has_class("-all")

    @property
    def signs(self) -> Glyphs:
        # The screen itself knows it: it says so to the style sheet, too.
        return choose_glyphs(self._page.app.has_class("-ascii"))

    @property
    def widths(self) -> tuple[int, ...]:
        return (self.change.line_width, *(tab.line_width for tab in self._tabs))

    def redraw_resized(self) -> None:
        """A pane has another width: what was wrapped for the old one is wrapped again."""
        page = self._page
        # Later: its neighbours are resized in the same breath.
        page.call_later(lambda: page.draw() if page.is_open else None)

    def arrange(self) -> None:
        """Put each pane where the size of the page has room for it."""
        page = self._page
        # Before it has a size, the one it is going to have: the lines around it take four rows.
        width, height = page.size or page.app.size - (0, 4)
        page.set_class(width >= 100, "-side")
        page.set_class(width >= 100 and height >= 26, "-all")
        for tab in self._tabs:
            if self.is_tabbed:
                tab.display = height >= 14 and tab is self._tab
            else:
                tab.display = tab is self.evidence or (
                    tab is self.similar and not self.opened_evidence
                )
        self._name_panes()

    def place(self, item: str, about: object) -> None:
        """Give the panes the rows that the content of an item takes, once for `about`.

        What they had for another item counts, what they had while this one was read does not: it
        looks the same on every screen, however fast that was.
        """
        page, is_side = self._page, self._page.has_class("-side")
        room, shown = page.size.height, [tab for tab in self._tabs if tab.display]
        about = (item, about, page.size, self.widths, shown, self.editing, self.opened_evidence,
                 self.objection)  # fmt: skip
        if about == self._placed_for or not room:
            return
        self._placed_for = about
        if item != self._item:
            self._item, self._rows_before = item, self._rows
        # In the order in which they get what they need, where there is too little for all.
        panes: dict[str, int] = {"change": len(self.change.lines) + 2}
        if is_side and self.opened_evidence:
            panes["change"] = min(panes["change"], room // 3)
        for tab in shown:
            name = "similar" if tab is self.similar and is_side else "evidence"
            panes[name] = len(tab.lines) + 2
        if not is_side:
            lines = len(self.operations.lines) if self.editing is None else self.editing.height
            panes["list"] = min(lines + 2, room // 2)
        least = [min(_LEAST[name], max(panes[name], 3)) for name in panes]
        if is_side and shown:  # the rest of the change can be scrolled to
            least[1] = max(least[1], min([*panes.values()][1], room * 2 // 5))
        least = [rows if sum(least) <= room else 4 for rows in least]
        now = self._rows_before if len(self._rows_before) == len(panes) else ()
        self._rows = share_rows(room, [*panes.values()], least, now)
        given = dict(zip(panes, self._rows, strict=True))
        self._left.styles.height = "100%" if is_side else given["list"]
        self.change.styles.height = given["change"]
        for tab in shown:
            # The last one takes what is left: together they always fill the page.
            own = given.get("similar") if tab is self.similar else None
            tab.styles.height = "1fr" if own is None else own

    def forget_rows(self) -> None:
        """Give the panes what their content takes, whatever they had."""
        self._rows, self._rows_before, self._placed_for = (), (), None

    def show_tab(self, tab: TabRows) -> None:
        if self.is_tabbed and tab is not self._tab:
            self._tab = tab
            self.arrange()

    def _name_panes(self) -> None:
        # Content: text in a title is never markup.
        self.change.border_title = Content("Change")
        tabs = self._tabs.items()
        for tab, word in tabs:
            title = "Similar in library" if tab is self.similar else word
            if self.is_tabbed:
                title = " ".join(f"[{name}]" if each is tab else name for each, name in tabs)
                title += "  (tab)"
            tab.border_title = Content(title)

    def open_evidence(self, opened: bool) -> None:
        """Give the evidence the room of its neighbours, or give it back."""
        self.opened_evidence = opened
        self._tab = self.evidence
        self.arrange()

    # -- the box -----------------------------------------------------------------------------

    @property
    def box_keys(self) -> Sequence[Key]:
        """What the box hears while it is open."""
        if self.editing is None:
            return ()
        if self.box.asks:
            return ASK_KEYS
        return EDIT_KEYS if self.editing.item.unparsed is None else MEND_KEYS

    def open_box(self, editing: Editing, text: str) -> None:
        several = editing.item.unparsed is not None
        self.editing, self.objection = editing, ""
        what = f"into {editing.target}, merged" if editing.is_merge else "new wording"
        if editing.others:
            what = f"and {', '.join(item.id for item in editing.others)}, merged"
        self.box.border_title = Content(f"{editing.item.id} {'reply' if several else what}")
        self._say_on_box()
        self._page.add_class("-editing")
        self.arrange()
        self.box.open(text, several_lines=several)

    def _say_on_box(self) -> None:
        several = self.editing is not None and self.editing.item.unparsed is not None
        text = f"{'ctrl+o hands it in' if several else 'enter approves it'}, esc keeps it"
        if self.objection:
            text = _ASKING if self.box.asks else "this does not fit, esc keeps it"
        self.box.border_subtitle = Content(text)
        self._page.host.draw_chrome()

    def object(self, text: str, *, asks: bool) -> None:
        """Say what speaks against the text in the box; where it `asks`, a yes takes it anyway."""
        self.objection, self._objected_to = text, self.box.text
        self.box.release(asks=asks)
        self._say_on_box()

    def forget_objection(self, *, changed: bool = False) -> None:
        """It was about another text, or the person goes on typing."""
        if self.objection and not (changed and self.box.text == self._objected_to):
            self.objection = ""
            self._say_on_box()
            self._page.host.tell("the text again: enter hands it in, esc keeps it")
            self._page.draw()

    def close_box(self) -> None:
        self.editing, self.objection = None, ""
        self._page.remove_class("-editing")
        self.box.close()
        self.arrange()
        if self._page.is_open:
            self._page.host.draw_chrome()
            self.operations.focus(scroll_visible=False)


Rows = tuple[int, ...]
_STILL = 2


def share_rows(room: int, needs: Sequence[int], least: Sequence[int], now: Rows = ()) -> Rows:
    """Rows of each pane, borders included; together they are `room`.

    Panes stay as they are `now` while that shows all. Else each gets what it needs, the first
    ones first where that is too much, and the second one gets the rest. Where something is cut
    either way, nothing moves for two rows: drawing borders anew costs more than they show.

    Args:
        room: rows there are; no less than all of `least`.
        needs: rows in which each pane shows all that it holds.
        least: rows that each pane gets at any rate.
        now: rows they have; () where they have none yet.
    """
    if sum(now) == room and all(has >= need for has, need in zip(now, needs, strict=True)):
        return now
    given = list(least)
    left = room - sum(given)
    for at, need in enumerate(needs):
        more = min(max(0, need - given[at]), max(0, left))
        given[at] += more
        left -= more
    slack = min(
        _STILL, max(0, left)
    )  # of the first one, so that the next change finds it large enough
    given[0] += slack
    given[-1 if len(given) == 1 else 1] += max(0, left) - slack
    out = tuple(given)
    if not sum(needs) > room == sum(now):
        return out
    is_near = all(abs(a - b) <= _STILL for a, b in zip(out, now, strict=True))
    return now if is_near and now[0] >= min(needs[0], out[0]) else out
