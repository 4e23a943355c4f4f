"""Choosing what is compared: a list of references, narrowed by what is typed above it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Literal

from textual.widgets import Input

from engines.core.errors import StudioError
from studio.secrets.sanitize import one_line
from studio.tui.drawing.lines import Row, line
from studio.tui.keymap import Key
from studio.tui.page import Page
from studio.tui.pages.background import draw_if_open, run_exclusive
from studio.tui.pages.diff.view import Choice, Comparison, choice_rows
from studio.tui.widgets.pick_line import PICK_KEYS, PickLine
from studio.tui.widgets.row_list import RowList

_TYPED = " "  # the row that asks for a reference: no reference is a blank


class ReferencePicker:
    """The list is open while `side` says which of the two references is chosen."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self.line = PickLine("diff-choices", id="diff-pick")
        self.list = RowList(id="diff-choices", classes="pane")
        self.side: Literal["", "base", "target"] = ""
        self._choices: tuple[Choice, ...] | None = None  # None: not read yet
        self._narrowed = ""  # what the list was last narrowed to

    @property
    def keys(self) -> Sequence[Key]:
        """What is heard while the list is open."""
        return PICK_KEYS if self.side else ()

    @property
    def reference(self) -> str:
        """What is under the cursor, or was typed."""
        return self.line.value.strip() if self.list.key == _TYPED else self.list.key

    def open(self, side: Literal["base", "target"], found: Comparison | None) -> None:
        """Show the list, the cursor on what is compared now."""
        page = self._page
        self.side, self._narrowed, page.filter_text = side, "", ""
        page.add_class("-choosing")
        with page.prevent(Input.Changed):
            self.line.value = ""
        page.screen.set_focus(self.line, scroll_visible=False)
        # Only then the size of the list is known.
        page.call_after_refresh(draw_if_open, page)

        async def load() -> None:
            await self._load()
            if self.side and found is not None:
                shown = found.base if self.side == "base" else found.target
                self.list.go_to(shown.reference)

        run_exclusive(page, "choices", load)
        page.host.draw_now()

    def close(self) -> None:
        page = self._page
        self.side = page.filter_text = ""
        page.remove_class("-choosing")
        page.screen.set_focus(page.initial_focus(), scroll_visible=False)
        page.call_after_refresh(draw_if_open, page)

    async def _load(self) -> None:
        from studio.tui.pages.diff import loader

        session, workspace = self._page.session, self._page.host.workspace
        run = session.run.run if session is not None else None
        try:
            self._choices = await asyncio.to_thread(loader.load_choices, workspace, run)
        except StudioError as error:
            self._choices = (Choice("", str(error)),)
        if self.side:
            draw_if_open(self._page)

    def draw(self) -> None:
        self.list.border_title = "compare with …" if self.side == "base" else "compare …"
        if self._choices is None:
            self.list.show_rows([Row("", line(("reading what there is …", "dim")))])
            return
        text = self.line.value.strip()
        rows = choice_rows(self._choices, text, max(12, self.list.line_width - 2))
        listed = [row.key for row in rows if row.key]
        if not text:
            hint = "arrows choose; or type NAME@V, RUN@epoch:N, RUN@step:N or a file"
            rows.insert(0, Row("", line((hint, "dim"))))
        elif text not in listed:
            rows.insert(0, Row(_TYPED, line(("as it is typed: ", "dim"), one_line(text, 400))))
        wanted = None
        if text != self._narrowed:  # the likeliest, unless somebody has moved since
            wanted = text if text in listed else next(iter(listed), _TYPED)
        self._narrowed = text
        self.list.show_rows(rows, wanted)
