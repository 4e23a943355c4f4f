"""Questions: a line at the bottom, boxes over the page, and a list to tick."""

import math
from asyncio import Future, get_running_loop
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

from textual import events
from textual.app import App, ComposeResult
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Input, Static

from engines.core.types import Names
from studio.tui.drawing.cells import GLYPHS
from studio.tui.drawing.lines import Lines, Row, line, paragraph
from studio.tui.keymap import Key, format_key, offer_keys
from studio.tui.page import Host
from studio.tui.terminal.textual_parts import Box, is_visible, make_compact
from studio.tui.widgets.line_view import Chrome, LineView, RowList, footer_line

ASK_KEYS = offer_keys({"enter": "hands it in", "escape": "leaves"})
"""What the bottom line tells of while a text is asked for."""


class _Field(Input):
    """An input that leaves on escape, and offers its first letter to who asked."""

    def __init__(self) -> None:
        super().__init__(select_on_focus=False)
        make_compact(self)

    def on_mount(self) -> None:
        self.cursor_blink = False

    def on_key(self, event: events.Key) -> None:
        prompt = self.screen.query_one(Prompt)
        shortcut = None if self.value else prompt.shortcut
        if event.key == "escape" or (shortcut is not None and shortcut(event.key)):
            event.stop()
            event.prevent_default()
            prompt.answer(None)


