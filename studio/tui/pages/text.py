"""Texts of models as every page draws, measures and filters them."""

from __future__ import annotations

from studio.secrets.sanitize import sanitize
from studio.tui.drawing.cells import normalize_width
from studio.tui.drawing.lines import Line


def display_text(text: str) -> str:
    """Text of a model as it may be drawn and measured."""
    return normalize_width(sanitize(text))


def holds_words(text: str, words: str) -> bool:
    """Whether a text holds every word of a filter, whatever its case."""
    return all(word in text.casefold() for word in words.casefold().split())


def legend_line(*entries: tuple[str, str, str]) -> Line:
    """Signs with their styles, and the word for each."""
    return tuple(
        span for sign, style, word in entries for span in ((sign, style), (f" {word}  ", "dim"))
    )
