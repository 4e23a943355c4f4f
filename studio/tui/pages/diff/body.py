"""The changes between two libraries, one under the other, and a cursor that goes through them."""

from __future__ import annotations

from rich.text import Text

from studio.secrets.sanitize import one_line
from studio.tui.drawing.lines import Line, paragraph
from studio.tui.page import Page
from studio.tui.pages.diff import view
from studio.tui.pages.diff.view import Block, Comparison
from studio.tui.widgets.line_view import LineView


class ComparisonBody:
    """Lays the changes out anew only where something is different."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self.pane = LineView(id="diff-body", classes="pane")
        self.found: Comparison | None = None
        self.at = ""  # the change under the cursor
        self.shows_equal = True
        self._mode: view.Mode = view.MODES[0]
        self._laid: tuple[object, list[Block]] = (None, [])

    @property
    def _room(self) -> int:
        """Cells of a change beside the cursor's mark."""
        return max(12, self.pane.line_width - 1)

    @property
    def mode(self) -> view.Mode:
        """How changes are drawn: as was chosen, where there is room for it."""
        return view.effective_mode(self._mode, self._room)

    def choose_next_mode(self) -> None:
        offered = [mode for mode in view.MODES if view.effective_mode(mode, self._room) == mode]
        self._mode = offered[(offered.index(self.mode) + 1) % len(offered)]

    @property
    def blocks(self) -> list[Block]:
        if self.found is None:
            return []
        made_of = (self.found, self._room, self.mode, self.shows_equal, self._page.filter_text)
        if self._laid[0] != made_of:
            self._laid = (made_of, view.blocks(*made_of))
        return self._laid[1]

    def draw(self) -> None:
        pane, found = self.pane, self.found
        if found is None:
            pane.border_title = None
            pane.say_below()
            pane.show_lines([])
            return
        blocks = self.blocks
        if self.at not in {block.id for block in blocks}:
            self.at = view.find_next_change(blocks, "", 1)
        equal = sum(not one.differs for one in found.entries)
        pane.border_title = Text(view.pane_title(found, self._room, self.mode))
        hidden = f"{equal} equal hidden (=)" if equal and not self.shows_equal else ""
        words = self._page.filter_text
        filtered = f"/ {one_line(words, 20)}" if words else ""
        pane.say_below("  ".join(filter(None, (filtered, hidden))))
        lines: list[Line] = []
        if blocks:
            for block in blocks:
                mark = (">", "focus") if block.id == self.at else (" ", "")
                lines += [(mark, *block.lines[0]), *(((" ", ""), *row) for row in block.lines[1:])]
        elif found.weights and not words:
            for text in found.weights:
                lines += paragraph([(one_line(text, 400), "")], pane.line_width, "  ")
        else:
            lines = paragraph([(self._empty_text(equal), "dim")], pane.line_width)
        pane.show_lines(lines)

    def _empty_text(self, equal: int) -> str:
        if self._page.filter_text:
            return f"nothing here holds {self._page.filter_text!r}: esc clears the filter"
        if equal:
            return f"the same library: no experience differs, {equal} are equal (= shows them)"
        return "both are empty"

    def scroll_to_change(self) -> None:
        """Bring the change under the cursor into view, all of it where it fits."""
        top = 0
        for block in self.blocks:
            if block.id == self.at:
                height, now = self.pane.size.height, round(self.pane.scroll_y)
                if top < now or top + len(block.lines) > now + height:
                    self.pane.scroll_to(y=max(0, top - height // 4), animate=False, force=True)
                return
            top += len(block.lines)

    def go_to_change(self, name: str) -> None:
        self.at = name
        self.draw()
        self.scroll_to_change()
