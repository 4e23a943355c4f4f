"""The four themes and all others, which one a terminal gets, and what each state looks like in it.

No state is told by colour alone: whoever draws one writes its glyph or word beside it
(`studio.tui.drawing.cells.Glyphs`), and in `studio-mono` attributes are all there is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from rich.style import Style
from textual.color import Color, ColorParseError
from textual.theme import BUILTIN_THEMES, Theme

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


DARK, LIGHT, ANSI, MONO = NAMES = ("studio-dark", "studio-light", "studio-ansi", "studio-mono")

_STYLES = {
    "won": ("good", "bold"),
    "lost": ("bad", ""),
    "streaming": ("active", ""),
    "queued": ("grey", "dim"),
    "error": ("bad", "bold"),
    "failed": ("bad", "bold"),
    "skipped": ("grey", "dim"),
    "open": ("warning", "bold"),
    "approved": ("good", ""),
    "rejected": ("bad", ""),
    "edited": ("changed", "italic"),
    "flag": ("warning", "bold"),
    "added": ("good", "underline"),
    "removed": ("bad", "strike"),
    "title": ("title", "bold"),
    "focus": ("", "reverse"),
    "cursor": ("", "reverse"),
    "key": ("active", "bold"),
    "bar": ("active", ""),
    "dim": ("grey", "dim"),
    "text": ("text", ""),
}
"""The colour of each style, by its name in `_COLOURS`, and its attributes in every theme."""

_COLOURS: dict[str, Mapping[str, str]] = {
    DARK: {
        "good": "#7ee2a0", "bad": "#ff9d94", "active": "#8cc8ff", "grey": "#a3adb8",
        "warning": "#ffd479", "changed": "#d8b4ff", "title": "#ffffff", "text": "#dde3ea",
    },
    LIGHT: {
        "good": "#0b6b33", "bad": "#a4161a", "active": "#0a4fa3", "grey": "#59616b",
        "warning": "#7a4b00", "changed": "#6a1b9a", "title": "#000000", "text": "#1c2126",
    },
    ANSI: {
        "good": "green", "bad": "red", "active": "cyan", "warning": "yellow", "changed": "magenta",
    },
    MONO: {},
}  # fmt: skip
BACKGROUNDS: Mapping[str, str] = {DARK: "#11161c", LIGHT: "#fbfbf8"}
LOUD = frozenset({"flag", "error", "failed"})
"""What calls a person; without colours it is reversed."""
_MONO = dict.fromkeys(LOUD, "bold reverse")


@lru_cache(maxsize=256)
def style(name: str, theme: str = ANSI) -> Style:
    """What is laid over the page's own style; nothing for a name that is none.

    A theme that nobody knows is drawn as mono, which fits all of them.
    """
    if name not in _STYLES:
        return Style.null()
    if theme not in _COLOURS and theme in BUILTIN_THEMES:
        learn_theme(BUILTIN_THEMES[theme])
    colours = _COLOURS.get(theme, {})
    role, attributes = _STYLES[name]
    colour = colours.get(role, "")
    if role == "grey" and "grey" in colours:
        attributes = ""  # on top of the colour it would make the text unreadable
    elif not colours:
        attributes = _MONO.get(name, attributes)
    return Style.parse(f"{attributes} {colour}".strip() or "none")


def learn_theme(theme: Theme) -> None:
    """States are drawn in its colours from now on."""
    if theme.ansi:
        _COLOURS[theme.name] = _COLOURS[ANSI]
    else:
        _COLOURS[theme.name] = state_colours(theme, _COLOURS[DARK if theme.dark else LIGHT])


_PLAIN = "ansi_default"
_PLAIN_VARIABLES = (
    "border-blurred",
    *(
        f"{part}-{ground}"
        for part in ("ansi", "block-cursor", "input-cursor", "input-selection", "screen-selection")
        for ground in ("foreground", "background")
    ),
)


def _make_theme(name: str) -> Theme:
    has_rgb = name in BACKGROUNDS
    colours = {role: f"{'' if has_rgb else 'ansi_'}{c}" for role, c in _COLOURS[name].items()}
    background = BACKGROUNDS.get(name, _PLAIN)
    panel = {DARK: "#1d252e", LIGHT: "#ecece6"}.get(name, _PLAIN)
    plain_variables = {
        **BUILTIN_THEMES["ansi-dark"].variables,  # some that Textual's own CSS asks for
        **dict.fromkeys(_PLAIN_VARIABLES, _PLAIN),
        "block-cursor-text-style": "reverse",
        "input-cursor-text-style": "reverse",
    }
    return Theme(
        name=name,
        ansi=not has_rgb,
        dark=name != LIGHT,
        primary=colours.get("active", _PLAIN),
        secondary=colours.get("changed", _PLAIN),
        accent=colours.get("active", _PLAIN),
        warning=colours.get("warning", _PLAIN),
        error=colours.get("bad", _PLAIN),
        success=colours.get("good", _PLAIN),
        foreground=colours.get("text", _PLAIN),
        background=background,
        surface=background,
        panel=panel,
        boost=panel,
        text_alpha=1.0 if has_rgb else 0.95,
        variables={} if has_rgb else plain_variables,
    )


THEMES = tuple(_make_theme(name) for name in NAMES)
SHIPPED: Mapping[str, Theme] = {theme.name: theme for theme in (*THEMES, *BUILTIN_THEMES.values())}
"""The studio's own first, then Textual's."""


def own_themes(given: Mapping[str, Mapping[str, str]]) -> list[Theme]:
    """Themes of a person: each differs from the one it is `like` in some colours."""
    made = []
    for name, fields in given.items():
        like = SHIPPED[fields.get("like", DARK)]
        colours = {field: colour for field, colour in fields.items() if field != "like"}
        made.append(make_own_theme(name, like, colours))
    return made


def choose_theme(environ: Mapping[str, str], setting: str | None = None) -> str:
    """Which theme fits a terminal; a person's setting wins.

    `NO_COLOR` counts where it is set and not empty (no-color.org). Over SSH without tmux the
    terminal's own colours save a third of the bytes. Whether the background is light is known
    from COLORFGBG alone.
    """
    if setting:
        return setting
    term = environ.get("TERM", "")
    if environ.get("NO_COLOR") or term == "dumb" or term.startswith("vt"):
        return MONO
    if environ.get("SSH_CONNECTION") and not environ.get("TMUX"):
        return ANSI
    background = environ.get("COLORFGBG", "").rpartition(";")[2]
    light = background.isdecimal() and int(background) in (7, *range(9, 16))
    return LIGHT if light else DARK


def needs_ascii(environ: Mapping[str, str], encoding: str | None) -> bool:
    """Whether signs beyond ASCII could not be shown, by locale and the stream's encoding."""
    if (encoding or "").lower().replace("-", "").replace("_", "") not in ("utf8", "utf8mb4"):
        return True
    locale = environ.get("LC_ALL") or environ.get("LC_CTYPE") or environ.get("LANG") or ""
    if not locale:
        return False  # Python chose UTF-8 itself; so do terminals of today
    return "utf8" not in locale.lower().replace("-", "")
