"""Curves in terminal cells: braille dots, two by four to a cell.

Drawn by cells of our own, for which 50 ms is the most for 10,000 steps and 3 KB for a decision:
textual-plotext 1.0.1 took 216 ms and sent 8 KB an update, textual-plot 0.10.1 160 ms and 11 KB.
The first is of 2024 and for plotext 5 (6 has another interface), the second needs numpy at once.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import pairwise

from engines.core.state.list_row import Point
from studio.tui.drawing.lines import Line, Span

_BRAILLE = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_ACROSS, _DOWN = 2, 4
"""Dots of a cell."""

MEAN, BETWEEN = "┿│"
"""A held-out mean and its interval."""
OTHER, OTHER_BETWEEN = "*", ":"
"""The same of the run that is laid over, and its points."""
AXIS, EDGE, CORNER, COMMIT, REFUSED, EPOCH, CURSOR = "─┤└┴!┊^"


class Plot:
    """A field of cells over a range of steps and one of values; what is drawn later is on top."""

    def __init__(
        self,
        width: int,
        height: int,
        steps: tuple[int, int],
        values: tuple[float, float],
    ) -> None:
        self.width, self.height = max(1, width), max(1, height)
        self._first, self._span = steps[0], max(1, steps[1] - steps[0])
        self._low, self._range = values[0], (values[1] - values[0]) or 1.0
        self._dots = [[0] * self.width for _ in range(self.height)]
        self._signs: list[dict[int, str]] = [{} for _ in range(self.height)]
        self._styles = [[""] * self.width for _ in range(self.height)]

    def column(self, step: int) -> int:
        """The cell above which a step stands."""
        right = self.width * _ACROSS - 1
        x = int((step - self._first) * right / self._span + 0.5)
        return min(right, max(0, x)) // _ACROSS

    def row(self, value: float) -> int:
        """The cell in which a value lies, 0 on top."""
        return self._places([Point(0, value)])[0][1] // _DOWN

    def _places(self, points: Iterable[Point]) -> list[tuple[int, int]]:
        """The dots of points, those beyond the edge on it."""
        right, bottom = self.width * _ACROSS - 1, self.height * _DOWN - 1
        across, down = right / self._span, bottom / self._range
        places = []
        for point in points:
            x = int((point.step - self._first) * across + 0.5)
            y = int((self._low + self._range - point.value) * down + 0.5)
            places.append((min(right, max(0, x)), min(bottom, max(0, y))))
        return places

    def dots(self, points: Iterable[Point], style: str) -> None:
        """A dot a point: however many there are, the highest and the lowest of a column stay."""
        self._draw(set(self._places(points)), style)

    def line(self, points: Sequence[Point], style: str, *, over: bool = False) -> None:
        """A line through points; `over`: in the cells where it goes nothing else is left."""
        corners = self._places(thin(points, 2 * self.width * _ACROSS))
        places = set(corners)
        for start, end in pairwise(corners):
            places.update(_dots_between(start, end))
        if over:
            for x, y in places:
                self._dots[y // _DOWN][x // _ACROSS] = 0
        self._draw(places, style)

    def points(self, points: Iterable[Point], style: str) -> None:
        """Each point as a square of dots, so that it is seen alone and on a line."""
        for x, y in self._places(points):
            x = min(x, (self.width - 1) * _ACROSS)
            y = min(y, self.height * _DOWN - 2)
            square = ((x + right, y + down) for right in (0, 1) for down in (0, 1))
            self._draw(square, style)

    def signs(self, points: Iterable[Point], sign: str, style: str) -> None:
        """A sign for each point, but not two beside each other: they are no line."""
        last = -2
        for point in points:
            if (column := self.column(point.step)) >= last + 2:
                last = column
                self._put(column, self.row(point.value), sign, style)

    def upright(self, column: int, sign: str, style: str) -> None:
        """A line from top to bottom, behind all that is there."""
        for row in range(self.height):
            if not self._dots[row][column] and column not in self._signs[row]:
                self._put(column, row, sign, style)

    def interval(self, point: Point, style: str, *, other: bool = False) -> None:
        """A mean with the ends of its interval; of the other run in its own signs, beside it."""
        column = self.column(point.step)
        if other:
            column += 1 if column + 1 < self.width else -1
        if point.low is not None and point.high is not None:
            top, bottom = self.row(point.high), self.row(point.low)
            for row in range(top, bottom + 1):
                self._put(column, row, OTHER_BETWEEN if other else BETWEEN, style)
        self._put(column, self.row(point.value), OTHER if other else MEAN, style)

    def _draw(self, places: Iterable[tuple[int, int]], style: str) -> None:
        for x, y in places:
            row, column = y // _DOWN, x // _ACROSS
            self._dots[row][column] |= _BRAILLE[x % 2][y % 4]
            self._styles[row][column] = style
            self._signs[row].pop(column, None)

    def _put(self, column: int, row: int, sign: str, style: str) -> None:
        if 0 <= column < self.width:
            self._signs[row][column] = sign
            self._styles[row][column] = style

    def lines(self) -> list[Line]:
        """Exactly `width` cells each, spans of one style joined."""
        return [self._line(row) for row in range(self.height)]

    def _line(self, row: int) -> Line:
        cells: list[Span] = []
        style = ""
        for column, dots in enumerate(self._dots[row]):
            drawn = chr(0x2800 + dots) if dots else " "
            sign = self._signs[row].get(column) or drawn
            if sign != " ":  # a blank goes on with the style before it
                style = self._styles[row][column]
            cells.append((sign, style))
        return join_cells(cells)


def thin(points: Sequence[Point], parts: int) -> Sequence[Point]:
    """Of each part of a long series the first, the lowest, the highest and the last point."""
    if len(points) <= 4 * parts:
        return points
    values = [point[1] for point in points]
    kept: set[int] = set()
    for part in range(parts):
        start, end = part * len(points) // parts, (part + 1) * len(points) // parts
        share = values[start:end]
        extremes = (share.index(min(share)), share.index(max(share)))
        kept.update((start, end - 1, start + extremes[0], start + extremes[1]))
    return [points[at] for at in sorted(kept)]


def _dots_between(start: tuple[int, int], end: tuple[int, int]) -> Iterable[tuple[int, int]]:
    (x, y), (to_x, to_y) = start, end
    count = max(abs(to_x - x), abs(to_y - y))
    for at in range(1, count):
        yield x + round((to_x - x) * at / count), y + round((to_y - y) * at / count)


def split_at(points: Sequence[Point], firsts: Sequence[int]) -> list[Sequence[Point]]:
    """Points in pieces, a new one from each of these steps on: lines have a gap between them."""
    ends = [0, *(bisect_left(points, (first,)) for first in sorted(firsts)), len(points)]
    return [points[start:end] for start, end in pairwise(ends) if start < end]


def value_range(series: Iterable[Sequence[Point]], *, share: bool) -> tuple[float, float]:
    """The values to be drawn, intervals included; `share`: at least 0 to 1."""
    ends = [0.0, 1.0] if share else [0.0]
    for points in series:
        ends += [point.value for point in points]
        ends += [point.low for point in points if point.low is not None]
        ends += [point.high for point in points if point.high is not None]
    low, high = min(ends), max(ends)
    return (low, high) if high > low else (low, low + 1.0)


def nice_step(span: float, most: int) -> int:
    """The least of 1, 2, 5, 10, 20, 50 … by which so long a span has at most so many marks."""
    least = max(1.0, span / max(1, most))
    power = 10 ** math.floor(math.log10(least))
    return next(int(power * of) for of in (1, 2, 5, 10) if power * of >= least - 1e-9)


def put_labels(labels: Iterable[tuple[int, str, str]], width: int) -> Line:
    """Texts at columns on one row; the first given go first, those without room are left out."""
    cells: list[Span] = [(" ", "")] * width
    free = [True] * (width + 1)
    for column, text, style in labels:
        start = min(column, width - len(text))
        if start < 0 or not all(free[max(0, start - 1) : start + len(text) + 1]):
            continue
        for at, char in enumerate(text, start):
            cells[at], free[at] = (char, style), False
    return join_cells(cells)


def join_cells(cells: Iterable[Span]) -> Line:
    """Neighbours of one style as one span."""
    out: list[list[str]] = []
    for text, style in cells:
        if out and out[-1][1] == style:
            out[-1][0] += text
        else:
            out.append([text, style])
    return tuple((text, style) for text, style in out)
