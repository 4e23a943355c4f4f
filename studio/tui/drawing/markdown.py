"""A page of Markdown as lines, laid out by rich as `studio guide` prints it."""

from __future__ import annotations

from rich.console import Console
from rich.markdown import Markdown
from rich.style import Style

from studio.tui.drawing.lines import Line


def markdown_lines(text: str, width: int) -> list[Line]:
    """The page, wrapped to a width in cells."""
    rows = Console(width=width).render_lines(Markdown(text, hyperlinks=False), pad=False)
    out: list[Line] = []
    for row in rows:
        is_blank = not "".join(segment.text for segment in row).strip()
        if not is_blank or (out and out[-1]):  # one blank line is enough
            out.append(() if is_blank else tuple((s.text, _style_name(s.style)) for s in row))
    return out


def _style_name(style: Style | None) -> str:
    if style is None:
        return ""
    return "key" if style.bgcolor else "title" if style.bold else "dim" if style.dim else ""
