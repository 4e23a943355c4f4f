"""Whether the call at hand repeats one whose reply is recorded; its tasks know it, too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_REPEATS: ContextVar[bool] = ContextVar("repeats", default=False)


@contextmanager
def mark_replayed() -> Iterator[None]:
    """Calls inside are made once more only to take part in a batch."""
    before = _REPEATS.set(True)
    try:
        yield
    finally:
        _REPEATS.reset(before)


def is_replayed() -> bool:
    return _REPEATS.get()
