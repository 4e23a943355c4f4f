"""Which reply of a run the call at hand is for, and whether it repeats one; its tasks know, too."""

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
