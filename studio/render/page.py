"""A written page as blocks of plain values, rendered as one HTML file or as Markdown.

Texts in blocks are as untrusted as they come; the renderers escape them. The HTML runs nothing and
loads nothing: charts are SVG that matplotlib draws and the page's own style colours. In Markdown no
text can be anything but text. Nothing is random or dated: one page, one file.
"""

from __future__ import annotations

import html
import io
import re
import warnings
from collections.abc import Sequence
from importlib.resources import files
from itertools import count, cycle
from typing import TYPE_CHECKING, Any, Literal

from engines.core.errors import ConfigError, install_command
from engines.core.frozen import frozen
from engines.core.state.list_row import Point
from engines.core.text.similarity import Change, format_changes
from studio.render.json import print_json
from studio.render.lines import COLUMNS, indent_text, sparkline, table, wrap_text
from studio.secrets.sanitize import one_line, sanitize

if TYPE_CHECKING:
    from matplotlib.axes import Axes


Words = tuple[Change, ...]
"""A text in pieces that say what is the same, cut or new."""


@frozen
class Text:
    """A paragraph; a notice is what must not be overlooked."""

    text: str
    role: Literal["plain", "notice"] = "plain"


@frozen
class Items:
    items: Sequence[str]


@frozen
class Table:
    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str | Words]]


@frozen
class Quote:
    """What a model, a tool or a file said, in its own lines."""

    source: str
    words: Words


@frozen
class Line:
    """One curve of a chart; points with `low` and `high` have a band."""

    name: str
    points: Sequence[Point]


@frozen
class LineChart:
    """Curves over the steps; a `mark` is a band across the steps from … to, such as an epoch."""

    title: str
    lines: Sequence[Line]
    high: float | None = None  # of the scale, which begins at 0 then
    holds: bool = False  # a value holds until the next one
    marks: Sequence[tuple[int, int, Point]] = ()


@frozen
class BarChart:
    """A bar a label, made of parts that add up: `parts[name]` has a value for each label."""

    title: str
    labels: Sequence[str]
    parts: Sequence[tuple[str, Sequence[float]]]


Chart = LineChart | BarChart


@frozen
class Charts:
    charts: Sequence[Chart]


@frozen
class Part:
    """Blocks under a heading of their own; folded ones are out of sight until asked for."""

    title: str
    blocks: Sequence[Block]
    folded: bool = False


Block = Text | Items | Table | Quote | Charts | Part


@frozen
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


_HTML_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_NUMBER = re.compile(r"[-+$]*[\d.,]+( %)?|-")
_SHORT_CELL = 40  # characters that stay on one line of a table, which scrolls
_MARKS = {"cut": "del", "new": "ins"}
_EMPTY = frozenset({"meta"})


class Markup(str):
    """HTML as it stands; any other text is escaped."""

    __slots__ = ()


def element(name: str, /, *children: str, **attributes: str) -> Markup:
    """An element; texts are sanitized and escaped. `aria_label` is the attribute `aria-label`."""
    named = ((key.strip("_").replace("_", "-"), text) for key, text in attributes.items())
    shown = "".join(f' {key}="{_escape_html(text)}"' for key, text in named)
    if name in _EMPTY:
        return Markup(f"<{name}{shown}>")
    return Markup(f"<{name}{shown}>{''.join(map(_escape_html, children))}</{name}>")


def _escape_html(text: str) -> str:
    return text if isinstance(text, Markup) else html.escape(sanitize(text))


def render_html(page: Page) -> str:
    """The file. Raises ConfigError where a chart is to be drawn and cannot be."""
    style = (files("studio.render") / "page.css").read_text("utf-8")
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_HTML_POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", page.title),
        element("style", Markup(style)),
    )
    numbers = count(1)
    body = element("h1", page.title), *(_block_html(block, 2, numbers) for block in page.blocks)
    whole = element("html", head, element("body", element("main", *body)), lang="en")
    return f"<!doctype html>{whole}\n"


def _block_html(block: Block, level: int, numbers: count[int]) -> Markup:
    """`level` is that of a heading, `numbers` give each chart one of its own."""
    match block:
        case Text(text, role):
            return element("p", text, class_=role, dir="auto")
        case Items(items):
            return element("ul", *(element("li", item, dir="auto") for item in items))
        case Table():
            return _table_html(block)
        case Quote(source, words):
            said = element("blockquote", _words_html(words), dir="auto")
            return element("figure", element("figcaption", source), said, class_="quote")
        case Charts(charts):
            drawn = (
                element(
                    "figure",
                    element("figcaption", chart.title),
                    Markup(draw_svg(chart, next(numbers), _escape_html(chart_text(chart)))),
                )
                for chart in charts
            )
            return element("div", *drawn, class_="charts")
        case Part(title, inner, folded):
            parts = (_block_html(one, level + (not folded), numbers) for one in inner)
            if folded:
                return element("details", element("summary", title), *parts)
            return element("section", element(f"h{min(level, 6)}", title, dir="auto"), *parts)


def _table_html(table: Table) -> Markup:
    head = element("tr", *(element("th", text, scope="col") for text in table.headings))
    rows = (element("tr", *map(_cell_html, row)) for row in table.rows)
    inner = element(
        "table",
        element("caption", table.title),
        element("thead", head),
        element("tbody", *rows),
    )
    # It scrolls by itself, also by keys, so that the page need not.
    return element(
        "div", inner, class_="scroll", tabindex="0", role="region", aria_label=table.title
    )


