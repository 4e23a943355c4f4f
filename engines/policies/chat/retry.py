"""Asking an endpoint again: the one loop of tries that every client of an endpoint uses.

Owns when a call is tried again, and its deadline. How a try is made is the client's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import TypeVar

from engines.core.errors import CallFailed
from engines.core.types import NO_USAGE, Usage
from engines.core.waiting.deadline import Deadline, deadline
from engines.policies.chat.backoff import asked_wait_s, backoff_s
from engines.policies.chat.endpoint import EndpointFailed

Sleep = Callable[[float], Awaitable[None]]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often and how long one call is tried. `seed` and `about` fix the jitter of its waits."""

    url: str  # as it may be shown
    limit_s: float  # of the whole call, waits included
    max_retries: int
    seed: int = 0
    about: str = ""
    sleep: Sleep = asyncio.sleep


class RetryHooks:
    """What a client does between the tries of one call: here nothing, and lost tries are free."""

    usage: Usage = NO_USAGE
    """What the lost tries may have cost so far."""

    def adapt(self, failed: EndpointFailed) -> bool:
        """Whether the next request is another one, so that it is made at once and is no retry."""
        return False

    def counts(self, failed: EndpointFailed) -> bool:
        """Whether the failure uses up one of the retries."""
        return True

    def waiting(self, failed: EndpointFailed) -> AbstractAsyncContextManager[None]:
        """Entered for the wait before the next try."""
        return nullcontext()


async def retry_call(
    try_once: Callable[[], Awaitable[T]], policy: RetryPolicy, hooks: RetryHooks | None = None
) -> T:
    """Try until one try succeeds, no other makes sense, or the time is up.

    CallFailed has the cause of the last try; its usage is that of the lost ones. A cancelled
    call carries the same usage.
    """
    hooks = hooks or RetryHooks()
    causes: list[str] = []
    try:
        async with deadline(policy.limit_s) as until:
            return await _try_again_and_again(try_once, policy, hooks, until, causes)
    except asyncio.CancelledError:
        raise asyncio.CancelledError(hooks.usage) from None
    except TimeoutError:
        if not until.expired:
            raise
        last = f" ({causes[-1]})" if causes else ""
        text = f"no whole reply from {policy.url} within {policy.limit_s:g} s{last}"
        raise CallFailed("timeout", text, hooks.usage) from None


async def _try_again_and_again(
    try_once: Callable[[], Awaitable[T]],
    policy: RetryPolicy,
    hooks: RetryHooks,
    until: Deadline,
    causes: list[str],
) -> T:
    faults = 0
    while True:
        try:
            return await try_once()
        except EndpointFailed as failed:
            if hooks.adapt(failed):
                continue
            causes.append(failed.text)
            faults += hooks.counts(failed)
            if not failed.transient or faults > policy.max_retries:
                failed.usage = hooks.usage
                if len(causes) > 1:
                    failed.args = (f"{failed.args[0]} (after {len(causes)} tries)",)
                raise failed from None
            lost = failed
        drawn = (len(causes) - 1, policy.seed, policy.about)
        wait_s = backoff_s(*drawn) if lost.wait_s is None else asked_wait_s(lost.wait_s, *drawn)
        ends = until.ends_at
        if ends is not None and asyncio.get_running_loop().time() + wait_s >= ends:
            # Endpoints may ask for any number, which would fill a page.
            wait = f"{wait_s:.1f} s" if wait_s < 1e6 else f"{wait_s:.3g} s"
            text = f"the next try would be {wait} from now, after the deadline of "
            text += f"{policy.limit_s:g} s; {lost.text}"
            raise CallFailed("timeout", text, hooks.usage)
        async with hooks.waiting(lost):
            await policy.sleep(wait_s)
