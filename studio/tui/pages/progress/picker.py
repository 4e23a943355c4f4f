"""Choosing a run to lay over another: a list, narrowed by what is typed above it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from textual.widgets import Input

from studio.secrets.sanitize import one_line
from studio.tui.drawing.cells import pad
from studio.tui.drawing.lines import Row, line
from studio.tui.page import Page
from studio.tui.pages.background import draw_if_open, run_exclusive
from studio.tui.pages.text import holds_words
from studio.tui.widgets.pick_line import PickLine
from studio.tui.widgets.row_list import RowList


class RunPicker:
    """A line and a list, which take the place of the picture while it is open."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self.line = PickLine("progress-choices", id="progress-pick")
        self.list = RowList(id="progress-choices", classes="pane")
        self.list.border_title = "lay over it …"
        self.is_open = False
        self._choices: Sequence[tuple[str, str]] | None = None  # None: not read yet
        self._narrowed = ""  # what the list was last narrowed to

    def show(self, *, on: bool) -> None:
        page = self._page
        self.is_open, self._narrowed = on, ""
        page.set_class(on, "-choosing")
        with page.prevent(Input.Changed):
            self.line.value = ""
        if (home := page.initial_focus()) is not None:
            page.screen.set_focus(home, scroll_visible=False)
        if on:
            run_exclusive(page, "choices", self._load)
        page.call_after_refresh(draw_if_open, page)  # only then the size of the list is known

    async def _load(self) -> None:
        from studio.tui.pages.progress.loader import load_choices

        self._choices = await asyncio.to_thread(load_choices, self._page.host.workspace)
        draw_if_open(self._page)

    def draw(self) -> None:
        words = self.line.value.strip()
        found = [(run, about) for run, about in self._choices or () if holds_words(run, words)]
        rows = [
            Row(run, line((pad(one_line(run, 60), 28), "title"), about)) for run, about in found
        ]
        if not rows:
            text = "reading the workspace …" if self._choices is None else "no run holds this"
            rows = [Row("", line((text, "dim")))]
        # The first that is left, unless somebody has moved since.
        self.list.show_rows(rows, rows[0].key if words != self._narrowed else None)
        self._narrowed = words
