"""Text from models, tools and data, made harmless for a terminal or a file of lines.

Secrets are masked before anything is cut, since half a key no longer looks like one.
"""

from engines.core.text.sanitize import escape_unsafe
from studio.secrets.output import mask_text

__all__ = ["one_line", "sanitize"]


def sanitize(text: str) -> str:
    """Mask the secrets this process knows, then escape what steers or hides."""
    return escape_unsafe(mask_text(text))


def one_line(text: str, width: int) -> str:
    """Sanitized text on one line, cut with an ellipsis."""
    flat = sanitize(" ".join(text.split()))
    return flat if len(flat) <= width else flat[: width - 1] + "…"
