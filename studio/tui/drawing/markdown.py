"""A page of Markdown as lines: headings, paragraphs, lists, tables and blocks of code.

Only what the manual uses; Textual's own widget draws no ASCII and cannot be searched.
"""

from __future__ import annotations

import re
from itertools import groupby

from studio.tui.drawing.cells import cell_width
from studio.tui.drawing.lines import BLANK, Line, Span, paragraph

_INLINE = re.compile(r"`([^`]+)`|\*\*([^*]+)\*\*|\*([^*]+)\*")
_ITEM = re.compile(r"(?:\*|\d+\.) ")


def markdown_lines(text: str, width: int) -> list[Line]:
    """The page, wrapped to a width in cells."""
    out: list[Line] = []
    parts = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
    for part in parts:
        if part.startswith("```"):
            for row in part.splitlines()[1:-1]:
                out += paragraph([("  ", ""), (row, "key")], width, "      ")
            out.append(BLANK)
            continue
        for block in re.split(r"\n\s*\n", part.strip("\n")):
            out += [*_block_lines(block, width), BLANK] if block.strip() else []
    return out[:-1]


def _block_lines(block: str, width: int) -> list[Line]:
    rows = block.splitlines()
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
