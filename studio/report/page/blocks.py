"""What a written page is made of, as plain values: one page, rendered as HTML or as Markdown.

Texts are as untrusted as they come: whoever renders them escapes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from engines.core.state.curve import Point
from engines.core.text.similarity import Change

Words = tuple[Change, ...]
"""A text in pieces that say what is the same, cut or new."""


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph; a notice is what must not be overlooked."""

    text: str
    role: Literal["plain", "notice"] = "plain"


@dataclass(frozen=True, slots=True)
class Items:
    items: Sequence[str]


@dataclass(frozen=True, slots=True)
class Table:
    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str | Words]]


@dataclass(frozen=True, slots=True)
class Quote:
    """What a model, a tool or a file said, in its own lines."""

    source: str
    words: Words


@dataclass(frozen=True, slots=True)
class Line:
    """One curve of a chart; points with `low` and `high` have a band."""

    name: str
    points: Sequence[Point]


@dataclass(frozen=True, slots=True)
class LineChart:
    """Curves over the steps; a `mark` is a band across the steps from … to, such as an epoch."""

    title: str
    lines: Sequence[Line]
    high: float | None = None  # of the scale, which begins at 0 then
    holds: bool = False  # a value holds until the next one
    marks: Sequence[tuple[int, int, Point]] = ()


@dataclass(frozen=True, slots=True)
class BarChart:
    """A bar a label, made of parts that add up: `parts[name]` has a value for each label."""

    title: str
    labels: Sequence[str]
    parts: Sequence[tuple[str, Sequence[float]]]


Chart = LineChart | BarChart


@dataclass(frozen=True, slots=True)
class Charts:
    charts: Sequence[Chart]


@dataclass(frozen=True, slots=True)
class Part:
    """Blocks under a heading of their own; folded ones are out of sight until asked for."""

    title: str
    blocks: Sequence[Block]
    folded: bool = False


Block = Text | Items | Table | Quote | Charts | Part


@dataclass(frozen=True, slots=True)
class Page:
    title: str
    blocks: Sequence[Block]


def plain_words(text: str) -> Words:
    return (("same", text),)


def chart_text(chart: Chart) -> str:
    """What a chart shows, for whoever cannot see it."""
    found = []
    if isinstance(chart, BarChart):
        for at, label in enumerate(chart.labels):
            shown = ", ".join(f"{name} {part[at]:,g}" for name, part in chart.parts if any(part))
            found.append(f"{label}: {shown}")
    else:
        for line in chart.lines:
            ends = [f"{p.value:.3g} after step {p.step}" for p in (line.points[0], line.points[-1])]
            values = [point.value for point in line.points]
            shown = f"{line.name} {', '.join(dict.fromkeys(ends))}"
            more = f", least {min(values):.3g}, most {max(values):.3g}" * (len(values) > 1)
            found.append(shown + more)
    return f"{chart.title}. {'; '.join(found)}."
