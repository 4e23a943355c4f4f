"""Who decides: everything by itself, or a person outside this process."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Collection, Sequence

from engines.core.flags import AUTO, CONFLICT, DUPLICATE, HELD_OUT_LEAK, HURTS, REJECTED_BY_AUTO
from engines.core.library import Library
from engines.core.types import BASE_MOVED, Decision, Flag, Operation

_SURE = 0.9
"""Likeness from which a near copy says nothing of its own."""
_ID = re.compile(r"\b[A-Z]\w*\d\b")


class AutoReviewer:
    """Approves whatever fits the library and has no flag that it `rejects`.

    The gate rejects what does not fit. Two flags it leaves to a person: an experience that someone
    changed while a proposal about it was under way, since approving by itself would undo their
    edit; and a wording that repeats a held-out question, since an evaluation that is spoiled shows
    nothing of it. What only its likeness to an experience speaks against is rejected while that
    experience stands in the draft.
    """

    name = AUTO

    def __init__(self, rejects: Collection[str] = REJECTED_BY_AUTO) -> None:
        self._rejects = frozenset(rejects)

    async def review(
        self, operations: Sequence[Operation], library: Library
    ) -> AsyncIterator[Decision]:
        for operation in operations:
            flags = {flag.name: flag for flag in operation.flags}
            fault = next((f for f in operation.flags if self._is_fault(f, library)), None)
            if BASE_MOVED in flags and library.get(operation.target) is not None:
                reason = f"{operation.target} was changed meanwhile"
                yield Decision(operation.id, "defer", reason=reason, reviewer=self.name)
            elif leak := flags.get(HELD_OUT_LEAK):
                yield Decision(operation.id, "defer", reason=leak.detail, reviewer=self.name)
            elif fault is not None and (operation.kind in ("add", "modify") or fault.name == HURTS):
                reason = f"{fault.name}: {fault.detail}"
                yield Decision(operation.id, "reject", reason=reason, reviewer=self.name)
            else:
                yield Decision(operation.id, "approve", reviewer=self.name)

    def _is_fault(self, flag: Flag, library: Library) -> bool:
        if flag.name not in self._rejects:
            return False
        if flag.name == DUPLICATE and flag.score is not None and flag.score < _SURE:
            return False
        return flag.name not in (DUPLICATE, CONFLICT) or any(
            library.get(word) is not None for word in _ID.findall(flag.detail)
        )


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
