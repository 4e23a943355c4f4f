"""Text measured and cut in terminal cells, as every terminal draws it.

Terminals disagree about joined emoji, variation selectors, skin tones and flags, so text goes
through `normalize_width` first: then a row is as wide as the sum of its characters everywhere.
"""

import re

from rich.cells import cell_len, get_character_cell_size

from engines.core.frozen import frozen

ROW_CHARS = 1000
"""Characters of one row at most: marks that take no room could otherwise pile up without end."""
TAB = "    "
BASE = "◌"
"""Carries a mark that begins a row, which would join what stands left of it otherwise."""

_UNSETTLED = re.compile(
    "[\t\u200d\ufe00-\ufe0f\U0001f1e6-\U0001f1ff\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]"
)
_WIDE = "\u1100-\u115f\u2e80-\u303e\u3041-\ua4cf\uac00-\ud7a3\uf900-\ufaff\uff00-\uff60"
_TOKEN = re.compile(
    rf" +|[{_WIDE}\U00020000-\U0003fffd][\u0300-\u036f]*|[^ {_WIDE}\U00020000-\U0003fffd]+"
)
_WORD = re.compile(" +|[^ ]+")


def _normalize_char(match: re.Match[str]) -> str:
    char = match[0]
    if char == "\t":
        return TAB
    if "\U0001f1e6" <= char <= "\U0001f1ff":
        return chr(ord(char) - 0x1F1E6 + ord("A"))  # a flag is two letters: 1, 2 or 4 cells
    return ""


def normalize_width(text: str) -> str:
    """The same with only characters whose width terminals agree on; twice is the same as once."""
    if text.isascii():
        return text.replace("\t", TAB) if "\t" in text else text
    return _UNSETTLED.sub(_normalize_char, text)


def cell_width(text: str) -> int:
    text = normalize_width(text)
    return len(text) if text.isascii() and text.isprintable() else cell_len(text)


def flatten(text: str) -> str:
    """Normalized text on one line, which no mark at its beginning joins to what stands before."""
    text = normalize_width(text.replace("\n", " ") if "\n" in text else text)
    if text and not text.isascii() and get_character_cell_size(text[0]) == 0:
        return BASE + text
    return text


def crop(text: str, width: int) -> str:
    """As much of one line as fits; a wide character is never halved."""
    text = flatten(text)
    if text.isascii():
        return text[: max(0, width)]
    return text[: _chars_that_fit(text, width)]


def pad(text: str, width: int) -> str:
    """Exactly that many cells: cut, or filled with blanks."""
    text = crop(text, width)
    return text + " " * (width - (len(text) if text.isascii() else cell_len(text)))


def fit(text: str, width: int, ellipsis: str = "..") -> str:
    """One line of at most that many cells, with an ellipsis where something was cut."""
    text = flatten(text)
    if cell_len(text) <= width:
        return text
    if len(ellipsis) >= width:
        return crop(text, width)
    return crop(text, width - cell_len(ellipsis)) + ellipsis


def _chars_that_fit(text: str, room: int) -> int:
    """How many characters of it fit into so many cells, those of no width included."""
    used = 0
    for at, char in enumerate(text):
        cells = get_character_cell_size(char)
        if used + cells > room:
            return at
        used += cells
    return len(text)


def wrap(text: str, width: int) -> list[str]:
    """Rows of at most `width` cells, broken between words and at new lines.

    A word that is longer than a row is cut, blanks at the end of a row are dropped, and Chinese
    and Japanese break anywhere. A character wider than the row stands alone in one.
    """
    return [piece.rstrip(" \n") for piece in wrap_pieces(normalize_width(text), width)]


def wrap_pieces(text: str, width: int) -> list[str]:
    """The rows of normalized text with the blanks and new lines that end them: joined, they are it.

    Rows after a row depend on nothing before them, so that growing text is wrapped again from
    its last row on.
    """
    out: list[str] = []
    *paragraphs, last = text.split("\n")
    for paragraph in paragraphs:
        _wrap_paragraph(paragraph, max(1, width), out)
        out[-1] += "\n"
    _wrap_paragraph(last, max(1, width), out)
    return out


def _wrap_paragraph(paragraph: str, width: int, out: list[str]) -> None:
    size = len(paragraph)
    ascii_only = paragraph.isascii()
    if size <= width and ascii_only:
        out.append(paragraph)
        return
    token = (_WORD if ascii_only else _TOKEN).match
    start = at = used = 0  # of the row: its first character, the next one, cells so far
    while at < size:
        found = token(paragraph, at, at + ROW_CHARS + 1)  # a longer one fits into no row anyway
        end = found.end() if found else size
        cells = end - at if ascii_only else cell_len(paragraph[at:end])
        blank = paragraph[at] == " "
        if (blank or used + cells <= width) and end - start <= ROW_CHARS:
            used += cells
            at = end
            continue
        if at == start:  # longer than a row; what is left of it is looked at like any other text
            room = ROW_CHARS if blank else width
            fits = room if ascii_only else _chars_that_fit(paragraph[start:end], room)
            at += min(max(1, fits), ROW_CHARS, end - start)
        out.append(paragraph[start:at])
        start, used = at, 0
    out.append(paragraph[start:])


@frozen
class Glyphs:
    """Signs for states and the lines of boxes, each one cell wide."""

    won: str = "+"
    lost: str = "-"
    streaming: str = ">"
    queued: str = "."
    error: str = "!"
    skipped: str = "="
    open: str = "?"
    undecided: str = "◦"
    approved: str = "✓"
    rejected: str = "✗"
    edited: str = "✎"
    later: str = "◷"
    pinned: str = "⚲"
    note: str = '"'
    flag: str = "!"
    bar_full: str = "#"
    bar_empty: str = "."
    cursor: str = "|"
    folded: str = "▸"
    unfolded: str = "▾"
    ellipsis: str = ".."
    h: str = "─"
    v: str = "│"
    tl: str = "┌"
    tr: str = "┐"
    bl: str = "└"
    br: str = "┘"

    def bar(self, done: int, total: int, width: int) -> str:
        """`[####....]`, all of it `width` cells; full only when all is done."""
        room = max(1, width - 2)
        full = min(room, room * max(0, done) // total) if total > 0 else 0
        return f"[{self.bar_full * full}{self.bar_empty * (room - full)}]"

    def top_border(self, title: str, width: int) -> str:
        """A box's upper border with its title, cut to what fits."""
        head = f"{self.h} {fit(title, width - 5, self.ellipsis)} " if title and width > 5 else ""
        return self._border(self.tl, head, self.tr, width)

    def bottom_border(self, width: int) -> str:
        return self._border(self.bl, "", self.br, width)

    def _border(self, first: str, head: str, last: str, width: int) -> str:
        if width < 2:
            return crop(first, width)
        return first + head + self.h * (width - 2 - cell_len(head)) + last


GLYPHS = Glyphs()
"""Where a terminal cannot show them, `AsciiFilter` draws each of them as a sign of ASCII."""
