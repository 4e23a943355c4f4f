"""When a call of an endpoint is made again, how long it waits before, and when it is given up.

The one loop of attempts of every client; how an attempt is made is the client's. The jitter of its
waits follows from a seed, so that two runs with one seed wait alike.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TypeVar

from engines.core import codec, errors
from engines.core.types import NO_USAGE, Usage
from engines.core.waiting import deadline
from engines.policies.chat.endpoint import EndpointFailed, EndpointSettings

Sleep = Callable[[float], Awaitable[None]]
T = TypeVar("T")


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


FIRST_S = 0.5
LONGEST_S = 30.0


def retry_wait_s(asked_s: float | None, attempt: int, seed: int, about: str) -> float:
    """Seconds before another try; `attempt` counts those that have failed, from 0.

    Exponential from half a second, times a jitter in [0.5, 1) that `seed` and `about` fix. Where
    the endpoint asked for a wait, that and up to a quarter more, so that not all come back at once;
    one that asks for no wait at all is given more and more, too.
    """
    jitter = codec.seed_for(seed, "backoff", attempt, about) / 2**31
    usual_s = min(LONGEST_S, FIRST_S * 2.0 ** min(attempt, 16)) * (0.5 + jitter / 2)
    if asked_s is None:
        return usual_s
    return max(asked_s * (1 + jitter / 4), usual_s / 16)


async def retry_call(
    try_once: Callable[[], Awaitable[T]],
    own: EndpointSettings,
    *,
    seed: int = 0,
    about: str = "",
    sleep: Sleep = asyncio.sleep,
    hooks: RetryHooks | None = None,
) -> T:
    """Try until one try succeeds, no other makes sense, or the endpoint's `timeout_s` are over.

    `seed` and `about` fix the jitter of its waits. CallFailed has the cause of the last try; its
    usage is that of the lost ones. A cancelled call carries the same usage.
    """
    hooks = hooks or RetryHooks()
    causes: list[str] = []
    faults = 0
    try:
        async with deadline(own.timeout_s) as until:
            while True:
                try:
                    return await try_once()
                except EndpointFailed as failed:
                    lost = failed
                if hooks.adapt(lost):
                    continue
                causes.append(lost.text)
                faults += hooks.counts(lost)
                if not lost.transient or faults > own.max_retries:
                    lost.usage = hooks.usage
                    if len(causes) > 1:
                        lost.args = (f"{lost.args[0]} (after {len(causes)} tries)",)
                    raise lost from None
                wait_s = retry_wait_s(lost.wait_s, len(causes) - 1, seed, about)
                ends = until.ends_at
                if ends is not None and asyncio.get_running_loop().time() + wait_s >= ends:
                    text = (
                        f"the next try would be {wait_s:.3g} s from now, after the deadline of "
                        f"{own.timeout_s:g} s; {lost.text}"
                    )
                    raise errors.CallFailed("timeout", text, hooks.usage)
                async with hooks.waiting(lost):
                    await sleep(wait_s)
    except asyncio.CancelledError:
        raise asyncio.CancelledError(hooks.usage) from None
    except TimeoutError:
        if not until.expired:
            raise
        last = f" ({causes[-1]})" if causes else ""
        text = f"no whole reply from {own.url} within {own.timeout_s:g} s{last}"
        raise errors.CallFailed("timeout", text, hooks.usage) from None
