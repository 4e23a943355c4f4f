"""A page as one HTML file that runs nothing, loads nothing and escapes all that it is given."""

from __future__ import annotations

import html
import re
from importlib.resources import files
from itertools import count

from studio.report.page import blocks as b
from studio.secrets.sanitize import sanitize

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_NUMBER = re.compile(r"[-+$]*[\d.,]+( %)?|-")
_SHORT = 40  # characters that stay on one line of a table, which scrolls
_MARKS = {"cut": "del", "new": "ins"}
_EMPTY = frozenset({"meta"})


class Markup(str):
    """HTML as it stands; any other text is escaped."""

    __slots__ = ()


def element(name: str, /, *children: str, **attributes: str) -> Markup:
    """An element; texts are sanitized and escaped. `aria_label` is the attribute `aria-label`."""
    named = ((key.strip("_").replace("_", "-"), text) for key, text in attributes.items())
    shown = "".join(f' {key}="{_escape(text)}"' for key, text in named)
    if name in _EMPTY:
        return Markup(f"<{name}{shown}>")
    return Markup(f"<{name}{shown}>{''.join(map(_escape, children))}</{name}>")


def _escape(text: str) -> str:
    return text if isinstance(text, Markup) else html.escape(sanitize(text))


def render_html(page: b.Page) -> str:
    """The file. Raises ConfigError where a chart is to be drawn and cannot be."""
    style = (files("studio.report.page") / "style.css").read_text("utf-8")
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", page.title),
        element("style", Markup(style)),
    )
    numbers = count(1)
    body = element("h1", page.title), *(_render(block, 2, numbers) for block in page.blocks)
    whole = element("html", head, element("body", element("main", *body)), lang="en")
    return f"<!doctype html>{whole}\n"


def _render(block: b.Block, level: int, numbers: count[int]) -> Markup:
    """`level` is that of a heading, `numbers` give each chart one of its own."""
    match block:
        case b.Text(text, role):
            return element("p", text, class_=role, dir="auto")
        case b.Items(items):
            return element("ul", *(element("li", item, dir="auto") for item in items))
        case b.Table():
            return _render_table(block)
        case b.Quote(source, words):
            said = element("blockquote", _render_words(words), dir="auto")
            return element("figure", element("figcaption", source), said, class_="quote")
        case b.Charts(charts):
            from studio.report.page.plots import draw_svg

            drawn = (
                element(
                    "figure",
                    element("figcaption", chart.title),
                    Markup(draw_svg(chart, next(numbers), _escape(b.chart_text(chart)))),
                )
                for chart in charts
            )
            return element("div", *drawn, class_="charts")
        case b.Part(title, inner, folded):
            parts = (_render(one, level + (not folded), numbers) for one in inner)
            if folded:
                return element("details", element("summary", title), *parts)
            return element("section", element(f"h{min(level, 6)}", title, dir="auto"), *parts)


def _render_table(table: b.Table) -> Markup:
    head = element("tr", *(element("th", text, scope="col") for text in table.headings))
    rows = (element("tr", *map(_render_cell, row)) for row in table.rows)
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


def _render_cell(cell: str | b.Words) -> Markup:
    if not isinstance(cell, str):
        return element("td", _render_words(cell), dir="auto")
    kind = "number" if _NUMBER.fullmatch(cell) else "short" if len(cell) <= _SHORT else "text"
    return element("td", cell, class_=kind, dir="auto")


def _render_words(words: b.Words) -> Markup:
    pieces = ((_MARKS.get(kind), text) for kind, text in words)
    return Markup("".join(element(mark, text) if mark else _escape(text) for mark, text in pieces))
