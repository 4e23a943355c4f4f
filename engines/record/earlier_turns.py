"""The calls of a try that an earlier process recorded, whatever the order they are made in now."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from engines.core.types import CallKey

_APART = 100_000
"""More than a try has calls."""


@dataclass(slots=True)
class EarlierTurns:
    """Turns and request hashes by try. Each answers once, so equal questions keep their replies.

    An agent that makes calls at the same time may make them in another order when it is started
    again; the number of a call, and with it its seed, is then another one.
    """

    _recorded: dict[CallKey, set[tuple[int, str]]] = field(default_factory=dict)
    _left: dict[CallKey, set[tuple[int, str]]] = field(default_factory=dict)
    _moved: set[CallKey] = field(default_factory=set)  # tries whose order is another one now

    def add(self, key: CallKey, request: str) -> None:
        self._recorded.setdefault(replace(key, turn=0), set()).add((key.turn, request))

    def find(self, key: CallKey, request: str, hash_at: Callable[[CallKey], str]) -> CallKey:
        """The key under which the reply lies, or is to be recorded; mostly the one given.

        `hash_at` is the request's hash as a call of another key: the seed is part of it.
        """
        this_try, asked = replace(key, turn=0), (key.turn, request)
        if not (recorded := self._recorded.get(this_try)):
            return key
        if not key.turn:
            self._left[this_try] = set(recorded)  # the try begins
        left = self._left.setdefault(this_try, set(recorded))
        if asked in left:
            left.discard(asked)
            return key
        for turn in sorted({turn for turn, _ in left}):
            other = replace(key, turn=turn)
            if (found := (turn, hash_at(other))) in left:
                left.discard(found)
                self._moved.add(this_try)
                return other
        if asked in recorded:  # which has answered another call: this one gets a reply of its own
            self._moved.add(this_try)
            return replace(key, turn=key.turn + _APART)
        return key

    def keeps_order(self, key: CallKey) -> bool:
        """Whether the calls of the try are made in the order of their records."""
        this_try = replace(key, turn=0)
        return this_try not in self._moved and not self._left.get(this_try)

    def clear(self) -> None:
        self._recorded.clear()
        self._left.clear()
        self._moved.clear()
