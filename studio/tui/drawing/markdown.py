"""A page of Markdown as lines: headings, paragraphs, lists, tables and blocks of code.

Only what the manual uses; Textual's own widget draws no ASCII and cannot be searched.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import groupby

from studio.tui.drawing.cells import cell_width
from studio.tui.drawing.lines import BLANK, Line, Span, paragraph

_INLINE = re.compile(r"`([^`]+)`|\*\*([^*]+)\*\*|\*([^*]+)\*")
_ITEM = re.compile(r"(?:\*|\d+\.) ")


def markdown_lines(text: str, width: int) -> list[Line]:
    """The page, wrapped to a width in cells."""
    return [row for block in _blocks(text) for row in (*_block_lines(block, width), BLANK)][:-1]


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


def _block_lines(block: str, width: int) -> list[Line]:
    rows = block.splitlines()
    if rows[0].startswith("```"):
        code = (paragraph([("  ", ""), (row, "key")], width, "      ") for row in rows[1:-1])
        return [each for lines in code for each in lines]
    if rows[0].startswith("#"):
        return [((rows[0].lstrip("# "), "title"),)]
    if rows[0].startswith("|"):
        return _table_lines(rows, width)
    out: list[Line] = []
    item = 0

    def number_of(row: str) -> int:
        """Rows of one item, or of one paragraph, have the same."""
        nonlocal item
        item += bool(_ITEM.match(row))
        return item

    for _, found in groupby(rows, number_of):
        joined = " ".join(row.strip() for row in found)
        head = _ITEM.match(joined)
        mark = "" if head is None else "- " if joined.startswith("*") else head[0]
        body = joined[head.end() :] if head else joined
        out += paragraph([(mark, "dim"), *inline_spans(body)], width, " " * len(mark))
    return out


def inline_spans(text: str) -> list[Span]:
    """Code, bold and emphasis as styled spans."""
    out: list[Span] = []
    at = 0
    for found in _INLINE.finditer(text):
        code, bold, emphasis = found.groups()
        style = "key" if code else "title" if bold else ""
        out += [(text[at : found.start()], ""), (code or bold or emphasis, style)]
        at = found.end()
    return [span for span in (*out, (text[at:], "")) if span[0]]


def _table_lines(rows: list[str], width: int) -> list[Line]:
    """Columns side by side; the last one wraps under itself."""
    cells = [
        [inline_spans(cell.strip()) for cell in row.strip()[1:-1].split("|")]
        for row in rows
        if not row.startswith("|--")
    ]
    sizes = [max(_width(row[at]) for row in cells) for at in range(len(cells[0]) - 1)]
    left = sum(sizes) + 2 * len(sizes)
    out: list[Line] = []
    for row in cells:
        head: list[Span] = []
        for spans, size in zip(row, sizes, strict=False):
            head += [*spans, (" " * (size - _width(spans) + 2), "")]
        if left + min(_width(row[-1]), 9) > width:  # too little is left for a word
            out += [*paragraph(head, width), *paragraph([("    ", ""), *row[-1]], width, "    ")]
            continue
        first, *further = paragraph(row[-1], max(1, width - left)) if row[-1] else [()]
        out += [(*head, *first), *(((" " * left, ""), *more) for more in further)]
    return out


def _width(spans: list[Span]) -> int:
    return sum(cell_width(text) for text, _ in spans)
