"""How many calls run at a time falls when an endpoint says "too many", and recovers.

Additive increase, multiplicative decrease, as senders on a network do it: half at each
round of refusals, one more after as many answered calls as run at a time. Needs no clock:
a round is known by which calls had begun before the last cut.

Source: Chiu and Jain, Analysis of the increase and decrease algorithms for congestion
    avoidance in computer networks, 1989.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from engines.core.protocols import Policy

CROWDED = (429, 503)
"""Statuses that mean: not so many at a time."""


class Resizable(Protocol):
    @property
    def limit(self) -> int: ...

    def resize(self, limit: int) -> None: ...

    def lend(self) -> AbstractAsyncContextManager[None]: ...


class Congestion:
    """Narrows slots while an endpoint refuses; their limit now is the most there ever will be.

    `tell` is told once, when the limit first falls.
    """

    def __init__(self, slots: Resizable, tell: Callable[[str], None] | None = None) -> None:
        self._slots = slots
        self._most = slots.limit
        self._answered = 0  # since the limit last changed
        self._cuts = 0
        self._tell = tell

    def note_request(self) -> int:
        """A request goes out. What this returns is given back with what became of it."""
        return self._cuts

    def note_answer(self) -> None:
        self._answered += 1
        limit = self._slots.limit
        if self._answered >= limit and limit < self._most:
            self._answered = 0
            self._slots.resize(limit + 1)

    def note_refusal(self, began: int) -> None:
        """An endpoint had too much to do. Requests from before the last cut tell nothing new."""
        if began < self._cuts:
            return
        self._cuts += 1
        self._answered = 0
        limit = self._slots.limit
        self._slots.resize(max(1, limit // 2))
        if self._tell is not None:
            tell, self._tell = self._tell, None
            tell(
                f"the endpoint refuses some calls as too many; fewer than {limit} run at a time "
                "until it takes them again"
            )

    def lend_slot(self) -> AbstractAsyncContextManager[None]:
        """The slot of a refused call is others' inside; at the end it waits for one again."""
        return self._slots.lend()


def with_congestion(policy: Policy, congestion: Congestion) -> Policy:
    """The policy as it tells a congestion control of its calls, where it has this method."""
    # Asked for by name: `isinstance` with a protocol costs 20 µs, several times a rollout.
    aware: Callable[[Congestion], Policy] | None = getattr(policy, "with_congestion", None)
    return policy if aware is None else aware(congestion)
