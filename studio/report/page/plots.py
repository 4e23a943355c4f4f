"""Charts as SVG that stands in a page: drawn by matplotlib, coloured by the page's own style.

Nothing of it is random or dated: one chart, one text.
"""

from __future__ import annotations

import io
import re
import warnings
from itertools import cycle
from typing import TYPE_CHECKING, Any

from engines.core.errors import ConfigError
from engines.core.extras import install_command
from studio.report.page.blocks import BarChart, Chart, Line, LineChart
from studio.secrets.sanitize import one_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDTH, _HEIGHT = 4.6, 2.5  # inches of 72 units: what a phone shows without making it smaller
_INK, _RULE = "#000001", "#000002"
_SERIES = tuple(f"#00001{n}" for n in range(1, 7))
_STYLE_COLOURS = {_INK: "currentColor", _RULE: "var(--rule)"} | {
    colour: f"var(--series-{n})" for n, colour in enumerate(_SERIES, 1)
}
"""Colours that are drawn with, and those of the page's style that take their place."""
_MARKERS = ("o", "s", "^", "D", "v", "P")
_MOST_MARKERS, _MOST_NAME = 40, 28
_RC: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: it is read aloud, copied, and has the page's font
    "text.parse_math": False,  # names may hold a dollar sign
    "font.size": 9,
    "text.color": _INK,
    "axes.edgecolor": _RULE,
    "axes.labelcolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "grid.color": _RULE,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def draw_svg(chart: Chart, number: int, label: str) -> str:
    """An SVG element for an HTML page.

    Args:
        chart: what is drawn.
        number: of the chart on its page, so that no two share the name of an inner part.
        label: its description in words, escaped already.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        move = f"Run: {install_command('report')}, or write Markdown with --md."
        raise ConfigError("--html", "its charts need matplotlib.", move) from error
    drawn = io.StringIO()
    with matplotlib.rc_context({**_RC, "svg.hashsalt": str(number)}), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its own font lacks signs that the page's font has
        figure = Figure(figsize=(_WIDTH, _HEIGHT), layout="constrained")
        axes = figure.subplots()
        if isinstance(chart, BarChart):
            _draw_bars(axes, chart)
        else:
            _draw_lines(axes, chart)
        names = axes.get_legend_handles_labels()[1]
        if len(names) > 1:
            figure.legend(loc="outside upper left", ncols=3, frameon=False, fontsize=8)
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(drawn, format="svg", transparent=True, metadata=nothing)
    return _as_element(drawn.getvalue(), label)


def _draw_lines(axes: Axes, chart: LineChart) -> None:
    for line, colour, marker in zip(chart.lines, cycle(_SERIES), cycle(_MARKERS), strict=False):
        _draw_line(axes, line, colour, marker, holds=chart.holds)
    for first, last, point in chart.marks:
        ends = [first - 0.5, last + 0.5]
        if point.low is not None and point.high is not None:
            axes.fill_between(ends, point.low, point.high, color=_SERIES[1], alpha=0.25, lw=0)
        axes.plot(ends, [point.value] * 2, color=_SERIES[1], lw=2)
    axes.set_xlabel("step")
    axes.grid(axis="y", alpha=0.5, lw=0.6)
    axes.locator_params(axis="x", integer=True)
    if chart.high is not None:
        axes.set_ylim(-0.02 * chart.high, chart.high * 1.02)


def _draw_line(axes: Axes, line: Line, colour: str, marker: str, *, holds: bool) -> None:
    steps = [point.step for point in line.points]
    axes.plot(
        steps,
        [point.value for point in line.points],
        color=colour,
        label=one_line(line.name, _MOST_NAME),
        lw=1.4,
        marker=marker if len(steps) <= _MOST_MARKERS else "",
        markersize=3.5,
        drawstyle="steps-post" if holds else "default",
    )
    banded = [point for point in line.points if point.low is not None and point.high is not None]
    if banded:
        low, high = [point.low or 0.0 for point in banded], [point.high or 0.0 for point in banded]
        spread = [point.step for point in banded]
        axes.fill_between(spread, low, high, color=colour, alpha=0.18, lw=0)


def _draw_bars(axes: Axes, chart: BarChart) -> None:
    places = range(len(chart.labels))
    begin = [0.0] * len(chart.labels)
    for (name, values), colour in zip(chart.parts, cycle(_SERIES), strict=False):
        shown = one_line(name, _MOST_NAME)
        axes.barh(places, values, left=begin, color=colour, label=shown, height=0.6)
        begin = [at + value for at, value in zip(begin, values, strict=True)]
    axes.set_yticks(places, [one_line(label, _MOST_NAME) for label in chart.labels])
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.5, lw=0.6)
    axes.set_axisbelow(True)


def _as_element(svg: str, label: str) -> str:
    """Without what a file needs and a page does not, in the page's font and colours."""
    svg = svg[svg.index("<svg") :].strip()
    head = f'<svg viewBox="0 0 {_WIDTH * 72:g} {_HEIGHT * 72:g}" role="img" aria-label="{label}">'
    svg = re.sub(r"\A<svg[^>]*>\s*(<metadata>.*?</metadata>\s*)?<defs>\s*<style.*?</defs>", "", svg,
                 flags=re.DOTALL)  # fmt: skip
    svg = re.sub(r'<g id="[^"]*">', "<g>", svg)
    svg = re.sub(r"; font-family: [^;\"]*", "", svg).replace("xlink:href", "href")
    for drawn, colour in _STYLE_COLOURS.items():
        svg = svg.replace(f": {drawn}", f": {colour}")
    return head + re.sub(r"\s*\n\s*", "\n", svg)
