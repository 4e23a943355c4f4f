"""The four themes, which one a terminal gets, and what each state looks like in it.

No state is told by colour alone: whoever draws one writes its glyph or word beside it
(`studio.tui.drawing.cells.Glyphs`), and in `studio-mono` attributes are all there is.
"""

from collections.abc import Mapping
from functools import lru_cache

from rich.style import Style
from textual.theme import BUILTIN_THEMES, Theme

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

    A theme that is none of the four is drawn as mono, which fits all of them.
    """
    if name not in _STYLES:
        return Style.null()
    colours = _COLOURS.get(theme, {})
    role, attributes = _STYLES[name]
    colour = colours.get(role, "")
    if role == "grey" and "grey" in colours:
        attributes = ""  # on top of the colour it would make the text unreadable
    elif not colours:
        attributes = _MONO.get(name, attributes)
    return Style.parse(f"{attributes} {colour}".strip() or "none")


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
