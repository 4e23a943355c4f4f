"""What commands put on stdout: tables that fit a terminal, and JSON.

Owns widths. Every text of a cell is made inert here, so no caller can forget it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from engines.core.codec import dumps
from studio.inert import one_line

COLUMNS = 80
"""What a table fits into when it can, also in a pipe: output does not depend on a window."""
_LEAST = 12  # characters left of a shortened column


def table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], shorten: int | None = None
) -> str:
    """Plain columns under headings, two blanks apart.

    Args:
        headings: one a column.
        rows: cells, as many as there are headings.
        shorten: the column that gives way when the table is too wide; None: none does,
            because a path or an id cut short is of no use.
    """
    cells = [[one_line(cell, 1000) for cell in row] for row in (headings, *rows)]
    widths = [max(len(row[at]) for row in cells) for at in range(len(headings))]
    over = sum(widths) + 2 * (len(widths) - 1) - COLUMNS
    if shorten is not None and over > 0:
        widths[shorten] = max(widths[shorten] - over, _LEAST)
        for row in cells:
            row[shorten] = one_line(row[shorten], widths[shorten])
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    )


def indented(text: str, by: str = "  ") -> str:
    return "\n".join(f"{by}{line}".rstrip() for line in text.split("\n"))


def print_json(data: object) -> None:
    sys.stdout.write(dumps(data).decode() + "\n")
    sys.stdout.flush()
