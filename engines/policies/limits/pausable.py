"""A policy whose calls wait at the kerb while the run is paused on the spot.

It belongs above `BudgetedPolicy`, so that who waits has reserved nothing, and below the ledger,
so that what is in the records already need not wait.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from engines.core.protocols import OnText
from engines.core.types import Completion, Message, Sampling
from engines.core.waiting.deadline import pause_deadlines
from engines.policies.limits.wrapped import WrappedPolicy


@dataclass(frozen=True, slots=True)
class PausablePolicy(WrappedPolicy):
    """Waits before each call until `cleared` returns; that is no part of any deadline."""

    cleared: Callable[[], Awaitable[object]]

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, on_text: OnText | None = None
    ) -> Completion:
        with pause_deadlines():
            await self.cleared()
        return await self.inner.complete(messages, sampling, on_text)
