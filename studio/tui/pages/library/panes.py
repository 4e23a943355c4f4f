"""The panes of the library page: the list, and beside it what is known of one experience."""

from __future__ import annotations

from typing import Literal

from rich.text import Text

from engines.core.library_notes import NO_USES
from studio.secrets.sanitize import one_line
from studio.tui.drawing.cells import choose_glyphs
from studio.tui.drawing.lines import Line, line, note_rows, paragraph
from studio.tui.page import Page
from studio.tui.pages.library import view
from studio.tui.pages.library.loader import LibraryLoader
from studio.tui.pages.library.view import Item, LibraryState
from studio.tui.pages.text import display_text
from studio.tui.widgets.line_view import LineView
from studio.tui.widgets.row_list import RowList

Side = Literal["about", "uses", "history", "change"]


class EntryList:
    def __init__(self, page: Page, loader: LibraryLoader) -> None:
        self._page, self._loader = page, loader
        self.pane = RowList(id="library-list", classes="pane")
        self.sort: view.Sort = view.SORTS[0]
        self.items: tuple[Item, ...] = ()
        self.wanted = ""  # an id to go to as soon as it is known
        self._made_of: object = None  # what the list was made of

    @property
    def item(self) -> Item | None:
        key = self.pane.key
        return next((one for one in self.items if one.id == key), None)

    def choose_next_sort(self) -> None:
        known = {
            "uses": bool(self._loader.uses),
            "worth": any(one.effect is not None for one in self.items),
        }
        offered = [sort for sort in view.SORTS if known.get(sort, True)]
        at = offered.index(self.sort) if self.sort in offered else 0
        self.sort = offered[(at + 1) % len(offered)]

    def toggle_mark(self, name: str) -> int:
        """Mark one for a merge, or take its mark away; how many are marked."""
        self.pane.mark_range(self.pane.chosen ^ {name})
        return len(self.pane.chosen)

    def forget_marks(self) -> None:
        self.pane.mark_range(frozenset())

    def draw(self, contents: LibraryState) -> None:
        from studio.library.text import labels_text  # heavy, and the first frame needs none

        pane, words = self.pane, self._page.filter_text
        width = max(20, pane.line_width - 2)
        size = width, pane.size.height
        made_of = (id(contents), self.sort, words, size)
        if self._made_of != made_of or not pane.rows:
            self._made_of = made_of
            self.items = view.items(contents, self.sort, words)
            signs = choose_glyphs(self._page.app.has_class("-ascii"))
            rows = view.item_rows(self.items, *size, cited=bool(self._loader.uses), signs=signs)
            wanted = self.wanted if self.wanted in {one.id for one in self.items} else None
            nothing = paragraph([(self._nothing_text(contents), "dim")], width)
            pane.show_rows(rows or note_rows(nothing), wanted)
            if wanted:
                self.wanted = ""
        held = {e.id for e in contents.library.experiences}
        added = sum(e.id not in held for e in contents.draft.experiences) if contents.draft else 0
        labels = labels_text(self._loader.labels)
        title = view.title_text(contents, len(held) + added, len(self.items), labels)
        pane.border_title = Text(title)
        marks = {one.mark for one in self.items}
        about = [f"{mark} {what}" for mark, what in view.MARK_WORDS.items() if mark in marks]
        if additions := sum(operation.kind == "add" for operation in contents.open):
            what = "additions" if additions > 1 else "addition"
            about.append(f"{additions} {what} to decide (2)")
        about += ["+used -misled"] * any(one.counts != NO_USES for one in self.items)
        about += ["worth in points"] * any(one.effect is not None for one in self.items)
        about += [f"/ {one_line(words, 20)}"] if words else []
        about.append(f"sort: {self.sort}")
        if self._page.session is None:
            about.append("read-only")
        if self._loader.trouble:
            about.append("could not be read anew")
        pane.say_below("  ".join(about))

    def _nothing_text(self, contents: LibraryState) -> str:
        if words := self._page.filter_text:
            return f"nothing here holds {words!r}: esc clears the filter"
        waiting = len(contents.open)
        wait = f"{waiting} operation{'s' * (waiting > 1)} to decide"
        more = "; i proposes one" if self._page.session is not None else ""
        return f"nothing has been learned yet{f'; {wait} in 2 Review' if waiting else ''}{more}"

    def draw_libraries(self, name: str) -> bool:
        """No version is known: list the libraries there are, or say why none is.

        `name` is of the library that is shown, "" where one is to be chosen. Returns whether
        there are libraries to choose from.
        """
        pane, loader, page = self.pane, self._loader, self._page
        self.items, self._made_of = (), None
        width = max(20, pane.line_width - 2)
        if page.session is None and not name and loader.libraries:
            pane.border_title = "Libraries"
            pane.say_below("enter opens one")
            pane.show_rows(view.library_rows(loader.libraries, page.filter_text, width))
            return True
        pane.border_title = "Library"
        pane.say_below()
        text, style = "no library in this workspace yet: 0 starts a run that learns one", "dim"
        if loader.trouble:
            text, style = one_line(loader.trouble, 800), "failed"
        elif page.session is not None and not name:
            text = "the run has not begun: its library is not known yet"
        elif name or loader.libraries is None:
            text = "reading the library …"
        pane.show_rows(note_rows(paragraph(((text, style),), width)))
        return False


