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
from studio.report.page.blocks import BarChart, Chart, LineChart
from studio.secrets.sanitize import one_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDTH, _HEIGHT = 4.6, 2.5  # inches of 72 units: what a phone shows without making it smaller
_INK, _RULE = "#000001", "#000002"
_SERIES = tuple(f"#00001{n}" for n in range(1, 8))
_STYLE_COLOURS = {_INK: "currentColor", _RULE: "var(--rule)"} | {
    colour: f"var(--series-{n})" for n, colour in enumerate(_SERIES, 1)
}
"""Colours that are drawn with, and those of the page's style that take their place."""
_MOST_MARKERS, _MOST_NAME = 40, 28
_RC: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: it is read aloud, copied, and has the page's font
    "text.parse_math": False,  # names may hold a dollar sign
    "font.size": 9,
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), _INK),
    **dict.fromkeys(("axes.edgecolor", "grid.color"), _RULE),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right"), False),
}


def draw_svg(chart: Chart, number: int, label: str) -> str:
    """An SVG element for an HTML page. Raises ConfigError: matplotlib is not installed.

    `number` is that of the chart on its page, so that no two share the name of an inner part;
    `label` describes it in words, escaped already.
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
    for line, colour, marker in zip(chart.lines, cycle(_SERIES), cycle("os^DvP"), strict=False):
        steps, values = zip(*(point[:2] for point in line.points), strict=True)
        shown: dict[str, Any] = {"label": one_line(line.name, _MOST_NAME), "color": colour}
        shown["marker"] = marker if len(steps) <= _MOST_MARKERS else ""
        shown["drawstyle"] = "steps-post" if chart.holds else "default"
        axes.plot(steps, values, lw=1.4, markersize=3.5, **shown)
        if band := [(p.step, p.low, p.high) for p in line.points if p.low is not None]:
            spread, low, high = zip(*band, strict=True)
            axes.fill_between(spread, low, high, color=colour, alpha=0.18, lw=0)
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


def _draw_bars(axes: Axes, chart: BarChart) -> None:
    places = range(len(chart.labels))
    begin = [0.0] * len(chart.labels)
    for (name, values), colour in zip(chart.parts, cycle(_SERIES), strict=False):
        if any(values):  # what is left out keeps its colour, so that a name has the same in all
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
