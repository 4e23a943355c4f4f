"""Texts of models as every page draws, measures and filters them."""

from collections.abc import Iterable

from engines.core.library_notes import UseCounts
from engines.core.text.similarity import Change
from studio.secrets.sanitize import sanitize
from studio.tui.drawing.cells import normalize_width
from studio.tui.drawing.lines import Line, Span


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
