"""Which reply of a run the call at hand is for; its tasks know it, too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from engines.core.types import CallKey

_KEY: ContextVar[CallKey | None] = ContextVar("key", default=None)


@contextmanager
def name_call(key: CallKey) -> Iterator[None]:
    """Calls inside are made for the reply of this key."""
    before = _KEY.set(key)
    try:
        yield
    finally:
        _KEY.reset(before)


def current_call() -> CallKey | None:
    """None outside any ledger."""
    return _KEY.get()
