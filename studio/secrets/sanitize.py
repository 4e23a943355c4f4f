"""Text from models, tools and data, made harmless for a terminal or a file of lines.

Owns the way from text to what is printed: secrets are masked before anything is cut,
since half a key no longer looks like one, and then what steers or hides is shown.
"""

from __future__ import annotations

from engines.core.text.sanitize import inert as _inert
from studio.secrets.output import masked

__all__ = ["inert", "one_line"]


def inert(text: str) -> str:
    """As `engines.core.text.sanitize.inert`, without the secrets that this process knows."""
    return _inert(masked(text))


def one_line(text: str, width: int) -> str:
    """Inert text on one line, cut with an ellipsis."""
    flat = inert(" ".join(text.split()))
    return flat if len(flat) <= width else flat[: width - 1] + "…"
