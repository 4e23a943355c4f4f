"""A page as Markdown, in which no text that it is given can be anything but text."""

from __future__ import annotations

import re
from collections.abc import Sequence

from engines.core.text.similarity import format_changes
from studio.report.page import blocks as b
from studio.report.training import sparkline
from studio.secrets.sanitize import sanitize

_SPECIAL = re.compile(
    r"[\\`*\[<|~$]|&(?=[#\w])|(?<!\w)_|_(?!\w)|(?<=:)/(?=/)|(?<=www)\.", re.IGNORECASE
)
# GitHub turns what follows into a mention, an address or an issue, whatever is escaped.
_REFERENCE = re.compile(r"@(?=\w)|#(?=\d)")
_WORD_JOINER = "\u2060"  # not seen
_AT_START = re.compile(r"\A([=#>]|[-+](?=[-+\s]|\Z)|\d+(?=[.)](\s|\Z)))")
_CURVE = 60


def escape_markdown(text: str) -> str:
    """On one line, sanitized; no markup of Markdown, GitHub's included, and no link is left."""
    flat = _SPECIAL.sub(lambda found: "\\" + found[0], sanitize(" ".join(text.split())))
    flat = _REFERENCE.sub(lambda found: found[0] + _WORD_JOINER, flat)
    start = _AT_START.match(flat)
    if start is None:
        return flat
    at = start.end() if start[0].isdigit() else 0
    return f"{flat[:at]}\\{flat[at:]}"


def render_markdown(page: b.Page) -> str:
    lines = [f"# {escape_markdown(page.title)}", *_render_all(page.blocks, 2)]
    return "\n".join(lines).rstrip() + "\n"


def _render_all(blocks: Sequence[b.Block], level: int) -> list[str]:
    return [line for block in blocks for line in ("", *_render(block, level))]


def _render(block: b.Block, level: int) -> list[str]:
    match block:
        case b.Text(text, role):
            said = escape_markdown(text)
            return [f"> **{said}**" if role == "notice" else said]
        case b.Items(items):
            return [f"- {escape_markdown(item)}" for item in items]
        case b.Table(_, headings, rows):
            body = (map(_render_cell, row) for row in rows)
            table = [map(escape_markdown, headings), ["---"] * len(headings), *body]
            return [f"| {' | '.join(row)} |" for row in table]
        case b.Quote(source, words):
            return [f"{escape_markdown(source)}:", "", *_fence(format_changes(words))]
        case b.Charts(charts):
            return [f"- {_chart_line(chart)}" for chart in charts]
        case b.Part(title, inner, folded):
            said = escape_markdown(title)
            heading = f"**{said}**" if folded else f"{'#' * min(level, 6)} {said}"
            return [heading, *_render_all(inner, level + (not folded))]


def _chart_line(chart: b.Chart) -> str:
    said = escape_markdown(b.chart_text(chart))
    if isinstance(chart, b.BarChart):
        return said
    curves = (sparkline([point.value for point in line.points], _CURVE) for line in chart.lines)
    return f"{said} {' '.join(f'`{curve}`' for curve in curves)}"


def _render_cell(cell: str | b.Words) -> str:
    return escape_markdown(cell if isinstance(cell, str) else format_changes(cell))


def _fence(text: str) -> list[str]:
    """A block of code whose fence is longer than any in it."""
    said = sanitize(text)
    longest = max((len(run) for run in re.findall("`+", said)), default=0)
    fence = "`" * max(3, longest + 1)
    return [f"{fence}text", *said.split("\n"), fence]