def _cell_html(cell: str | Words) -> Markup:
    if not isinstance(cell, str):
        return element("td", _words_html(cell), dir="auto")
    kind = "number" if _NUMBER.fullmatch(cell) else "short" if len(cell) <= _SHORT_CELL else "text"
    return element("td", cell, class_=kind, dir="auto")


def _words_html(words: Words) -> Markup:
    pieces = ((_MARKS.get(kind), text) for kind, text in words)
    return Markup(
        "".join(element(mark, text) if mark else _escape_html(text) for mark, text in pieces)
    )


_SPECIAL = re.compile(
    r"[\\`*\[<|~$]|&(?=[#\w])|(?<!\w)_|_(?!\w)|(?<=:)/(?=/)|(?<=www)\.", re.IGNORECASE
)
# GitHub turns what follows into a mention, an address or an issue, whatever is escaped.
_REFERENCE = re.compile(r"@(?=\w)|#(?=\d)")
_WORD_JOINER = "\u2060"  # not seen
_AT_START = re.compile(r"\A([=#>]|[-+](?=[-+\s]|\Z)|\d+(?=[.)](\s|\Z)))")
_CURVE_CELLS = 60


def escape_markdown(text: str) -> str:
    """On one line, sanitized; no markup of Markdown, GitHub's included, and no link is left."""
    flat = _SPECIAL.sub(lambda found: "\\" + found[0], sanitize(" ".join(text.split())))
    flat = _REFERENCE.sub(lambda found: found[0] + _WORD_JOINER, flat)
    start = _AT_START.match(flat)
    if start is None:
        return flat
    at = start.end() if start[0].isdigit() else 0
    return f"{flat[:at]}\\{flat[at:]}"


def render_text(page: Page) -> str:
    """Return parts of items and tables as lines for a terminal, without the page's title."""
    return "\n\n".join("\n".join(_block_lines(block)) for block in page.blocks)


def _block_lines(block: Block) -> list[str]:
    match block:
        case Part(title, blocks):
            return [title, *(line for inner in blocks for line in _block_lines(inner))]
        case Items(items):
            return [wrap_text(f"  {one_line(item, 400)}", COLUMNS) for item in items]
        case Table(_, headings, rows):
            cells = [[_cell_text(cell) for cell in row] for row in rows]
            return [indent_text(table(headings, cells, columns=COLUMNS - 2))]
        case _:
            raise TypeError(f"{type(block).__name__} has no form in lines")


def _cell_text(cell: str | Words) -> str:
    return cell if isinstance(cell, str) else format_changes(cell)


def print_facts(facts: object, page: Page, form: str) -> None:
    """Print facts as JSON (`form` json), or their page as text, as Markdown (md) or as HTML."""
    match form:
        case "json":
            print_json(facts)
        case "md":
            print(render_markdown(page).rstrip("\n"), flush=True)
        case "html":
            print(render_html(page).rstrip("\n"), flush=True)
        case _:
            print(render_text(page), flush=True)


def render_markdown(page: Page) -> str:
    lines = [f"# {escape_markdown(page.title)}", *_blocks_markdown(page.blocks, 2)]
    return "\n".join(lines).rstrip() + "\n"


def _blocks_markdown(blocks: Sequence[Block], level: int) -> list[str]:
    return [line for block in blocks for line in ("", *_block_markdown(block, level))]


def _block_markdown(block: Block, level: int) -> list[str]:
    match block:
        case Text(text, role):
            said = escape_markdown(text)
            return [f"> **{said}**" if role == "notice" else said]
        case Items(items):
            return [f"- {escape_markdown(item)}" for item in items]
        case Table(_, headings, rows):
            body = (map(_cell_markdown, row) for row in rows)
            table = [map(escape_markdown, headings), ["---"] * len(headings), *body]
            return [f"| {' | '.join(row)} |" for row in table]
        case Quote(source, words):
            return [f"{escape_markdown(source)}:", "", *_fence(format_changes(words))]
        case Charts(charts):
            return [f"- {_chart_line(chart)}" for chart in charts]
        case Part(title, inner, folded):
            said = escape_markdown(title)
            heading = f"**{said}**" if folded else f"{'#' * min(level, 6)} {said}"
            return [heading, *_blocks_markdown(inner, level + (not folded))]


def _chart_line(chart: Chart) -> str:
    said = escape_markdown(chart_text(chart))
    if isinstance(chart, BarChart):
        return said
    curves = (
        sparkline([point.value for point in line.points], _CURVE_CELLS) for line in chart.lines
    )
    return f"{said} {' '.join(f'`{curve}`' for curve in curves)}"


def _cell_markdown(cell: str | Words) -> str:
    return escape_markdown(_cell_text(cell))


def _fence(text: str) -> list[str]:
    """A block of code whose fence is longer than any in it."""
    said = sanitize(text)
    longest = max((len(run) for run in re.findall("`+", said)), default=0)
    fence = "`" * max(3, longest + 1)
    return [f"{fence}text", *said.split("\n"), fence]


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
        raise ConfigError(
            "--html",
            "its charts need matplotlib.",
            f"Run: {install_command('report')}, or write Markdown with --md.",
        ) from error
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
