"""What pure views hand to widgets: lines of styled spans, measured in terminal cells.

A span is a sanitized text and the name of a style (`studio.tui.drawing.themes`), "" for plain.
"""

from collections.abc import Callable, Iterable, Sequence

from engines.core.frozen import frozen
from engines.core.library_notes import UseCounts
from engines.core.text.similarity import Change
from studio.secrets.sanitize import sanitize
from studio.tui.drawing.cells import cell_width as cells
from studio.tui.drawing.cells import crop, normalize_width, wrap_pieces

Span = tuple[str, str]
Line = tuple[Span, ...]

Lines = Sequence[Line] | Callable[[int], Sequence[Line]]
"""Lines that are wrapped where they are shown, or what makes them for a width."""

BLANK: Line = ()
CUT = ".."
"""What stands where something was cut: of one width everywhere, and in every locale."""


@frozen
class Row:
    """One entry of a list; `key` is what it stands for, "" where it cannot be chosen."""

    key: str
    line: Line
    more: tuple[Line, ...] = ()  # further lines of it


def note_rows(lines: Iterable[Line]) -> list[Row]:
    """Rows that say something and cannot be chosen."""
    return [Row("", each) for each in lines]


def line(*parts: str | Span) -> Line:
    return tuple((part, "") if isinstance(part, str) else part for part in parts if part)


def plain_text(of: Line) -> str:
    return "".join(text for text, _ in of)


def width_of(of: Line) -> int:
    """In cells."""
    return sum(cells(text) for text, _ in of)


def crop_line(of: Line, width: int) -> Line:
    """As much as fits, with an ellipsis where something was cut."""
    if width_of(of) <= width:
        return of
    if width <= len(CUT):
        return ((CUT[: max(0, width)], ""),)
    out: list[Span] = []
    left = width - len(CUT)
    style = ""
    for text, style in of:
        taken = crop(text, left)
        if taken:
            out.append((taken, style))
        left -= cells(taken)
        if taken != text:
            break
    return (*out, (CUT, style))


def spread(left: Line, right: Line, width: int) -> Line:
    """Two ends of one line; the left one gives way."""
    kept = crop_line(left, max(0, width - width_of(right) - 1))
    gap = width - width_of(kept) - width_of(right)
    return (*kept, (" " * max(0, gap), ""), *right)


def paragraph(spans: Iterable[Span], width: int, indent: str = "") -> list[Line]:
    """Spans as running text, wrapped by words to a width; further lines are indented."""
    spans = tuple((normalize_width(text), style) for text, style in spans)
    joined = "".join(text for text, _ in spans)
    room = max(1, width - cells(indent))
    out: list[Line] = []
    at = 0
    for number, piece in enumerate(wrap_pieces(joined, room)):
        cut = _slice_spans(spans, at, at + len(piece.rstrip(" \n")))
        at += len(piece)
        out.append(((indent, ""), *cut) if number and indent else cut)
    return out or [()]


def _slice_spans(spans: Sequence[Span], start: int, end: int) -> Line:
    out: list[Span] = []
    at = 0
    for text, style in spans:
        low, high = max(start - at, 0), min(end - at, len(text))
        if low < high:
            out.append((text[low:high], style))
        at += len(text)
        if at >= end:
            break
    return tuple(out)


def labelled_lines(
    label: str, text: str | Iterable[Span], width: int, *, label_width: int = 10
) -> list[Line]:
    """A dim label and its text beside it, wrapped under itself."""
    spans = [(text, "")] if isinstance(text, str) else text
    first, *further = paragraph(spans, max(1, width - label_width))
    indent: Span = (" " * label_width, "")
    return [((label.ljust(label_width), "dim"), *first), *((indent, *row) for row in further)]


def display_text(text: str) -> str:
    """Text of a model as it may be drawn and measured."""
    return normalize_width(sanitize(text))


def holds_words(text: str, words: str) -> bool:
    """Whether a text holds every word of a filter, whatever its case."""
    return all(word in text.casefold() for word in words.casefold().split())


def count_spans(counts: UseCounts) -> tuple[Span, ...]:
    """`+ used 12  = ignored 3  - misled 1  cited 9`."""
    spans: list[Span] = [
        (f"+ used {counts.used}", "won"),
        (f"  = ignored {counts.ignored}", "dim"),
        (f"  - misled {counts.misled}", "lost" if counts.misled else "dim"),
    ]
    return (*spans, (f"  cited {counts.cited}", "dim")) if counts.cited else tuple(spans)


def legend_line(*entries: tuple[str, str, str]) -> Line:
    """Signs with their styles, and the word for each."""
    return tuple(
        span for sign, style, word in entries for span in ((sign, style), (f" {word}  ", "dim"))
    )


def change_spans(words: Iterable[Change], *, keep: str = "cut new") -> tuple[Span, ...]:
    """A word diff as spans; its marks are readable without any colour.

    `keep` is "cut new" for both, or one of them for a side's own column. Blanks stand outside of
    the marks: a line may be broken there.
    """
    out: list[Span] = []
    for kind, text in words:
        core = text.strip()
        if kind == "same" or (kind == "new" and "new" in keep and not core):
            out.append((text, ""))
        elif kind in keep and core:
            left, right, style = ("[-", "-]", "removed") if kind == "cut" else ("{+", "+}", "added")
            start, _, end = text.partition(core)
            out += [(start, ""), (left + core + right, style), (end, "")]
    return tuple(out)
