"""Several endpoints that serve one model: which of them takes a call, and which are left out.

What begins alike goes to the same one, so that its prompt cache has it, unless that one has clearly
more to do than another: the group's tries, and the turns of a try, share their first messages.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from engines.core.ids import digest
from engines.core.types import Message
from engines.policies.chat.endpoint import EndpointFailed

FIRST_S, LONGEST_S = 2.0, 60.0
"""How long one that failed is left out: at first, and at most after many failures in a row."""
MORE_BUSY = 1.25
"""Calls under way at one, over the fewest, from which a cached beginning is not worth it."""
HEADROOM = 2
"""So many more are no reason yet."""


@dataclass(slots=True)
class Replica:
    """One endpoint. `back_at` is when it is tried again, by the clock; 0: it is in service."""

    place: int
    under_way: int = 0
    failures: int = 0  # in a row
    back_at: float = 0.0


@dataclass(slots=True)
class Replicas:
    """All endpoints of one model. Lives in one event loop."""

    count: int
    clock: Callable[[], float] = time.monotonic
    every: list[Replica] = field(init=False)

    def __post_init__(self) -> None:
        self.every = [Replica(place) for place in range(self.count)]

    @contextmanager
    def take(self, messages: Sequence[Message]) -> Iterator[Replica]:
        """The endpoint for a try of a call; how it ends is what is known of it from then on."""
        chosen = self._choose(messages)
        chosen.under_way += 1
        try:
            yield chosen
        except EndpointFailed as failed:
            if failed.transient:
                self._leave_out(chosen, failed)
            raise
        else:
            chosen.failures, chosen.back_at = 0, 0.0
        finally:
            chosen.under_way -= 1

    def has_other(self) -> bool:
        """Whether any endpoint is in service, so that a try which failed is made there at once."""
        return any(one.back_at <= self.clock() for one in self.every)

    def _choose(self, messages: Sequence[Message]) -> Replica:
        now = self.clock()
        # One whose time is up takes one call again, and no second before that one has ended.
        back = (one for one in self.every if one.back_at <= now)
        ready = [one for one in back if not (one.failures and one.under_way)]
        if not ready:
            return min(self.every, key=lambda one: one.back_at)
        fewest = min(one.under_way for one in ready)
        # Rendezvous hashing: where one is left out, only what it had moves.
        beginning = [message.content for message in messages[:2]]
        liked = max(ready, key=lambda one: digest([one.place, beginning]))
        if liked.under_way <= max(fewest * MORE_BUSY, fewest + HEADROOM):
            return liked
        return next(one for one in ready if one.under_way == fewest)

    def _leave_out(self, failed: Replica, error: EndpointFailed) -> None:
        wait_s = min(LONGEST_S, FIRST_S * 2.0 ** min(failed.failures, 10))
        failed.failures += 1
        failed.back_at = self.clock() + max(wait_s, error.wait_s or 0.0)