class SidePane:
    def __init__(self, page: Page, loader: LibraryLoader) -> None:
        self._page, self._loader = page, loader
        self.about = LineView(id="library-about", classes="pane")
        self.uses = RowList(id="library-uses", classes="pane")
        self.shows: Side = "about"

    def show(self, side: Side) -> None:
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
        self.about.border_title = None
        self.about.say_below()
        self.about.show_lines([])
        self.uses.show_rows([])

    def draw(self, one: Item | None, contents: LibraryState) -> None:
        """Draw it for one experience; None: nothing is under the cursor."""
        if one is None:
            self.clear()
            return
        about, name = self.about, display_text(one.id)
        match self.shows:
            case "uses":
                self._draw_uses(one, contents)
                return
            case "about":
                title, lines = name, self._about_lines(one, contents)
            case "change":
                title = f"{name}: its last change"
                lines = view.last_change_lines(self._loader.history, one.id, about.line_width)
                lines = lines or [line((f"no commit has changed {name}", "dim"))]
            case "history":
                title, lines = f"{name}: history", self._history_lines()
        about.border_title = Text(title)
        about.say_below("" if self.shows == "about" else "esc")
        about.show_lines(lines)

    def _about_lines(self, one: Item, contents: LibraryState) -> list[Line]:
        width, loader = self.about.line_width, self._loader
        alike = loader.similar(contents.library, one)
        experience = contents.library.get(one.id)
        cited, past = bool(loader.uses), loader.history
        lines = view.detail_lines(one, experience, alike, width, cited=cited, history=past)
        if self._page.session is None:
            command = f"studio library edit {contents.library.name} {one.id}"
            lines += [(), *paragraph((("change it with ", "dim"), (command, "")), width)]
        return lines

    def _history_lines(self) -> list[Line]:
        commits = self._loader.commits
        if commits is None:
            return [line(("reading …", "dim"))]
        texts = commits or ["no commit concerns it"]
        return view.history_text_lines(texts, self.about.line_width)

    def _draw_uses(self, one: Item, contents: LibraryState) -> None:
        pane, session, citations = self.uses, self._page.session, self._loader.citations
        pane.border_title = Text(f"{display_text(one.id)}: uses")
        pane.say_below("enter opens one, esc")
        rows = view.use_rows(
            one,
            contents.library.get(one.id),
            session.run.run if session is not None else "",
            max(20, pane.line_width - 2),
            known=citations.rollouts if citations is not None else {},
        )
        pane.show_rows(rows)
