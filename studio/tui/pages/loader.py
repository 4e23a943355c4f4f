"""Reads what a page shows: in a thread, the last thing asked for alone, and then it is drawn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from textual import events
from textual.widgets import Input
from textual.worker import Worker

from engines.core.errors import StudioError
from studio.tui.drawing.lines import Row
from studio.tui.keymap import Key, offer_keys
from studio.tui.page import Page
from studio.tui.terminal.textual_parts import make_compact
from studio.tui.widgets.line_view import RowList

K = TypeVar("K")
V = TypeVar("V")


class Loader(Generic[K, V]):
    """Keeps what was read last while something else is read, or cannot be.

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


_KEYS = offer_keys({"enter": "chooses", "escape": "leaves", "down": "next", "up": "previous"})


class PickLine(Input):
    """Has the focus, so that no letter that is typed is a key of the screen."""

    DEFAULT_CSS = """
    PickLine { border: none; height: 1; padding: 0 2; width: 1fr; background: transparent; }
    PickLine:focus { border: none; }
    """

    def __init__(self, picker: "Picker", *, id: str) -> None:
        super().__init__(id=id, select_on_focus=False, placeholder="type here")
        make_compact(self)
        self.cursor_blink = False
        self._picker = picker

    def on_key(self, event: events.Key) -> None:
        """Arrows go through the list."""
        match event.key:
            case "escape":
                self._picker.close()
            case "down" | "up":
                self._picker.list.action_move(1 if event.key == "down" else -1)
            case "pagedown" | "pageup":
                self._picker.list.action_move_page(1 if event.key == "pagedown" else -1)
            case _:
                return
        event.stop()
        event.prevent_default()

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        if self._picker.side:
            self._picker.draw()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        if self._picker.side:
            self._picker.choose()


class Picker:
    """A line and a list; `choose` is called for enter. It is open while `side` says what for."""

    def __init__(self, page: Page, choose: Callable[[], None]) -> None:
        self._page, self.choose = page, choose
        self.line = PickLine(self, id=f"{page.scope}-pick")
        self.list = RowList(id=f"{page.scope}-choices", classes="pane")
        self.side = ""
        self._narrowed = ""  # what the list was last narrowed to

    @property
    def keys(self) -> Sequence[Key]:
        """What is heard while it is open."""
        return _KEYS if self.side else ()

    def open(self, side: str) -> None:
        self._turn_to(side)
        self.load()

    def close(self) -> None:
        self._turn_to("")

    def _turn_to(self, side: str) -> None:
        page = self._page
        self.side, self._narrowed, page.filter_text = side, "", ""
        page.set_class(bool(side), "-choosing")
        with page.prevent(Input.Changed):
            self.line.value = ""
        page.screen.set_focus(page.initial_focus(), scroll_visible=False)
        page.call_after_refresh(page.draw_if_open)  # only then the size of the list is known
        page.host.draw_now()

    def show_narrowed(self, rows: Sequence[Row], likeliest: str) -> None:
        """Show what is left; the cursor on the likeliest, unless somebody has moved since."""
        text = self.line.value.strip()
        self.list.show_rows(rows, likeliest if text != self._narrowed else None)
        self._narrowed = text

    def load(self) -> None:
        """Have read what there is."""
        raise NotImplementedError

    def draw(self) -> None:
        """Draw the list for what is typed."""
        raise NotImplementedError
