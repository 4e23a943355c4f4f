"""How an app looks on its terminal: theme, colours or none, signs in ASCII."""

import sys
from collections.abc import Mapping
from typing import Any

from rich.segment import Segment
from textual.app import App
from textual.color import Color
from textual.filter import LineFilter, Monochrome, NoColor

from studio.render.lines import LEVELS, LEVELS_ASCII
from studio.tui.drawing import themes
from studio.tui.settings import ScreenSettings


def apply_look(app: App[Any], settings: ScreenSettings, environ: Mapping[str, str]) -> None:
    if themes.choose_theme(environ, settings.theme) != app.theme:
        if not environ.get("NO_COLOR"):  # left over from a theme without colours
            app._filters = [one for one in app._filters if not isinstance(one, NoColor)]
        register_themes(app, environ, settings.theme)
    use_ascii(app, wants_ascii(settings, environ))


def wants_ascii(settings: ScreenSettings, environ: Mapping[str, str]) -> bool:
    """Whether signs are drawn in ASCII: as the settings say, else by the locale."""
    if settings.ascii is not None:
        return settings.ascii
    return themes.needs_ascii(environ, getattr(sys.__stderr__, "encoding", None))


def register_themes(app: App[Any], environ: Mapping[str, str], setting: str | None = None) -> None:
    """Let the app know the themes, and use the one that fits."""
    for theme in themes.THEMES:
        app.register_theme(theme)
    name = themes.choose_theme(environ, setting)
    if app.is_running:
        app.theme = name
    else:
        _begin_with(app, name)
    if environ.get("NO_COLOR") or name == themes.MONO:
        # Textual chose by the theme it began with, and would make grey what is red.
        app._filters = [f for f in app._filters if not isinstance(f, Monochrome | NoColor)]
        app._filters.append(NoColor())


def _begin_with(app: App[Any], name: str) -> None:
    """Set the theme of an app that draws nothing yet.

    As Textual does it when a theme is changed, but every widget is styled once, not three
    times: that was a third of what opening the screen costs.
    """
    app.set_reactive(type(app).theme, name)
    theme = app.current_theme
    app.update_classes(
        {f"-theme-{name}": True, "-dark-mode": theme.dark, "-light-mode": not theme.dark},
        update=False,
    )
    app._refresh_truecolor_filter(app.ansi_theme)
    app.stylesheet.set_variables(app.get_css_variables())


_ASCII = str.maketrans(
    {
        **dict.fromkeys("─━═┄┈╌▔▁╴╶", "-"),
        **dict.fromkeys("│┃║┆╎▏▕▎▍▌▐", "|"),
        "┊": ";",
        **dict.fromkeys("┌┐└┘├┤┬┴┼┏┓┗┛┣┫┳┻╋╔╗╚╝╭╮╰╯╸╺╻╹", "+"),
        **dict.fromkeys("█▉▊▋▇▆▅▄▀■●", "#"),
        **dict.fromkeys("▃▂░▒▓○□", "."),
        **dict(zip(f"┿{LEVELS}", f"={LEVELS_ASCII}", strict=True)),
        **dict(zip("…·•–—‘’“”×→←↑↓▶◀▲▼▸▾≤≥\u00a0", "..*--''\"\"x><^v><^v>v<> ", strict=True)),
        # Signs of decisions are letters nowhere: a letter beside an operation reads like a key.
        **dict(zip("◦✓✗✎◷⚲", ".@#&;%", strict=True)),
    }
)
_UPPER_DOTS = 0x1B
"""The bits of a braille character whose dots are in its upper half."""
for _dots in range(256):
    _half = bool(_dots & _UPPER_DOTS) + 2 * bool(_dots & ~_UPPER_DOTS)
    _ASCII[0x2800 + _dots] = " '.:"[_half]


class AsciiFilter(LineFilter):
    """The screen's own signs in ASCII, one cell for one cell; text of other scripts stays."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [
            segment
            if segment.text.isascii()
            else Segment(segment.text.translate(_ASCII), segment.style, segment.control)
            for segment in segments
        ]


def use_ascii(app: App[Any], plain: bool) -> None:
    app.set_class(plain, "-ascii")
    filters = [one for one in app._filters if not isinstance(one, AsciiFilter)]
    if plain != (len(filters) < len(app._filters)):
        app._filters = [*filters, AsciiFilter()] if plain else filters
        app.refresh(layout=True)
