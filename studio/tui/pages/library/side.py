"""The second pane of the library page: about one experience, its uses, its history."""

from __future__ import annotations

from typing import Literal

from rich.text import Text
from textual.app import ComposeResult

from studio.tui.drawing.lines import Line, line, paragraph
from studio.tui.page import Page
from studio.tui.pages.library import view
from studio.tui.pages.library.loader import LibraryLoader
from studio.tui.pages.library.view import Item, LibraryState
from studio.tui.pages.text import display_text
from studio.tui.widgets.line_view import LineView
from studio.tui.widgets.row_list import RowList

Side = Literal["about", "uses", "history", "change"]


class SidePane:
    """What it shows of the experience under the cursor."""

    def __init__(self, page: Page, loader: LibraryLoader) -> None:
        self._page, self._loader = page, loader
        self.about = LineView(id="library-about", classes="pane")
        self.uses = RowList(id="library-uses", classes="pane")
        self.shows: Side = "about"

    def compose(self) -> ComposeResult:
        yield self.about
        yield self.uses

    def show(self, side: Side) -> None:
        """Choose what it shows."""
        if side == self.shows:
            return
        was, self.shows = self.shows, side
        self.uses.display, self.about.display = side == "uses", side != "uses"
        if side == "uses":
            self.uses.focus(scroll_visible=False)
            # Only then its size is known.
            self._page.call_after_refresh(self._page.draw)
        elif was == "uses" and self._page.is_open and (home := self._page.initial_focus()):
            home.focus(scroll_visible=False)
        self.about.scroll_to(y=0, animate=False)

    def clear(self) -> None:
        self.about.border_title = self.about.border_subtitle = None
        self.about.show_lines([])
        self.uses.show_rows([])

    def draw(self, one: Item | None, shelf: LibraryState) -> None:
        """Draw it for one experience; None: nothing is under the cursor."""
        if one is None:
            self.clear()
            return
        about, name = self.about, display_text(one.id)
        match self.shows:
            case "uses":
                self._draw_uses(one, shelf)
                return
            case "about":
                title, lines = name, self._about_lines(one, shelf)
            case "change":
                title = f"{name}: its last change"
                lines = view.last_change_lines(self._loader.history, one.id, about.line_width)
                lines = lines or [line((f"no commit has changed {name}", "dim"))]
            case "history":
                title, lines = f"{name}: history", self._history_lines()
        about.border_title = Text(title)
        about.border_subtitle = None if self.shows == "about" else "esc"
        about.show_lines(lines)

    def _about_lines(self, one: Item, shelf: LibraryState) -> list[Line]:
        width, loader = self.about.line_width, self._loader
        alike = loader.similar(shelf.library, one)
        experience = shelf.library.get(one.id)
        lines = view.detail_lines(one, experience, alike, width, cited=bool(loader.uses))
        if self._page.session is None:
            command = f"studio library edit {shelf.library.name} {one.id}"
            lines += [(), *paragraph((("change it with ", "dim"), (command, "")), width)]
        return lines

    def _history_lines(self) -> list[Line]:
        commits = self._loader.commits
        if commits is None:
            return [line(("reading …", "dim"))]
        texts = commits or ["no commit concerns it"]
        return view.history_text_lines(texts, self.about.line_width)

    def _draw_uses(self, one: Item, shelf: LibraryState) -> None:
        pane, session, citations = self.uses, self._page.session, self._loader.citations
        pane.border_title = Text(f"{display_text(one.id)}: uses")
        pane.border_subtitle = "enter opens one, esc"
        rows = view.use_rows(
            one,
            shelf.library.get(one.id),
            session.run.run if session is not None else "",
            max(20, pane.line_width - 2),
            known=citations.rollouts if citations is not None else {},
            unread=citations.unread if citations is not None else 0,
        )
        pane.show_rows(rows)
