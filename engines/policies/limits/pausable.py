"""A policy whose calls wait at the kerb while the run is paused on the spot.

It belongs above `BudgetedPolicy`, so that who waits has reserved nothing, and below the ledger,
so that what is in the records already need not wait.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from engines.core.protocols import OnText, Policy
from engines.core.types import Completion, Message, Sampling
from engines.core.waiting.deadline import pause_deadlines
from engines.policies.limits.congestion import Congestion, with_congestion


class PausablePolicy:
    """Waits before each call until `cleared` returns; that is no part of any deadline."""

    def __init__(self, policy: Policy, cleared: Callable[[], Awaitable[object]]) -> None:
        self._policy = policy
        self._cleared = cleared
        self.name, self.ping, self.aclose = policy.name, policy.ping, policy.aclose

    def with_congestion(self, congestion: Congestion) -> Policy:
        return PausablePolicy(with_congestion(self._policy, congestion), self._cleared)

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, on_text: OnText | None = None
    ) -> Completion:
        with pause_deadlines():
            await self._cleared()
        return await self._policy.complete(messages, sampling, on_text)
