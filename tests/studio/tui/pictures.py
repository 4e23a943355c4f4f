"""Pictures of screens as text files, which can be read in a diff.

Owns how a screen becomes text: a block of what stands in each cell, and below it a block with
a letter for the style of each cell. Nothing that differs between machines may stand in it.
"""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

if TYPE_CHECKING:
    from studio.tui.app import StudioApp

FOLDER = Path(__file__).with_name("snapshots")
_updating = False

_PID = re.compile(r"\bpid \d+")
_TIME = re.compile(r"\b\d\d:\d\d:\d\d\b")
_CLOCK = re.compile(r"\b\d\d:\d\d\b")
_DATE = re.compile(r"\b\d{4}-\d\d-\d\d\b")
_TOOK = re.compile(r"\b\d+\.\d\d s\b")
_RATE = re.compile(r"\b\d+/s\b")  # by how texts were cut as they came
_VERSION = re.compile(r"\bv\d+\.\d+\.\d+\b")


def update(on: bool) -> None:
    """Write pictures instead of comparing them; `--update-pictures` of pytest."""
    global _updating
    _updating = on


def check_picture(app: StudioApp, name: str) -> None:
    """Compare what is on the screen with `snapshots/NAME.txt`.

    Args:
        app: settled and painted; made by `tests.studio.tui.stage.app_on`, whose clock stands still.
        name: page, state and size, such as "help-120x36".

    Raises:
        AssertionError: it differs, or there is no picture of that name yet.
    """
    drawn = drawing(app)
    path = FOLDER / f"{name}.txt"
    if _updating:
        FOLDER.mkdir(exist_ok=True)
        path.write_text(drawn, encoding="utf-8")
        return
    assert path.exists(), f"no picture {path.name} yet: pytest --update-pictures writes it"
    kept = path.read_text(encoding="utf-8")
    if drawn != kept:
        told = difflib.unified_diff(
            kept.splitlines(), drawn.splitlines(), "kept", "drawn", lineterm="", n=1
        )
        raise AssertionError(f"{path.name} differs:\n" + "\n".join(told))


def drawing(app: StudioApp) -> str:
    """The screen as text: rows between bars, then their styles, then what the letters mean."""
    strips = [_settled(strip, app) for strip in app.screen._compositor.render_strips()]
    letters: dict[str, str] = {}
    rows, styles = [], []
    for strip in strips:
        text, marks = "", ""
        for segment in strip:
            if segment.control:
                continue
            text += segment.text
            marks += _letter(segment.style, letters) * cell_len(segment.text)
        assert cell_len(text) == app.size.width, f"a row is not as wide as the screen: {text!r}"
        rows.append(f"|{text}|")
        styles.append(f"|{marks}|".replace(" |", "|") if not marks.strip() else f"|{marks}|")
    meaning = [f"{letter} {name}" for name, letter in letters.items()]
    return "\n".join([*rows, "", *styles, "", *meaning, ""])


def _letter(style: Style | None, letters: dict[str, str]) -> str:
    """A blank for plain text, else the next letter for each look that comes up."""
    look = _look(style)
    if not look:
        return " "
    names = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
    return letters.setdefault(look, names[len(letters) % len(names)])


def _look(style: Style | None) -> str:
    if style is None:
        return ""
    parts = [
        name
        for name in ("bold", "dim", "italic", "underline", "reverse", "strike", "blink")
        if getattr(style, name)
    ]
    # The colours of a plain cell are the theme's; only others are told.
    if style.color is not None and style.color.name not in ("default", _FOREGROUND):
        parts.append(style.color.name)
    if style.bgcolor is not None and style.bgcolor.name not in ("default", _BACKGROUND):
        parts.append(f"on {style.bgcolor.name}")
    return " ".join(parts)


_FOREGROUND, _BACKGROUND = "#dde3ea", "#11161c"
"""Of studio-dark, in which pictures are taken."""


def _settled(strip: Strip, app: StudioApp) -> Strip:
    """Without what another run or machine would have differently, as wide as before."""
    return Strip([_hidden(segment, app) for segment in strip])


def _hidden(segment: Segment, app: StudioApp) -> Segment:
    text = segment.text
    for pattern in (_PID, _TIME, _CLOCK, _DATE, _TOOK, _RATE, _VERSION):
        text = pattern.sub(lambda found: re.sub(r"\d", "0", found[0]), text)
    return Segment(text, segment.style, segment.control)
