"""Asking an endpoint again: the one loop of tries that every client of an endpoint uses.

Owns when a call is tried again, how long it waits (the jitter follows from a seed, so that two runs
with one seed wait alike), and its deadline. How a try is made is the client's.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import TypeVar

from engines.core.codec import seed_for
from engines.core.errors import CallFailed
from engines.core.types import NO_USAGE, Usage
from engines.core.waiting import Deadline, deadline
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

    async def try_again_and_again(until: Deadline) -> T:
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

    try:
        async with deadline(policy.limit_s) as until:
            return await try_again_and_again(until)
    except asyncio.CancelledError:
        raise asyncio.CancelledError(hooks.usage) from None
    except TimeoutError:
        if not until.expired:
            raise
        last = f" ({causes[-1]})" if causes else ""
        text = f"no whole reply from {policy.url} within {policy.limit_s:g} s{last}"
        raise CallFailed("timeout", text, hooks.usage) from None


FIRST_S = 0.5
LONGEST_S = 30.0


def backoff_s(attempt: int, seed: int, *parts: str) -> float:
    """Exponential from half a second, times a jitter in [0.5, 1) that `seed` and `parts` fix.

    `attempt` counts the tries that have failed before this wait, from 0.
    """
    whole = min(LONGEST_S, FIRST_S * 2.0 ** min(attempt, 16))
    jitter = seed_for(seed, "backoff", attempt, *parts) / 2**31
    return whole * (0.5 + jitter / 2)


def asked_wait_s(asked_s: float, attempt: int, seed: int, *parts: str) -> float:
    """What an endpoint asked for and up to a quarter more, so that not all come back at once.

    A wait of nothing grows as well, if from less: it would be tried again at once for ever.
    """
    jitter = seed_for(seed, "retry-after", attempt, *parts) / 2**31
    wait_s = asked_s * (1 + jitter / 4)
    return max(wait_s, backoff_s(attempt, seed, *parts) / 16)
