"""Pages of lists: what is read in a thread, a list with its details, and a list to choose from."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.widget import Widget
from textual.widgets import Input
from textual.worker import Worker

from engines.core.errors import StudioError
from engines.core.frozen import frozen
from studio.secrets.sanitize import one_line, sanitize
from studio.tui.drawing.cells import cell_width, pad
from studio.tui.drawing.lines import Line, Row, display_text, holds_words, line, paragraph
from studio.tui.keymap import Key, offer_keys
from studio.tui.page import Page
from studio.tui.terminal.textual_parts import make_compact
from studio.tui.widgets.line_view import LineView, RowList

K = TypeVar("K")
V = TypeVar("V")


class Loader(Generic[K, V]):
    """Reads in a thread, the last thing asked for alone; what was read last stays until then.

    `read` blocks and is called in a thread; `show` is called once it is done, if the screen is
    still there.
    """

    def __init__(
        self, page: Page, read: Callable[[K], V], show: Callable[[], None] | None = None
    ) -> None:
        self._page, self._read = page, read
        self._show = show
        self._worker: Worker[None] | None = None
        self.forget()

    def forget(self) -> None:
        """Nothing that was read, or is being read, is of what is shown now."""
        self.value: V | None = None
        self.key: K | None = None  # what `value` was read for
        self.wanted: K | None = None  # what was asked for last
        self.trouble = ""  # why that could not be read
        self._is_due = self.is_reading = False

    def request(self, key: K, *, again: bool = False) -> None:
        """Have this read, unless it was the last thing asked for; `again`: also then."""
        if again or key != self.wanted:
            self.wanted, self._is_due, self.is_reading = key, True, True
            if self._worker is None or self._worker.is_finished:
                self._worker = self._page.run_worker(self._read_wanted(), group="load")

    async def wait(self) -> None:
        """Wait until nothing is left to be read."""
        while self._worker is not None and not self._worker.is_finished:
            await self._worker.wait()

    async def _read_wanted(self) -> None:
        while self._is_due and (key := self.wanted) is not None:
            self._is_due = False
            trouble = ""
            try:
                value = await asyncio.to_thread(self._read, key)
            except StudioError as error:
                trouble = str(error)
            except OSError as error:
                trouble = f"{error.filename}: {error.strerror or error}"
            if key != self.wanted:
                continue  # something else is asked for by now
            self.trouble, self.is_reading = trouble, self._is_due
            if not trouble:
                self.value, self.key = value, key
            if self._page.is_attached and self._page.children:
                (self._show or self._page.draw_if_open)()


class ListPage(Page):
    """A list, and beside or below it what is under its cursor."""

    sorts: ClassVar[Sequence[str]] = ("",)  # "": the rows have one order

    def __init__(self) -> None:
        super().__init__()
        self.list_pane = RowList(id=f"{self.scope}-list", classes="pane")
        self.detail_pane = LineView(id=f"{self.scope}-detail", classes="pane")
        self.sort = self.sorts[0]

    def compose(self) -> ComposeResult:
        yield self.list_pane
        yield self.detail_pane

    def initial_focus(self) -> Widget:
        return self.list_pane

    @property
    def list_width(self) -> int:
        """Cells that a row may take, beside the cursor."""
        return max(12, self.list_pane.line_width - 2)

    def show_list(
        self,
        rows: Sequence[Row],
        reader: Loader[Any, Any],
        title: str,
        *,
        nothing: Line,
        notes: Sequence[str] = (),
        key: str | None = None,
    ) -> None:
        """Show the rows, else why there are none, and the notes in the lower border.

        `nothing` is said where `reader` has read, and all is listed; the cursor goes to `key`.
        """
        below = [*notes]
        if self.filter_text:
            below.append(f"/ {one_line(self.filter_text, 20)}")
        if self.sort:
            below.append(f"sort: {self.sort}")
        if rows and reader.trouble:  # what was read before stays
            below.append(one_line(reader.trouble, 60))
        if not rows:
            rows = [Row("", each) for each in self._empty_lines(reader, nothing)]
        self.list_pane.border_title = Text(title)
        self.list_pane.say_below("  ".join(below))
        self.list_pane.show_rows(rows, key)

    def _empty_lines(self, reader: Loader[Any, Any], nothing: Line) -> list[Line]:
        if reader.trouble:
            nothing = line((sanitize(reader.trouble), "failed"))
        elif reader.is_reading and reader.value is None:
            nothing = line(("reading …", "dim"))
        elif self.filter_text:
            words = one_line(self.filter_text, 60)
            nothing = line((f"nothing here holds {words!r}: esc clears the filter", "dim"))
        return paragraph(nothing, self.list_width)

    def fit_height(self, count: int) -> None:
        """A row an entry, while the details below keep half; what a filter leaves moves nothing."""
        self.list_pane.styles.height = max(3, min(self.size.height // 2, 3 + count))

    def draw_detail(self) -> None:
        """Show what is under the cursor."""

    def on_row_list_moved(self, event: RowList.Moved) -> None:
        if event.rows is self.list_pane and event.is_current and self.is_open:
            self.draw_detail()

    def action_sort(self) -> None:
        self.sort = self.sorts[(self.sorts.index(self.sort) + 1) % len(self.sorts)]
        self.host.draw_now()
        self.host.tell(f"sorted by {self.sort}")

    def go_to(self, name: str) -> bool:
        if self.filter_text and name not in self.list_pane.keys:
            self.apply_filter("")
        return self.list_pane.go_to(name)


@frozen
class Choice:
    """Something to choose, and what to say of it; a heading has no name."""

    name: str
    about: str


_KEYS = offer_keys({"enter": "chooses", "escape": "leaves", "down": "next", "up": "previous"})
_TYPED = " "  # the key of what is typed: no name is a blank


class Picker(Input):
    """A line, and the `list` below it that what is typed narrows, in the place of a page's panes.

    The line has the focus, so that no letter that is typed is a key of the screen. It is open while
    `side` says what for.
    """

    DEFAULT_CSS = """
    Picker { border: none; height: 1; padding: 0 2; width: 1fr; background: transparent; }
    Picker:focus { border: none; }
    """

    def __init__(
        self,
        page: Page,
        read: Callable[[str], Sequence[Choice]],
        choose: Callable[[], None],
        titles: Mapping[str, str],
        *,
        hint: str = "",
    ) -> None:
        """`titles` are those of the list by side; `hint` says what may be typed besides."""
        super().__init__(id=f"{page.scope}-pick", select_on_focus=False, placeholder="type here")
        make_compact(self)
        self.cursor_blink = False
        self.list = RowList(id=f"{page.scope}-choices", classes="pane")
        self.side = ""
        self._page, self._choose, self._titles, self._hint = page, choose, titles, hint
        self._at = ""  # the name that the cursor begins on
        self._narrowed: str | None = None  # what the list was last narrowed to
        self._choices = Loader[str, Sequence[Choice]](page, read)

    @property
    def keys(self) -> Sequence[Key]:
        """What is heard while it is open."""
        return _KEYS if self.side else ()

    @property
    def name_chosen(self) -> str:
        """What is under the cursor, or was typed."""
        return self.value.strip() if self.list.key == _TYPED else self.list.key

    def open(self, side: str, run: str, at: str = "") -> None:
        """Offer what there is to choose, that of the open run first; the cursor begins `at` one."""
        self._at = at
        self._turn_to(side)
        self._choices.request(run, again=True)

    def close(self) -> None:
        self._turn_to("")

    def _turn_to(self, side: str) -> None:
        page = self._page
        self.side, self._narrowed, page.filter_text = side, None, ""
        page.set_class(bool(side), "-choosing")
        with self.prevent(Input.Changed):
            self.value = ""
        page.screen.set_focus(page.initial_focus(), scroll_visible=False)
        page.call_after_refresh(page.draw_if_open)  # only then the size of the list is known
        page.host.draw_now()

    def draw(self) -> None:
        """Show what is left of the list; the cursor on what is likeliest, until somebody moves."""
        text, choices = self.value.strip(), self._choices.value
        self.list.border_title = self._titles[self.side]
        rows = choice_rows(choices or (), text, max(12, self.list.line_width - 2))
        names = [row.key for row in rows if row.key]
        note = one_line(self._choices.trouble, 400)
        if choices is None:
            note = note or "reading what there is …"
        elif self._hint and not text:
            note = self._hint
        elif self._hint and text not in names:
            rows.insert(0, Row(_TYPED, line(("as it is typed: ", "dim"), one_line(text, 400))))
        elif not names:
            note = f"nothing holds {one_line(text, 60)!r}"
        if note:
            rows.insert(0, Row("", line((note, "dim"))))
        first = next(iter(names), _TYPED)
        likeliest = next((name for name in (text, self._at) if name in names), first)
        self.list.show_rows(rows, likeliest if text != self._narrowed else None)
        if choices is not None:
            self._narrowed = text

    def on_key(self, event: events.Key) -> None:
        """Arrows go through the list."""
        match event.key:
            case "escape":
                self.close()
            case "down" | "up":
                self.list.action_move(1 if event.key == "down" else -1)
            case "pagedown" | "pageup":
                self.list.action_move_page(1 if event.key == "pagedown" else -1)
            case _:
                return
        event.stop()
        event.prevent_default()

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        if self.side:
            self.draw()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        if self.side:
            self._choose()


def choice_rows(choices: Sequence[Choice], words: str, width: int) -> list[Row]:
    """What can be chosen, as a list; headings stay out of a filtered one."""
    longest = max((cell_width(display_text(choice.name)) for choice in choices), default=0)
    longest = min(longest, max(16, width // 2))
    rows = []
    for choice in choices:
        about = line((display_text(choice.about), "dim" if choice.name else "title"))
        if not choice.name and not words:
            rows.append(Row("", about))
        elif choice.name and holds_words(f"{choice.name} {choice.about}", words):
            name = pad(display_text(choice.name), longest + 1)
            rows.append(Row(choice.name, ((name, ""), *about)))
    return rows
