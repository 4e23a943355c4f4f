"""The four themes, which one a terminal gets, and what each state looks like in it.

Owns colours and attributes. No state is told by colour alone: whoever draws one
writes its glyph or word beside it (`studio.tui.drawing.cells.Glyphs`), and in `studio-mono`
attributes are all there is.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from rich.style import Style
from textual.theme import BUILTIN_THEMES, Theme

DARK, LIGHT, ANSI, MONO = NAMES = ("studio-dark", "studio-light", "studio-ansi", "studio-mono")

_ATTRIBUTES = {
    "won": "bold",
    "lost": "",
    "streaming": "",
    "queued": "dim",
    "error": "bold",
    "failed": "bold",
    "skipped": "dim",
    "open": "bold",
    "approved": "",
    "rejected": "",
    "edited": "italic",
    "flag": "bold",
    "added": "underline",
    "removed": "strike",
    "title": "bold",
    "focus": "reverse",
    "cursor": "reverse",
    "key": "bold",
    "bar": "",
    "dim": "dim",
    "text": "",
}
"""Attributes in every theme; what mono has besides is in `_MONO`."""

_COLOURS: Mapping[str, Mapping[str, str]] = {
    DARK: {
        "won": "#7ee2a0", "lost": "#ff9d94", "streaming": "#8cc8ff", "queued": "#a3adb8",
        "error": "#ff9d94", "failed": "#ff9d94", "skipped": "#a3adb8", "open": "#ffd479",
        "approved": "#7ee2a0", "rejected": "#ff9d94", "edited": "#d8b4ff", "flag": "#ffd479",
        "added": "#7ee2a0", "removed": "#ff9d94", "title": "#ffffff", "focus": "",
        "cursor": "", "key": "#8cc8ff", "bar": "#8cc8ff", "dim": "#a3adb8", "text": "#dde3ea",
    },
    LIGHT: {
        "won": "#0b6b33", "lost": "#a4161a", "streaming": "#0a4fa3", "queued": "#59616b",
        "error": "#a4161a", "failed": "#a4161a", "skipped": "#59616b", "open": "#7a4b00",
        "approved": "#0b6b33", "rejected": "#a4161a", "edited": "#6a1b9a", "flag": "#7a4b00",
        "added": "#0b6b33", "removed": "#a4161a", "title": "#000000", "focus": "",
        "cursor": "", "key": "#0a4fa3", "bar": "#0a4fa3", "dim": "#59616b", "text": "#1c2126",
    },
    ANSI: {
        "won": "green", "lost": "red", "streaming": "cyan", "queued": "", "error": "red",
        "failed": "red", "skipped": "", "open": "yellow", "approved": "green",
        "rejected": "red", "edited": "magenta", "flag": "yellow", "added": "green",
        "removed": "red", "title": "", "focus": "", "cursor": "", "key": "cyan", "bar": "cyan",
        "dim": "", "text": "",
    },
    MONO: {},
}  # fmt: skip
BACKGROUNDS: Mapping[str, str] = {DARK: "#11161c", LIGHT: "#fbfbf8"}
_GREYED = {"dim", "queued", "skipped"}
"""Dim by their colour where a theme has one: the attribute on top would make them unreadable."""
_MONO = {"flag": "bold reverse", "error": "bold reverse", "failed": "bold reverse"}


@lru_cache(maxsize=256)
def style(name: str, theme: str = ANSI) -> Style:
    """What is laid over the page's own style; nothing for a name that is none.

    Args:
        name: of a state or a kind of text, such as "won", "flag" or "title".
        theme: one of `NAMES`; any other is drawn as mono, which fits all of them.
    """
    if name not in _ATTRIBUTES:
        return Style.null()
    colours = _COLOURS.get(theme, {})
    colour = colours.get(name, "")
    attributes = _ATTRIBUTES[name]
    if theme in BACKGROUNDS and name in _GREYED:
        attributes = ""
    elif not colours:
        attributes = _MONO.get(name, attributes)
    return Style.parse(f"{attributes} {colour}".strip() or "none")


def _rgb_theme(name: str) -> Theme:
    colours = _COLOURS[name]
    dark = name == DARK
    return Theme(
        name=name,
        dark=dark,
        primary=colours["streaming"],
        secondary=colours["edited"],
        accent=colours["streaming"],
        warning=colours["flag"],
        error=colours["lost"],
        success=colours["won"],
        foreground=colours["text"],
        background=BACKGROUNDS[name],
        surface=BACKGROUNDS[name],
        panel="#1d252e" if dark else "#ecece6",
        boost="#1d252e" if dark else "#ecece6",
        text_alpha=1.0,
    )


def _sixteen_colour_theme(name: str, **colours: str) -> Theme:
    plain = "ansi_default"
    return Theme(
        name=name,
        ansi=True,
        dark=True,
        primary=colours.get("primary", plain),
        secondary=colours.get("secondary", plain),
        accent=colours.get("primary", plain),
        warning=colours.get("warning", plain),
        error=colours.get("error", plain),
        success=colours.get("success", plain),
        foreground=plain,
        background=plain,
        surface=plain,
        panel=plain,
        boost=plain,
        variables={
            **BUILTIN_THEMES["ansi-dark"].variables,  # some that Textual's own CSS asks for
            "ansi-background": plain,
            "ansi-foreground": plain,
            "border-blurred": plain,
            "block-cursor-foreground": plain,
            "block-cursor-background": plain,
            "block-cursor-text-style": "reverse",
            "input-cursor-background": plain,
            "input-cursor-foreground": plain,
            "input-cursor-text-style": "reverse",
            "input-selection-background": plain,
            "input-selection-foreground": plain,
            "screen-selection-background": plain,
            "screen-selection-foreground": plain,
        },
    )


THEMES = (
    _rgb_theme(DARK),
    _rgb_theme(LIGHT),
    _sixteen_colour_theme(
        ANSI,
        primary="ansi_cyan",
        secondary="ansi_magenta",
        warning="ansi_yellow",
        error="ansi_red",
        success="ansi_green",
    ),
    _sixteen_colour_theme(MONO),
)


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
    """Whether lines and signs beyond ASCII could not be shown.

    Args:
        environ: its locale decides, as it does for the terminal.
        encoding: of the stream that is drawn on; None where it has none.
    """
    if (encoding or "").lower().replace("-", "").replace("_", "") not in ("utf8", "utf8mb4"):
        return True
    locale = environ.get("LC_ALL") or environ.get("LC_CTYPE") or environ.get("LANG") or ""
    if not locale:
        return False  # Python chose UTF-8 itself; so do terminals of today
    return "utf8" not in locale.lower().replace("-", "")
