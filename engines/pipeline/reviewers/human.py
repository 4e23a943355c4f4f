"""Who decides: everything by itself, or a person outside this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from engines.core.flags import HELD_OUT_LEAK
from engines.core.library import Library
from engines.core.types import BASE_MOVED, Decision, Operation


class AutoReviewer:
    """Approves whatever fits the library; the gate rejects the rest with its reason.

    Flags do not hold it up, with two exceptions that it leaves to a person: an experience
    that someone changed while a proposal about it was under way, since approving by itself
    would undo their edit; and a wording that repeats a held-out question, since an evaluation
    that is spoiled shows nothing of it.
    """

    name = "auto"

    async def review(
        self, operations: Sequence[Operation], library: Library
    ) -> AsyncIterator[Decision]:
        for operation in operations:
            moved = any(flag.name == BASE_MOVED for flag in operation.flags)
            if moved and library.get(operation.target) is not None:
                reason = f"{operation.target} was changed meanwhile"
                yield Decision(operation.id, "defer", reason=reason, reviewer=self.name)
            elif leak := next((f for f in operation.flags if f.name == HELD_OUT_LEAK), None):
                yield Decision(operation.id, "defer", reason=leak.detail, reviewer=self.name)
            else:
                yield Decision(operation.id, "approve", reviewer=self.name)


class HoldExpired(Exception):
    """Nobody decided within the time the run was told to hold."""


class HumanReviewer:
    """Waits for decisions that reach the gate from outside (socket, screen).

    It yields nothing itself: whoever decides outside wants the gate's answer to the very decision.
    """

    name = "wait"

    def __init__(self, hold_s: float | None = None) -> None:
        self._hold_s = hold_s
        self._changed = asyncio.Event()
        self.is_done: Callable[[], bool] = lambda: False  # set by the gate

    def notify(self) -> None:
        """Something was decided or undone."""
        self._changed.set()

    async def review(
        self, operations: Sequence[Operation], library: Library
    ) -> AsyncIterator[Decision]:
        """Hold until nothing is undecided; raises HoldExpired where `hold_s` passes before."""
        try:
            async with asyncio.timeout(self._hold_s):
                while not self.is_done():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError as error:
            raise HoldExpired from error
        for decision in tuple[Decision, ...]():  # what makes this an iterator
            yield decision
