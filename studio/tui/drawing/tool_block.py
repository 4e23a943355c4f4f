"""A tool call with its result as rows: one while it is folded, else its lines behind a rail. Pure.

What stands here comes from models and programs: all of it is sanitized before it is measured.
"""

from __future__ import annotations

from dataclasses import dataclass

from engines.core.text.sanitize import escape_unsafe
from engines.core.text.tool_marks import CallMark, ResultMark, call_mark, result_mark
from engines.core.text.tool_text import argument_text, call_text, split_status
from engines.core.tools import ToolResult
from engines.core.types import ToolCall
from studio.tui.drawing.cells import Glyphs, cell_width, fit, wrap

_MOST_CHARS, _MOST_ROWS = 10_000, 100
"""Of a call and of a result, unfolded in a pane that keeps a few hundred; Inspect has all."""
_WIDE = 40
"""Cells from which on there is room for wider gaps."""


@dataclass(slots=True)
class ToolBlock:
    """One call; `result` is None while it runs."""

    call: CallMark
    result: ResultMark | None = None

    def rows(self, width: int, signs: Glyphs, *, unfolded: bool) -> list[str]:
        """Rows of at most `width` cells; at least one."""
        if not unfolded:
            return [self._folded_row(width, signs)]
        name = fit(f"{signs.unfolded} {_one_line(self.call.name)}", width, signs.ellipsis)
        code = _rail(argument_text(self.call.arguments), width, signs)
        told = fit(f"-> {self._status_text(signs)}", width, signs.ellipsis)
        return [name, *code, told, *_rail(self._result_text, width, signs)]

    def _folded_row(self, width: int, signs: Glyphs) -> str:
        gap = "  " if width >= _WIDE else " "
        head = f"{signs.folded} {_one_line(self.call.name)}{gap}"
        shown = _one_line(self._result_text.strip().partition("\n")[0])
        said = self._status_text(signs)
        if self.result is not None and self.result.status == "ok":
            said = shown or "(nothing)"
        elif shown:
            said += f": {shown}"
        asked = _one_line(argument_text(self.call.arguments))
        left = width - cell_width(head)
        # What came back has half of the row at least, and all that the call leaves.
        end = f"{gap}-> {said}"
        end = fit(end, max(8, width // 2, left - cell_width(asked)), signs.ellipsis)
        asked = fit(asked, max(0, left - cell_width(end)), signs.ellipsis)
        return fit(head + asked + end, width, signs.ellipsis)

    def _status_text(self, signs: Glyphs) -> str:
        """In a word, with a sign where it went wrong."""
        if self.result is None:
            return f"running {signs.ellipsis}"
        return "ok" if self.result.status == "ok" else f"{signs.error} {self.result.status}"

    @property
    def _result_text(self) -> str:
        """What came back, without the status that a model is told before it."""
        if self.result is None:
            return ""
        return split_status(self.result.text)[1] if self.result.status != "ok" else self.result.text

    @property
    def text(self) -> str:
        """As it is copied."""
        asked = call_text(self.call.name, self.call.arguments)
        status = f"-> {self.result.status}\n" if self.result else ""
        return escape_unsafe(f"{asked}\n{status}{self._result_text}".rstrip("\n") + "\n")

    @property
    def marks(self) -> str:
        """As it stood in the stream."""
        call = ToolCall(self.call.id, self.call.name, self.call.arguments)
        if (found := self.result) is None:
            return call_mark(call)
        return call_mark(call) + result_mark(call, ToolResult(found.text, found.status))


def _one_line(text: str) -> str:
    return escape_unsafe(" ".join(text[:_MOST_CHARS].split()))


def _rail(text: str, width: int, signs: Glyphs) -> list[str]:
    """Its lines, each behind a rail that says where it begins and ends."""
    text = text.strip("\n")
    rows = wrap(escape_unsafe(text[:_MOST_CHARS]), max(1, width - 2)) if text else []
    if len(rows) > _MOST_ROWS or len(text) > _MOST_CHARS:
        rows = [*rows[: _MOST_ROWS - 1], fit("(more of it in Inspect)", max(1, width - 2))]
    return [f"{signs.v} {row}" for row in rows]
