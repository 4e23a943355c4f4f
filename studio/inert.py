"""Text from models, tools and data, made harmless for a terminal or a file of lines.

Owns what counts as harmless: no control characters, no escape sequences, no characters
that reorder or hide others. Markup is not its business: print such text as plain.
"""

from __future__ import annotations

import unicodedata

_KEPT = "\n\t"
_HIDDEN = frozenset("\u061c\u200b\u200c\u200e\u200f\u2060\ufeff")
"""Zero-width characters and marks; the joiner that composes emoji stays."""


def inert(text: str) -> str:
    """Show by code point what steers, reorders, hides or breaks lines unseen.

    These are control, bidirectional and zero-width characters, lone surrogates, and the
    separators of lines and paragraphs.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_shown(char) for char in text)


def one_line(text: str, width: int) -> str:
    """Inert text on one line, cut with an ellipsis."""
    flat = inert(" ".join(text.split()))
    return flat if len(flat) <= width else flat[: width - 1] + "…"


def _shown(char: str) -> str:
    category = unicodedata.category(char)
    bidi = unicodedata.bidirectional(char) in (
        "LRE",
        "RLE",
        "LRO",
        "RLO",
        "PDF",
        "LRI",
        "RLI",
        "FSI",
        "PDI",
    )
    steers = category in ("Cc", "Cs", "Zl", "Zp") and char not in _KEPT
    harmful = steers or bidi or char in _HIDDEN
    return f"\\u{ord(char):04x}" if harmful else char
