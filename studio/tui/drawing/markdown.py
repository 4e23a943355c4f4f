"""A page of Markdown as lines, laid out by rich as `studio guide` prints it, and its filter."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

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


def narrow(text: str, holds: Callable[[str], bool]) -> str:
    """The paragraphs, rows of tables and blocks of code that hold something, below their headings.

    All of what stands below a heading that holds it.
    """
    out: list[str] = []
    heading, is_wanted = "", False
    for block in _blocks(text):
        rows = block.splitlines()
        if block.startswith("#"):
            heading, is_wanted = block, holds(block)
            found = rows if is_wanted else []
        elif is_wanted or (rows[0][0] != "|" and holds(re.sub(r"[`*]", "", block))):
            found = rows
        else:
            found = [row for row in rows[2:] if rows[0][0] == "|" and holds(row)]
            found = [*rows[:2], *found] if found else []
        if found:
            out += [heading] if heading and not is_wanted else []
            out.append("\n".join(found))
            heading = ""
    return "\n\n".join(out)


def _blocks(text: str) -> Iterator[str]:
    for part in re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL):
        found = [part] if part.startswith("```") else re.split(r"\n\s*\n", part.strip("\n"))
        yield from (block for block in found if block.strip())
