"""The panes of the review page: where they stand, their titles, and the box for a wording.

Their heights are those of the style sheet, so that no key moves a border.
"""

from collections.abc import Sequence
from typing import Self

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from engines.core.frozen import frozen
from engines.core.types import OperationKind
from studio.tui.drawing.lines import Line
from studio.tui.keymap import Key
from studio.tui.page import Page
from studio.tui.pages.review.view import Item
from studio.tui.widgets import edit_box, line_view

_ASKING = "y approves it, e goes back to the text"


@frozen
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


class ChangeView(line_view.LineView):
    """Knows which change stands on the screen: keys decide nothing that was never drawn."""

    def __init__(self) -> None:
        super().__init__(id="review-change", classes="pane")
        self.border_title = Content("Change")
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


class TabRows(line_view.RowList):
    """A list that shares its place with others where there is no room for all."""

    def __init__(self, panes: "ReviewPanes", id: str) -> None:
        super().__init__(id=id, classes="pane")
        self._panes = panes

    def focus(self, scroll_visible: bool = True) -> Self:
        if self._panes.is_tabbed:
            self._panes.tab = self
            self._panes.arrange()
        super().focus(scroll_visible)
        return self


class ReviewPanes:
    def __init__(self, page: Page) -> None:
        self._page = page
        self.operations = line_view.RowList(id="review-ops", classes="pane")
        self.legend = line_view.Chrome(id="review-legend")
        self.change = ChangeView()
        self.box = edit_box.EditBox(id="review-edit")
        self.evidence = TabRows(self, "review-evidence")
        self.similar = TabRows(self, "review-similar")
        self.opened_evidence = False
        self.editing: Editing | None = None  # what is in the box; None: it is closed
        self.objection = ""  # what speaks against the text in the box
        self._objected_to = ""  # that text
        self._tabs = {self.evidence: "Evidence", self.similar: "Similar"}
        self.tab = self.evidence  # in sight, where there is room for one

    def compose(self) -> ComposeResult:
        with Vertical(id="review-left"):
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
        return [self.operations, self.change, *self._tabs]

    @property
    def is_tabbed(self) -> bool:
        """Whether evidence and similar ones share one place."""
        return not self._page.has_class("-all")

    @property
    def widths(self) -> tuple[int, ...]:
        return (self.change.line_width, *(tab.line_width for tab in self._tabs))

    def arrange(self) -> None:
        """Put each pane where the size of the page has room for it."""
        page = self._page
        # Before it has a size, the one it is going to have: the lines around it take four rows.
        width, height = page.size or page.app.size - (0, 4)
        page.set_class(width >= 100, "-side")
        page.set_class(width >= 100 and height >= 26, "-all")
        page.set_class(self.opened_evidence, "-opened")
        tabs = self._tabs.items()
        for tab, name in tabs:
            if self.is_tabbed:
                tab.display = height >= 14 and tab is self.tab
                name = " ".join(f"[{word}]" if each is tab else word for each, word in tabs)
                name += "  (tab)"
            elif tab is self.similar:
                tab.display, name = not self.opened_evidence, "Similar in library"
            else:
                tab.display = tab is self.evidence
            tab.border_title = Content(name)  # text in a title is never markup

    def open_evidence(self, opened: bool) -> None:
        """Give the evidence the room of its neighbours, or give it back."""
        self.opened_evidence = opened
        self.tab = self.evidence
        self.arrange()

    # -- the box -----------------------------------------------------------------------------

    @property
    def box_keys(self) -> Sequence[Key]:
        """What the box hears while it is open."""
        if self.editing is None:
            return ()
        if self.box.asks:
            return edit_box.ASK_KEYS
        return edit_box.EDIT_KEYS if self.editing.item.unparsed is None else edit_box.MEND_KEYS

    def open_box(self, editing: Editing, text: str) -> None:
        several = editing.item.unparsed is not None
        self.editing, self.objection = editing, ""
        op, what = editing.item.operation, "new wording"
        if op is not None and editing.target not in (None, op.target):
            what = f"into {editing.target}, merged"
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