class Prompt(Horizontal):
    """Hidden until something is asked; gives the focus back afterwards."""

    DEFAULT_CSS = """
    Prompt { height: 1; display: none; }
    Prompt Static { width: auto; height: 1; text-style: bold; }
    Prompt Input { border: none; height: 1; padding: 0; width: 1fr; background: transparent; }
    Prompt Input:focus { border: none; }
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._asked: Future[str | None] | None = None
        self._before: Widget | None = None
        self.shortcut: Callable[[str], bool] | None = None

    def compose(self) -> ComposeResult:
        yield Static("", markup=False)
        yield _Field()

    @property
    def is_asking(self) -> bool:
        return self._asked is not None

    def ask(
        self, label: str, value: str = "", shortcut: Callable[[str], bool] | None = None
    ) -> Future[str | None]:
        """Ask for a line, with a value to begin with; None where it was left.

        The field has the focus at once: the next key is its own. `shortcut` hears the first key
        while nothing is typed; True: that was the answer.
        """
        if self._asked is None:
            self._before = self.screen.focused
        elif not self._asked.done():
            self._asked.set_result(None)  # the line goes on, with another question
        asked: Future[str | None] = get_running_loop().create_future()
        self._asked = asked
        self.shortcut = shortcut
        self.query_one(Static).update(f" {label} ")
        field = self.query_one(_Field)
        field.value = value
        field.cursor_position = len(value)
        self.display = True
        self.screen.set_focus(field, scroll_visible=False)
        self._redraw_keys()
        return asked

    def _redraw_keys(self) -> None:
        """The line below tells the keys that are heard now."""
        if redraw := getattr(self.app, "draw_chrome", None):
            self.call_later(redraw)

    def answer(self, text: str | None) -> None:
        asked, self._asked, self.shortcut = self._asked, None, None
        self.display = False
        before, self._before = self._before, None
        # A page may have opened meanwhile: nothing that is out of sight may hear keys.
        seen = before is not None and before.is_attached and is_visible(before)
        self.screen.set_focus(before if seen else None, scroll_visible=False)
        self._redraw_keys()
        if asked is not None and not asked.done():
            asked.set_result(text)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.answer(event.value)


class PromptBox(Box[None]):
    """Lines or rows over a page, and a prompt below them."""

    offers: tuple[Key, ...]
    hint: str  # on the lower border

    def __init__(self, title: str, view: LineView, prompt: Prompt) -> None:
        super().__init__()
        self.view, self.prompt = view, prompt
        self.frame = Vertical(view, prompt, classes="box")
        self.frame.border_title, self.frame.border_subtitle = title, self.hint

    @property
    def host(self) -> Host:
        return cast("Host", self.app)

    @property
    def offered(self) -> Sequence[Key]:
        return ASK_KEYS if self.prompt.is_asking else self.offers

    def compose(self) -> ComposeResult:
        yield self.frame

    def on_mount(self) -> None:
        self.view.focus()
        self.call_after_refresh(self.show)

    def on_resize(self, event: events.Resize) -> None:
        self.call_after_refresh(self.show)

    def show(self) -> None:
        """Show what there is now."""
        raise NotImplementedError

    def action_leave(self) -> None:
        self.dismiss(None)


T = TypeVar("T")


class Question(Box[T]):
    """A box that a key decides something in: none that was pressed before it could be read."""

    DEFAULT_CSS = """
    Question { align: center middle; background: transparent; }
    Question Vertical { width: 94%; max-width: 120; height: auto; border: solid $foreground; }
    """

    def refuses(self, event: events.Key) -> bool:
        # It may have been asked for, and be made only now.
        painted_at = min((view.painted_at for view in self.query(LineView)), default=math.inf)
        if is_early := event.time < painted_at:
            text = f"{format_key(event.key)} was pressed before the question stood: not taken"
            cast("Host", self.app).tell(text, "flag")
        return is_early

    def on_key(self, event: events.Key) -> None:
        if self.refuses(event) or self.hear(event.key):
            event.stop()

    def hear(self, key: str) -> bool:
        raise NotImplementedError


class Confirm(Question[str]):
    """Shows lines and waits for one of the keys offered; "" is escape. What is long scrolls.

    Nothing has the focus that a key meant for the page below would press.
    """

    def __init__(self, title: str, lines: Lines, keys: Mapping[str, str]) -> None:
        super().__init__()
        self._title, self._lines, self._keys = title, lines, dict(keys)

    @property
    def offered(self) -> Sequence[Key]:
        return offer_keys({**self._keys, "escape": "leaves it"})

    def compose(self) -> ComposeResult:
        with Vertical(classes="box") as box:
            box.border_title = Content(self._title)
            yield LineView(id="asked")
            yield Chrome(id="offered")

    def on_mount(self) -> None:
        self._lay_out()
        offered = self.query_one(Chrome)
        for number, (key, what) in enumerate(self._keys.items()):
            offered.show_line(number, line(" ", (format_key(key), "key"), f" {what}"))

    def on_resize(self, event: events.Resize) -> None:
        self._lay_out()

    def _lay_out(self) -> None:
        """All of the keys stay in view, and the last lines of the page; a long list scrolls."""
        width, room = min(120, self.size.width * 94 // 100) - 2, self.size.height - 6
        if callable(self._lines):
            shown = [*self._lines(width)]
        else:
            shown = [row for each in self._lines for row in paragraph(each, width, "  ")]
        room = max(1, room - len(self._keys))
        asked = self.query_one(LineView)
        asked.styles.height = min(len(shown), room)
        asked.show_lines(shown)
        self.query_one(Chrome).styles.height = len(self._keys)
        more = "more below (j), " if len(shown) > room else ""
        self.query_one(Vertical).border_subtitle = f"{more}esc leaves it"

    def hear(self, key: str) -> bool:
        if is_answer := key == "escape" or key in self._keys:
            self.dismiss("" if key == "escape" else key)
        return is_answer


_TICK = 4
"""Cells of a tick and the blank behind it."""


Title = Callable[[int, int], str]
"""What is done with so many of so many."""
RowsFor = Callable[[int], Sequence[Row]]
"""Rows for a width."""


async def choose(app: App[Any], title: Title, rows: RowsFor, *, enter: str) -> Names | None:
    """Show rows over the page; the keys of those left ticked by `enter`, None for escape.

    Await it in a worker, never in a key's own handler.
    """
    return await app.push_screen_wait(TickList(title, rows, enter=enter))


class TickList(Question[Names | None]):
    """Rows that are all ticked at first."""

    def __init__(self, title: Title, rows: RowsFor, *, enter: str) -> None:
        super().__init__()
        self._title, self._make_rows, self._enter = title, rows, enter
        self._rows: Sequence[Row] = ()
        self._off: set[str] = set()

    def compose(self) -> ComposeResult:
        with Vertical(classes="box"):
            yield RowList(id="ticked")
            yield Chrome(id="offered")

    @property
    def offered(self) -> Sequence[Key]:
        moves = {"escape": "leaves it", "space": "ticks", "j": "down", "k": "up"}
        return offer_keys({"enter": self._enter, **moves})

    def on_mount(self) -> None:
        self._lay_out()

    def on_resize(self, event: events.Resize) -> None:
        self._lay_out()

    def _lay_out(self) -> None:
        """The keys stay in view, a long list scrolls; wordings are whole at any width."""
        listed = self.query_one(RowList)
        width = min(120, self.size.width * 94 // 100) - 2
        self._rows = self._make_rows(width - 2 - _TICK)
        lines = sum(1 + len(row.more) for row in self._rows)
        listed.styles.height = max(1, min(lines, self.size.height - 7))
        offered = self.query_one(Chrome)
        offered.styles.height = 1
        offered.show_line(0, footer_line(self.offered, width))
        self._draw()

    def _draw(self) -> None:
        listed, total = self.query_one(RowList), sum(bool(row.key) for row in self._rows)
        listed.show_rows([self._ticked(row) for row in self._rows])
        title = self._title(total - len(self._off), total)
        self.query_one(Vertical).border_title = Content(title)
        self.call_after_refresh(self._say_more)

    def _say_more(self) -> None:
        """How many rows are out of sight, once it is known where they stand."""
        text = self.query_one(RowList).more_text()
        self.query_one(Vertical).border_subtitle = Content(text)

    def _ticked(self, row: Row) -> Row:
        sign = " " if row.key in self._off else GLYPHS.approved
        tick = line((f"[{sign}] " if row.key else " " * _TICK, "focus"))
        return replace(
            row,
            line=(*tick, *row.line),
            more=tuple(((" " * _TICK, ""), *each) for each in row.more),
        )

    def on_row_list_moved(self, event: RowList.Moved) -> None:
        event.stop()
        self._say_more()

    def hear(self, key: str) -> bool:
        left = tuple(row.key for row in self._rows if row.key and row.key not in self._off)
        if key == "space":
            self._off ^= {key for key in [self.query_one(RowList).key] if key}
            self._draw()
        elif key == "escape":
            self.dismiss(None)
        elif key == "enter" and left:
            self.dismiss(left)
        elif key == "enter":
            self.query_one(Vertical).border_subtitle = "nothing is ticked: space ticks, esc leaves"
        return key in ("space", "escape", "enter")
