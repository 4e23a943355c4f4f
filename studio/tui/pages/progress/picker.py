"""Choosing a run to lay over another."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from studio.secrets.sanitize import one_line
from studio.tui.drawing.cells import pad
from studio.tui.drawing.lines import Row, line
from studio.tui.pages.picker import Picker
from studio.tui.pages.text import holds_words


class RunPicker(Picker):
    """Every run of the workspace."""

    _choices: Sequence[tuple[str, str]] | None = None  # None: not read yet

    async def load(self) -> None:
        from studio.tui.pages.progress.loader import load_choices

        self._choices = await asyncio.to_thread(load_choices, self._page.host.workspace)
        self._page.draw_if_open()

    def draw(self) -> None:
        self.list.border_title = "lay over it …"
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
