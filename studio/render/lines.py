"""Lines that commands print: tables that fit a terminal, bars of a curve, and notes on stderr.

Owns widths. The text of every cell is sanitized here, so that no caller can forget it.
"""

import math
import os
import sys
import textwrap
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from shlex import quote

from studio.process import silence_stream
from studio.secrets.sanitize import one_line, sanitize

LEVELS = "▁▂▃▄▅▆▇█"
LEVELS_ASCII = "_.-:=+*#"
COLUMNS = 80
"""What a table fits into when it can, also in a pipe: output does not depend on a window."""
_LONGEST = 1000  # characters of a cell; beyond that it is no table any more
_LEAST = 20  # characters that a folded column keeps


def table(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    fold: int | None = None,
    columns: int = COLUMNS,
) -> str:
    """Plain columns under headings, two blanks apart, in `columns` characters if they fit.

    The column `fold` goes on in further lines when the table is too wide; None: none does,
    because an id or a path in two pieces is of no use.
    """
    cells = [[one_line(cell, _LONGEST) for cell in row] for row in (headings, *rows)]
    widths = [max(len(row[at]) for row in cells) for at in range(len(headings))]
    over = sum(widths) + 2 * (len(widths) - 1) - columns
    if fold is not None and over > 0:
        widths[fold] = max(widths[fold] - over, _LEAST)
    lines: list[str] = []
    for row in cells:
        pieces = [
            textwrap.wrap(cell, width) or [""] if at == fold else [cell]
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        for line in zip_longest(*pieces, fillvalue=""):
            padded = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
            lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def wrap_text(text: str, width: int) -> str:
    """Long lines broken at blanks, what follows indented a little more than their beginning."""
    lines: list[str] = []
    for line in text.split("\n"):
        start = line[: len(line) - len(line.lstrip())] + "    "
        lines += textwrap.wrap(
            line, width, subsequent_indent=start, break_long_words=False, break_on_hyphens=False
        ) or [""]
    return "\n".join(lines)


def sparkline(
    values: Sequence[float | None],
    width: int,
    *,
    low: float | None = None,
    high: float | None = None,
) -> str:
    """Values as bars of eight heights, at most `width` cells.

    What is None or no number leaves a gap; of more values than cells, neighbours are averaged.
    `low` and `high` are what the lowest and the highest bar mean, by default the least and the
    greatest value.
    """
    cells = _pool_values(values, max(1, width))
    known = [value for value in cells if value is not None]
    if not known:
        return ""
    floor = min(known) if low is None else min(low, *known)
    span = (max(known) if high is None else max(high, *known)) - floor
    top = len(LEVELS) - 1

    def bar(value: float | None) -> str:
        if value is None:
            return " "
        return LEVELS[round(top * (value - floor) / span)] if span > 0 else LEVELS[top // 2]

    return "".join(map(bar, cells))


def _pool_values(values: Sequence[float | None], width: int) -> list[float | None]:
    """At most `width` values, each the mean of the known ones in its share."""
    count = min(len(values), width)
    out: list[float | None] = []
    for at in range(count):
        share = values[at * len(values) // count : (at + 1) * len(values) // count]
        known = [value for value in share if value is not None and math.isfinite(value)]
        out.append(sum(known) / len(known) if known else None)
    return out


def indent_text(text: str, by: str = "  ") -> str:
    return "\n".join(f"{by}{line}".rstrip() for line in text.split("\n"))


def to_stderr(line: str) -> None:
    try:
        print(sanitize(line), file=sys.stderr, flush=True)
    except OSError:  # the reader left, or the disk is full: neither must end a run
        silence_stream(sys.stderr)


def tell_next(command: str, workspace: Path) -> None:
    """Print it on stderr, as it has to be typed to reach this workspace; "" prints nothing."""
    if not command:
        return
    if workspace != Path(os.environ.get("STUDIO_WORKSPACE") or "practice"):
        folder = f"studio --workspace {quote(str(workspace))} "
        command = command.replace("studio ", folder, 1)
    print(f"next: {sanitize(command)}", file=sys.stderr, flush=True)
