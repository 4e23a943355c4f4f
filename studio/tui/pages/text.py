"""Texts of models as every page draws, measures, filters and compares them."""

from __future__ import annotations

from collections.abc import Iterable

from engines.core.state.use_counts import UseCounts
from engines.core.text.similarity import similarity
from studio.secrets.sanitize import sanitize
from studio.tui.drawing.cells import normalize_width
from studio.tui.drawing.lines import Line, Span

Near = tuple[str, float, str]
"""Id, similarity in [0, 1] and text of an experience."""
_NEAR_MOST, _NEAR_FROM = 5, 0.3
"""How many are told, and how like they are: below, two texts merely share a language."""


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


def find_similar(text: str, others: Iterable[tuple[str, str]]) -> tuple[Near, ...]:
    """Those of the others, by id, that are most like a text, the likest first.

    Takes 20 microseconds for each: not for a key's own handler.
    """
    scores = ((name, similarity(text, said), said) for name, said in others)
    near = [each for each in scores if each[1] >= _NEAR_FROM]
    return tuple(sorted(near, key=lambda each: -each[1])[:_NEAR_MOST])
