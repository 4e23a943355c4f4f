"""Updates of the screen in as few bytes as they take.

Textual 8.2.8 sends a changed part of a row from the left edge of its widget on, and its colours
with every piece. Here it begins where the change does, and colours are sent where
they change. Owns no screen: `Screen._compositor` still says what is to be drawn.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from itertools import chain
from typing import Any

from rich.cells import cell_len, get_character_cell_size
from rich.color import ColorSystem
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from textual._compositor import ChopsUpdate, CompositorUpdate, LayoutUpdate

_RESET = "\x1b[0m"
_NEAR = 12
"""Columns up to which a step to the right is shorter than a place."""


class _Writer:
    """Text at places, with the colours that it needs."""

    def __init__(self, colors: ColorSystem | None) -> None:
        self.out: list[str] = []
        self._colors = colors
        self._codes = ""
        self._place: tuple[int, int] | None = None  # None where the terminal may see it otherwise

    def move(self, x: int, y: int) -> None:
        if self._place == (x, y):
            return
        if self._place is not None and self._place[1] == y and 0 < x - self._place[0] <= _NEAR:
            self.out.append(f"\x1b[{x - self._place[0]}C")
        else:
            self.out.append(f"\x1b[{y + 1};{x + 1}H")
        self._place = (x, y)

    def text(self, text: str, style: Style | None, cells: int) -> None:
        if style is not None and style.link:
            self._to("")
            self.out.append(style.render(text, color_system=self._colors))
        else:
            self._to(_codes(style, self._colors) if style is not None else "")
            self.out.append(text)
        if self._place is not None:
            x, y = self._place
            # A wide character may be narrow elsewhere: the next piece says its place itself.
            self._place = (x + cells, y) if text.isascii() else None

    def end(self) -> str:
        self._to("")
        return "".join(self.out)

    def _to(self, codes: str) -> None:
        if codes != self._codes:
            self.out.append(f"\x1b[0;{codes}m" if codes else _RESET)
            self._codes = codes


@lru_cache(maxsize=4096)
def _codes(style: Style, colors: ColorSystem | None) -> str:
    """Its numbers; the terminal's own colours need none after a reset."""
    if colors is None:
        return ""
    fore, back = style.color, style.bgcolor
    plain = style.without_color + Style(
        color=None if fore is None or fore.is_default else fore,
        bgcolor=None if back is None or back.is_default else back,
    )
    return plain._make_ansi_codes(colors)


def _slice(text: str, low: int, high: int) -> str:
    """The cells from `low` to `high`, with the marks on them; halves of characters are blank."""
    out: list[str] = []
    at, kept = 0, False
    for char in text:
        cells = get_character_cell_size(char)
        if cells:
            kept = low <= at and at + cells <= high
            shared = min(at + cells, high) - max(at, low)
            at += cells
        if kept:
            out.append(char)
        elif cells and shared > 0:
            out.append(" " * shared)
    return "".join(out)


def _write(writer: _Writer, strip: Iterable[Segment], x: int, y: int, x1: int, x2: int) -> None:
    """Of a strip that begins at `x`, the cells from `x1` to `x2`."""
    writer_text, moved = writer.text, False
    for text, style, control in strip:
        if control or not text:
            continue
        cells = len(text) if text.isascii() else cell_len(text)
        end = x + cells
        if end > x1 and x < x2:
            if x < x1 or end > x2:
                low, high = max(0, x1 - x), min(cells, x2 - x)
                text = text[low:high] if text.isascii() else _slice(text, low, high)
                x, cells = x + low, high - low
            if not moved:
                writer.move(x, y)
                moved = True
            writer_text(text, style, cells)
        x = end
        if x >= x2:
            return


class TightUpdate(CompositorUpdate):
    """A `ChopsUpdate` or `LayoutUpdate` of Textual, written as above."""

    def __init__(self, update: ChopsUpdate | LayoutUpdate) -> None:
        self._update = update

    def __rich_console__(self, console: Console, options: object) -> Iterable[Segment]:
        return self._update.__rich_console__(console, options)  # type: ignore[arg-type,return-value]

    def render_segments(self, console: Console) -> str:
        writer = _Writer(console._color_system)
        update = self._update
        if isinstance(update, LayoutUpdate):
            x, y, right, _ = update.region.corners
            for row, strips in enumerate(update.strips, y):
                _write(writer, chain.from_iterable(strips), x, row, x, right)
            return writer.end()
        for y, x1, x2 in update.spans:
            for end, (x, strip) in zip(update.chop_ends[y], update.chops[y].items(), strict=False):
                if strip is not None and x < x2 and end > x1:
                    _write(writer, strip, x, y, max(x, x1), min(end, x2))
        return writer.end()


def tightened(renderable: Any) -> Any:
    """The same update, to be written tightly; anything else as it is."""
    if type(renderable) in (ChopsUpdate, LayoutUpdate):
        return TightUpdate(renderable)
    return renderable


__all__ = ["TightUpdate", "tightened"]
