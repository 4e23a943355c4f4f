"""Colours of states in themes that are not the studio's: the theme's, where they can be read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from textual.color import Color, ColorParseError
from textual.theme import Theme

LEAST_CONTRAST = 4.5
"""Of text and what is behind it (WCAG 2.2, success criterion 1.4.3)."""
FIELDS = ("primary", "secondary", "accent", "warning", "error", "success", "foreground",
          "background", "surface", "panel", "boost")  # fmt: skip
"""What a theme of one's own may set, as Textual calls them."""
_FIELD_OF = {
    "good": "success", "bad": "error", "active": "primary", "warning": "warning",
    "changed": "secondary", "title": "foreground", "text": "foreground",
}  # fmt: skip


def contrast(one: Color, other: Color) -> float:
    """From 1, the same, to 21, black on white."""

    def luminance(colour: Color) -> float:
        channels = [c / 255 for c in (colour.r, colour.g, colour.b)]
        r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def state_colours(theme: Theme, studios: Mapping[str, str]) -> dict[str, str]:
    """The colour of each role; `studios` are those of the studio's theme that is as dark."""
    variables = theme.to_color_system().generate()
    paper, text = _parse(variables["background"]), _parse(variables["foreground"])
    assert paper is not None
    plain = max(Color(0, 0, 0), Color(255, 255, 255), key=lambda ink: contrast(ink, paper))
    if text is None or contrast(text, paper) < LEAST_CONTRAST:
        text = plain
    found = {}
    for role, standard in studios.items():
        own = text.blend(paper, 0.3) if role == "grey" else _parse(variables[_FIELD_OF[role]])
        choices = [one for one in (own, Color.parse(standard), text, plain) if one is not None]
        legible = (one for one in choices if contrast(one, paper) >= LEAST_CONTRAST)
        found[role] = next(legible, plain).hex6
    return found


def make_own_theme(name: str, like: Theme, given: Mapping[str, Any]) -> Theme:
    """A theme that differs from another one in what is given."""
    if "background" in given:  # what lies on it follows from it
        given = {"surface": given["background"], "panel": None, "boost": None, **given}
    return replace(like, name=name, **given)


def _parse(text: str) -> Color | None:
    try:
        colour = Color.parse(text)
    except ColorParseError:
        return None
    return colour if colour.a == 1 and colour.ansi is None else None
