"""Where panes stand on the canvas, from its size alone: what they say moves nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Mode = Literal["wall", "group", "solo"]

LEAST_WIDTH, LEAST_HEIGHT = 22, 3


@dataclass(frozen=True, slots=True)
class Box:
    """Where a pane stands, borders included; in cells."""

    index: int  # of the pane
    x: int
    y: int
    width: int
    height: int


def grid(
    count: int, width: int, height: int, columns: int | None = None, focus: int = 0
) -> list[Box]:
    """Boxes of the panes that fit; rows of them are left away above and below the focus."""
    if count < 1 or width < 3 or height < LEAST_HEIGHT:
        return []
    if not columns:  # as few rows as panes of some width allow, evenly filled
        columns = -(-count // -(-count // max(1, width // LEAST_WIDTH)))
    columns = min(count, max(1, min(columns, width // 3)))
    rows = -(-count // columns)
    shown = min(rows, height // LEAST_HEIGHT)
    top = min(max(0, focus // columns - shown // 2), rows - shown)
    xs, ys = _split_evenly(width, columns), _split_evenly(height, shown)
    boxes = []
    for index in range(top * columns, min(count, (top + shown) * columns)):
        row, column = divmod(index, columns)
        (x, box_width), (y, box_height) = xs[column], ys[row - top]
        boxes.append(Box(index, x, y, box_width, box_height))
    return boxes


def visible_range(count: int, height: int, focus: int = 0) -> range:
    """The panes that have a line on the wall, the focused one among them."""
    shown = min(count, max(0, height))
    top = min(max(0, focus - shown // 2), count - shown)
    return range(top, top + shown)


def _split_evenly(total: int, parts: int) -> list[tuple[int, int]]:
    """Starts and sizes that fill `total`; the first ones are larger by one."""
    size, more = divmod(total, parts)
    return [(i * size + min(i, more), size + (i < more)) for i in range(parts)]
