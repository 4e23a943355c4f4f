"""The list of the library page: experiences with their draft, or libraries to choose from."""

from __future__ import annotations

from rich.text import Text

from studio.secrets.sanitize import one_line
from studio.tui.drawing.lines import Row, paragraph
from studio.tui.page import Page
from studio.tui.pages.library import view
from studio.tui.pages.library.loader import LibraryLoader
from studio.tui.pages.library.view import Item, LibraryState
from studio.tui.widgets.row_list import RowList


class EntryList:
    """Its order, and what is listed of a library."""

    def __init__(self, page: Page, loader: LibraryLoader) -> None:
        self._page, self._loader = page, loader
        self.pane = RowList(id="library-list", classes="pane")
        self.sort: view.Sort = view.SORTS[0]
        self.items: tuple[Item, ...] = ()
        self.wanted = ""  # an id to go to as soon as it is known
        self._made_of: object = None  # what the list was made of

    @property
    def item(self) -> Item | None:
        """What is under the cursor."""
        key = self.pane.key
        return next((one for one in self.items if one.id == key), None)

    def choose_next_sort(self) -> None:
        offered = [sort for sort in view.SORTS if sort != "uses" or self._loader.uses]
        at = offered.index(self.sort) if self.sort in offered else 0
        self.sort = offered[(at + 1) % len(offered)]

    def draw(self, shelf: LibraryState) -> None:
        pane, words = self.pane, self._page.filter_text
        width = max(20, pane.line_width - 2)
        made_of = (id(shelf), self.sort, words, width)
        if self._made_of != made_of or not pane.rows:
            self._made_of = made_of
            self.items = view.items(shelf, self.sort, words)
            rows = view.item_rows(self.items, width, cited=bool(self._loader.uses))
            wanted = self.wanted if self.wanted in {one.id for one in self.items} else None
            pane.show_rows(rows or _note_rows(self._nothing_text(shelf), "dim", width), wanted)
            if wanted:
                self.wanted = ""
        held = {e.id for e in shelf.library.experiences}
        added = sum(e.id not in held for e in shelf.draft.experiences) if shelf.draft else 0
        pane.border_title = Text(view.title_text(shelf, len(held) + added, len(self.items)))
        about = [f"/ {one_line(words, 20)}"] if words else []
        if additions := sum(operation.kind == "add" for operation in shelf.open):
            what = "additions wait" if additions > 1 else "addition waits"
            about.insert(0, f"{additions} {what} (2)")
        about.append(f"sort: {self.sort}")
        if self._page.session is None:
            about.append("read-only")
        if self._loader.trouble:
            about.append("could not be read anew")
        pane.border_subtitle = Text("  ".join(about))

    def _nothing_text(self, shelf: LibraryState) -> str:
        if words := self._page.filter_text:
            return f"nothing here holds {words!r}: esc clears the filter"
        waiting = len(shelf.open)
        wait = "1 operation waits" if waiting == 1 else f"{waiting} operations wait"
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
            pane.border_title, pane.border_subtitle = "Libraries", "enter opens one"
            pane.show_rows(view.library_rows(loader.libraries, page.filter_text, width))
            return True
        pane.border_title, pane.border_subtitle = "Library", None
        text, style = "no library in this workspace yet: 0 starts a run that learns one", "dim"
        if loader.trouble:
            text, style = one_line(loader.trouble, 800), "failed"
        elif page.session is not None and not name:
            text = "the run has not begun: its library is not known yet"
        elif name or loader.libraries is None:
            text = "reading the library …"
        pane.show_rows(_note_rows(text, style, width))
        return False


def _note_rows(text: str, style: str, width: int) -> list[Row]:
    """Rows that say something and cannot be chosen."""
    return [Row("", row) for row in paragraph(((text, style),), width)]
