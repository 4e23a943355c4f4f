"""The panes of the review page: where they stand, their titles, and the box for a wording.

Where they stand follows from the size of the page alone, never from what they hold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.geometry import Region, Size
from textual.strip import Strip
from textual.widget import Widget

from engines.core.types import OperationKind
from studio.tui.drawing.cells import GLYPHS_ASCII, GLYPHS_UNICODE, Glyphs
from studio.tui.drawing.lines import Line
from studio.tui.keymap import Key
from studio.tui.page import Page
from studio.tui.pages.review.view import Item
from studio.tui.widgets.chrome import Chrome
from studio.tui.widgets.edit_box import EDIT_KEYS, MEND_KEYS, EditBox
from studio.tui.widgets.line_view import LineView
from studio.tui.widgets.row_list import RowList

CSS = """
ReviewPage #review-left { height: 7fr; width: 100%; }
ReviewPage #review-legend { height: 8; display: none; padding: 0 1; }
ReviewPage #review-right { height: 13fr; width: 100%; }
ReviewPage #review-change, ReviewPage #review-edit { height: 7fr; }
ReviewPage TabRows { height: 6fr; display: none; }
ReviewPage.-side { layout: horizontal; }
ReviewPage.-side #review-left { width: 34%; max-width: 52; height: 100%; }
ReviewPage.-side #review-right { width: 1fr; height: 100%; }
ReviewPage.-side #review-change, ReviewPage.-side #review-evidence { height: 12fr; }
ReviewPage.-side #review-edit { height: 8fr; }
ReviewPage.-all #review-legend { display: block; }
ReviewPage.-all #review-similar { height: 8; }
ReviewPage.-editing #review-evidence, ReviewPage.-editing #review-source { display: none; }
"""


@dataclass(frozen=True, slots=True)
class Editing:
    """A text in the box, and what becomes of it when it is handed in."""

    item: Item
    before: str  # as it stood when the box was opened
    kind: OperationKind | None = None
    target: str | None = None

    @property
    def draft_key(self) -> str:
        """Where the text is kept; a merge is another text than an edit."""
        return f"{self.item.id}>{self.target}" if self.target else self.item.id

    @property
    def is_merge(self) -> bool:
        op = self.item.operation
        return op is not None and self.target is not None and self.target != op.target


class ChangeView(LineView):
    """Knows which change stands on the screen: keys decide nothing that was never drawn."""

    def __init__(self, on_resized: Callable[[], None]) -> None:
        super().__init__(id="review-change", classes="pane")
        self._on_resized = on_resized
        self._shows: object = None
        self.painted: object = None  # the token of the change that was painted last
        self._tells_more = False

    def show_change(self, token: object, lines: Sequence[Line]) -> None:
        """Show lines of what `token` stands for; None: of nothing that could be decided."""
        if token != self._shows:
            self._shows = token
            self.scroll_to(y=0, animate=False, force=True)
            # One row at least is painted, also where the lines are those of before.
            self.refresh(Region(0, 0, self.size.width, 1))
        self.show_lines(lines)
        self._update_more_hint()

    def _update_more_hint(self) -> None:
        """In the border: whether there is more than is seen, and how it is reached."""
        height = self.scrollable_content_region.height
        more = len(self.lines) > round(self.scroll_y) + height > 0
        if more != self._tells_more:
            self._tells_more = more
            self.border_subtitle = Content("more below (tab, j)") if more else None

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        self._update_more_hint()

    def render_line(self, y: int) -> Strip:
        self.painted = self._shows
        return super().render_line(y)

    def on_resize(self) -> None:
        super().on_resize()
        self._update_more_hint()
        self._on_resized()


class TabRows(RowList):
    """A list that shares its place with others where there is no room for all."""

    def __init__(self, panes: ReviewPanes, id: str) -> None:
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
    """The queue on the left, one operation whole on the right."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self.operations = RowList(id="review-ops", classes="pane")
        self.legend = Chrome(id="review-legend")
        self.change = ChangeView(self.redraw_resized)
        self.box = EditBox(id="review-edit", classes="pane")
        self.evidence = TabRows(self, "review-evidence")
        self.similar = TabRows(self, "review-similar")
        self.source = TabRows(self, "review-source")
        self.opened_evidence = False
        self.editing: Editing | None = None  # what is in the box; None: it is closed
        self._tabs = {self.evidence: "Evidence", self.similar: "Similar", self.source: "Source"}
        self._tab = self.evidence

    def compose(self) -> ComposeResult:
        with Vertical(id="review-left"):
            yield self.operations
            yield self.legend
        with Vertical(id="review-right"):
            yield self.change
            yield self.box
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
        return GLYPHS_ASCII if self._page.host.settings.ascii else GLYPHS_UNICODE

    @property
    def sizes(self) -> tuple[Size, ...]:
        """Of the panes whose lines are wrapped."""
        return (self.change.size, *(tab.size for tab in self._tabs))

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
        editing = self.editing is not None
        for tab in self._tabs:
            if self.is_tabbed:
                tab.display = height >= 14 and not editing and tab is self._tab
            elif tab is self.similar:
                tab.display = not self.opened_evidence
            else:
                tab.display = tab is self.evidence and not editing
        self.change.display = not editing or page.has_class("-side") or height >= 18
        self._name_panes()

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
        return EDIT_KEYS if self.editing.item.unparsed is None else MEND_KEYS

    def open_box(self, editing: Editing, text: str) -> None:
        several = editing.item.unparsed is not None
        self.editing = editing
        end = "ctrl+o hands it in" if several else "enter approves it so"
        what = f"into {editing.target}, merged" if editing.is_merge else "new wording"
        self.box.border_title = Content(f"{editing.item.id} {'reply' if several else what}")
        self.box.border_subtitle = Content(f"{end}, esc keeps it for later")
        self._page.add_class("-editing")
        self.arrange()
        self.box.open(text, several_lines=several)

    def close_box(self) -> None:
        self.editing = None
        self._page.remove_class("-editing")
        self.box.close()
        self.arrange()
        if self._page.is_open:
            self._page.host.draw_chrome()
            self.operations.focus(scroll_visible=False)
