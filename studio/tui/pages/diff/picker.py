"""Choosing what is compared: every reference there is, or one that is typed."""

from __future__ import annotations

import asyncio

from engines.core.errors import StudioError
from studio.secrets.sanitize import one_line
from studio.tui.drawing.lines import Row, line
from studio.tui.pages.diff.view import Choice, choice_rows
from studio.tui.pages.picker import Picker

_TYPED = " "  # the row that asks for a reference: no reference is a blank


class ReferencePicker(Picker):
    """Its side is "base" or "target": which of the two references is chosen."""

    shown = ""  # what is compared now on that side
    _choices: tuple[Choice, ...] | None = None  # None: not read yet

    @property
    def reference(self) -> str:
        """What is under the cursor, or was typed."""
        return self.line.value.strip() if self.list.key == _TYPED else self.list.key

    async def load(self) -> None:
        from studio.tui.pages.diff import loader

        session, workspace = self._page.session, self._page.host.workspace
        run = session.run.run if session is not None else None
        try:
            self._choices = await asyncio.to_thread(loader.load_choices, workspace, run)
        except StudioError as error:
            self._choices = (Choice("", str(error)),)
        if self.side:
            self._page.draw_if_open()
            self.list.go_to(self.shown)

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
