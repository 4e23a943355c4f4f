"""Screens as SVG: one still, or several that follow each other in a loop.

Owns how cells become text and rectangles. A file loads nothing from elsewhere and has no script:
frames take turns by CSS, so a page can show it as an image. A row that occurs more than once is
kept once. Lines and braille dots are drawn, since fonts leave gaps between them or lack them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from rich.cells import cell_len
from rich.color import blend_rgb
from rich.color_triplet import ColorTriplet
from rich.style import Style
from rich.terminal_theme import SVG_EXPORT_THEME
from textual.strip import Strip

from studio.tui.app import StudioApp

_CELL, _LINE, _PAD, _TOP = 8.4, 18, 10, 34
_FOREGROUND, _BACKGROUND = ColorTriplet(0xDD, 0xE3, 0xEA), ColorTriplet(0x11, 0x16, 0x1C)
_FONT = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"


# Which of left, up, right and down a line of a glyph goes to from the middle of its cell.
_ARMS = {
    **dict.fromkeys("─━", "lr"),
    **dict.fromkeys("│┃", "ud"),
    **dict.fromkeys("┌┏", "rd"),
    **dict.fromkeys("┐┓", "ld"),
    **dict.fromkeys("└┗", "ru"),
    **dict.fromkeys("┘┛", "lu"),
    **dict.fromkeys("├┝┣", "rud"),
    **dict.fromkeys("┤┥┫", "lud"),
    **dict.fromkeys("┬┯┳", "lrd"),
    **dict.fromkeys("┴┷┻", "lru"),
    **dict.fromkeys("┼┿╋", "lrud"),
}
_HEAVY = frozenset("━┃┏┓┗┛┣┫┳┻╋┿")
_DOTS = ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (0, 3), (1, 3))
_RUNS = re.compile(rf"[{''.join(_ARMS)}\u2800-\u28ff]+|[^{''.join(_ARMS)}\u2800-\u28ff]+")


@dataclass(frozen=True)
class Frame:
    """What stands on the screen for a while, and a line that says what one sees."""

    rows: tuple[Strip, ...]
    caption: str
    shown_s: float = 1.0


def frame_of(app: StudioApp, caption: str, shown_s: float = 1.0) -> Frame:
    return Frame(tuple(app.screen._compositor.render_strips()), caption, shown_s)


def draw_svg(frames: Sequence[Frame], title: str) -> str:
    """One SVG of all frames, each as long as it says, again and again."""
    columns = max(row.cell_length for row in frames[0].rows)
    lines = max(len(frame.rows) for frame in frames)
    width, height = columns * _CELL + 2 * _PAD, lines * _LINE + _TOP + _PAD
    looks: dict[str, str] = {}
    rows: dict[str, str] = {}
    drawn = [_draw_frame(frame, looks, rows, width) for frame in frames]
    if len(drawn) > 1:
        drawn = [f'<g class="f f{at}">{one}</g>' for at, one in enumerate(drawn)]
    styles = "".join(f".{name}{{{look}}}" for look, name in looks.items())
    kept = "".join(f'<g id="{name}">{row}</g>' for row, name in rows.items())
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
        f'xml:space="preserve" role="img">\n<title>{escape(title)}</title>\n'
        f"<style>text{{font:14px {_FONT};fill:{_FOREGROUND.hex};white-space:pre}}"
        f".g{{fill:none}}.c{{font:14px sans-serif;text-anchor:middle}}{styles}"
        f"{_turns(frames)}</style>\n"
        f"<defs>{kept}</defs>\n"
        f'<rect width="{width:g}" height="{height:g}" rx="8" fill="{_BACKGROUND.hex}"/>\n'
        + "\n".join(drawn)
        + "\n</svg>\n"
    )


def _turns(frames: Sequence[Frame]) -> str:
    """The first frame is what one sees without animation; each of the others hides it in turn."""
    if len(frames) == 1:
        return ""
    whole = sum(frame.shown_s for frame in frames)
    rules, begins = [".f{visibility:hidden}.f0{visibility:visible}"], 0.0
    for at, frame in enumerate(frames):
        start, end = 100 * begins / whole, 100 * (begins + frame.shown_s) / whole
        before = "" if at == 0 else "0%{visibility:hidden}"
        after = "" if at == len(frames) - 1 else f"{end:.2f}%{{visibility:hidden}}"
        rules.append(
            f"@keyframes k{at}{{{before}{start:.2f}%{{visibility:visible}}{after}"
            f"100%{{visibility:{'hidden' if after else 'visible'}}}}}"
            f".f{at}{{animation:k{at} {whole:g}s step-end infinite}}"
        )
        begins += frame.shown_s
    return "".join(rules) + "@media(prefers-reduced-motion:reduce){.f{animation:none}}"


def _draw_frame(frame: Frame, looks: dict[str, str], rows: dict[str, str], width: float) -> str:
    parts = [f'<text class="c" x="{width / 2:g}" y="22">{escape(frame.caption)}</text>']
    for at, strip in enumerate(frame.rows):
        row = _draw_row(strip, looks)
        if row:
            name = rows.setdefault(row, f"r{len(rows)}")
            parts.append(f'<use href="#{name}" x="{_PAD}" y="{_TOP + at * _LINE}"/>')
    return "".join(parts)


def _draw_row(strip: Strip, looks: dict[str, str]) -> str:
    at, behind, before = 0, "", ""
    for segment in strip:
        if segment.control:
            continue
        cells = cell_len(segment.text)
        colour, ground, more = _colours(segment.style)
        if ground != _BACKGROUND:
            behind += _rectangle(at, cells, _name(f"fill:{ground.hex}", looks))
        look = more + (f"fill:{colour.hex};" if colour != _FOREGROUND else "")
        for run in _RUNS.findall(segment.text):
            if run[0] in _ARMS or "\u2800" <= run[0] <= "\u28ff":
                before += _draw_glyphs(at, run, _name(f"stroke:{colour.hex}", looks))
            elif text := run.strip(" "):
                start = at + len(run) - len(run.lstrip(" "))
                name = f' class="{_name(look, looks)}"' if look else ""
                before += (
                    f'<text{name} x="{start * _CELL:g}" y="13.5" '
                    f'textLength="{cell_len(text) * _CELL:g}">{escape(text, quote=False)}</text>'
                )
            at += cell_len(run)
    return behind + before


def _draw_glyphs(at: int, glyphs: str, name: str) -> str:
    """Lines from the middle of a cell to its edges, and braille dots, as one path."""
    heavy = glyphs[0] in _HEAVY or glyphs[0] > "\u2800"
    path, x, y = "", _CELL / 2, _LINE / 2
    ends = {"l": f"h{-x:g}", "r": f"h{x:g}", "u": f"v{-y:g}", "d": f"v{y:g}"}
    if set(glyphs) <= {"─", "━"}:
        path = f"M{at * _CELL:g} {y:g}h{len(glyphs) * _CELL:g}"
        glyphs = ""
    for cell, glyph in enumerate(glyphs, at):
        if glyph in _ARMS:
            middle = f"M{(cell + 0.5) * _CELL:g} {y:g}"
            path += "".join(middle + ends[arm] for arm in _ARMS[glyph])
        for bit, (column, row) in enumerate(_DOTS):
            if glyph > "\u2800" and ord(glyph) - 0x2800 >> bit & 1:
                path += f"M{cell * _CELL + 0.9 + 4.2 * column:g} {2.25 + 4.5 * row:g}h2.4"
    if not path:
        return ""
    thick = ' stroke-width="2.2"' if heavy else ""
    return f'<path class="g {name}"{thick} d="{path}"/>'


def _rectangle(at: int, cells: int, name: str) -> str:
    return f'<rect class="{name}" x="{at * _CELL:g}" width="{cells * _CELL:g}" height="{_LINE}"/>'


def _name(look: str, looks: dict[str, str]) -> str:
    return looks.setdefault(look, f"s{len(looks)}")


def _colours(style: Style | None) -> tuple[ColorTriplet, ColorTriplet, str]:
    """Colours of the text and behind it, and what else CSS says about the text."""
    if style is None:
        return _FOREGROUND, _BACKGROUND, ""
    colour, ground = _FOREGROUND, _BACKGROUND
    if style.color is not None and not style.color.is_default:
        colour = style.color.get_truecolor(SVG_EXPORT_THEME)
    if style.bgcolor is not None and not style.bgcolor.is_default:
        ground = style.bgcolor.get_truecolor(SVG_EXPORT_THEME, foreground=False)
    if style.reverse:
        colour, ground = ground, colour
    if style.dim:
        colour = blend_rgb(ground, colour, 0.6)
    more = "font-weight:bold;" if style.bold else ""
    more += "font-style:italic;" if style.italic else ""
    marks = [
        name for name, on in (("underline", style.underline), ("line-through", style.strike)) if on
    ]
    return colour, ground, more + (f"text-decoration:{' '.join(marks)};" if marks else "")
