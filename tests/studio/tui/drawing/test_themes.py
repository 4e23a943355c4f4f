"""Which theme a terminal gets, and whether its text can be read."""

from __future__ import annotations

import pytest
from rich.style import Style
from textual.app import App
from textual.color import Color
from textual.filter import Monochrome, NoColor

from studio.tui.drawing.cells import GLYPHS
from studio.tui.drawing.themes import (
    ANSI,
    BACKGROUNDS,
    DARK,
    LIGHT,
    MONO,
    NAMES,
    choose_theme,
    needs_ascii,
    style,
)
from studio.tui.terminal.look import register_themes
from studio.tui.widgets.line_view import strip_of

STYLES = ("won", "lost", "streaming", "queued", "failed", "error", "skipped", "open", "approved",
          "rejected", "edited", "flag", "added", "removed", "title", "key", "bar", "dim",
          "text")  # fmt: skip


def contrast(one: Color, other: Color) -> float:
    """From 1, the same, to 21, black on white (WCAG 2.2)."""

    def luminance(colour: Color) -> float:
        channels = [c / 255 for c in (colour.r, colour.g, colour.b)]
        r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [DARK, LIGHT])
@pytest.mark.parametrize("name", STYLES)
def test_every_style_has_contrast_enough(theme: str, name: str) -> None:
    colour = style(name, theme).color
    assert colour is not None
    assert not style(name, theme).dim
    ink, paper = Color.from_rich_color(colour), Color.parse(BACKGROUNDS[theme])
    assert contrast(ink, paper) >= 4.5


@pytest.mark.parametrize("name", [*STYLES, "focus", "cursor"])
def test_mono_has_no_colour_and_ansi_only_the_terminals_own(name: str) -> None:
    assert style(name, MONO).color is None and style(name, MONO).bgcolor is None
    colour = style(name, ANSI).color
    assert colour is None or (colour.number is not None and colour.number < 16)


def test_focus_is_seen_without_colour_in_every_theme() -> None:
    assert all(style("focus", theme).reverse for theme in NAMES)
    assert all(hasattr(GLYPHS, name) for name in ("won", "lost", "streaming", "flag"))


@pytest.mark.parametrize(
    ("environ", "theme"),
    [
        ({}, DARK),
        ({"COLORFGBG": "0;15"}, LIGHT),
        ({"COLORFGBG": "15;0"}, DARK),
        ({"COLORFGBG": "default;default"}, DARK),
        ({"SSH_CONNECTION": "1 2 3 4"}, ANSI),
        ({"SSH_CONNECTION": "1 2 3 4", "TMUX": "/tmp/tmux"}, DARK),
        ({"NO_COLOR": "1", "SSH_CONNECTION": "1 2 3 4"}, MONO),
        ({"NO_COLOR": ""}, DARK),
        ({"TERM": "dumb"}, MONO),
        ({"TERM": "vt100"}, MONO),
    ],
)
def test_a_terminal_gets_the_theme_that_fits(environ: dict[str, str], theme: str) -> None:
    assert choose_theme(environ, None) == theme
    assert choose_theme(environ, LIGHT) == LIGHT


@pytest.mark.parametrize(
    ("environ", "encoding", "only"),
    [
        ({"LANG": "en_US.UTF-8"}, "utf-8", False),
        ({"LANG": "C.utf8"}, "UTF-8", False),
        ({}, "utf-8", False),
        ({"LC_ALL": "C", "LANG": "en_US.UTF-8"}, "utf-8", True),
        ({"LANG": "de_DE.ISO-8859-1"}, "iso8859-1", True),
        ({"LANG": "en_US.UTF-8"}, "ascii", True),
        ({"LANG": "en_US.UTF-8"}, None, True),
    ],
)
def test_a_locale_without_unicode_gets_ascii(
    environ: dict[str, str], encoding: str | None, only: bool
) -> None:
    assert needs_ascii(environ, encoding) is only


@pytest.mark.parametrize("name", NAMES)
async def test_textuals_own_styles_can_be_drawn_in_every_theme(name: str) -> None:
    app: App[int] = App()
    register_themes(app, {}, name)
    async with app.run_test():
        assert app.theme == name
        assert app.native_ansi_color is (name in (ANSI, MONO))


def test_without_colour_no_filter_turns_colours_into_greys() -> None:
    app: App[int] = App()
    register_themes(app, {"NO_COLOR": "1"}, None)
    kinds = [type(line_filter) for line_filter in app._filters]
    assert NoColor in kinds and Monochrome not in kinds


def test_without_colour_a_row_without_a_flag_is_plain() -> None:
    drawn = strip_of((("  ", "flag"), ("text", "")), 8, Style(), MONO)
    assert not any(segment.style and segment.style.reverse for segment in drawn)
    flagged = strip_of((("! ", "flag"), ("text", "")), 8, Style(), MONO)
    assert [segment.text for segment in flagged if segment.style and segment.style.reverse] == [
        "! "
    ]
