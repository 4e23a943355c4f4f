"""What a foreign error says: of a tool's own code, or of a server."""

from __future__ import annotations

from engines.core.text.sanitize import one_line

_MAX_CHARS = 2_000


def error_text(error: BaseException) -> str:
    """Its kind and its text in one line; of a group the first one."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    try:
        said = one_line(str(error)[:_MAX_CHARS])
    except Exception:  # its __str__ may do anything
        said = ""
    return f"{type(error).__name__}: {said}" if said else type(error).__name__
