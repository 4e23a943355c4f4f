"""What may still be spent: every call is reserved before it is made.

Fails closed: a call that does not fit is not made, and ends the run.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

import orjson

from engines.core import errors, protocols, waiting
from engines.core.frozen import frozen
from engines.core.types import NO_USAGE, Completion, Message, Sampling, Tell, Usage
from engines.policies.limits import WrappedPolicy

BYTES_A_TOKEN = 3
"""Of a prompt. English has about four, figures and other scripts fewer; where an endpoint
counts more than this gives, later estimates grow by as much."""
TOKENS_A_MESSAGE = 8
"""What chat templates put round each message."""


@frozen
class Amounts:
    """Calls, tokens and US dollars: of a call, of many, or left."""

    calls: int = 0
    tokens: int = 0
    cost_usd: float = 0.0

    def __add__(self, other: "Amounts") -> "Amounts":
        return Amounts(
            self.calls + other.calls, self.tokens + other.tokens, self.cost_usd + other.cost_usd
        )

    def __sub__(self, other: "Amounts") -> "Amounts":
        return self + Amounts(-other.calls, -other.tokens, -other.cost_usd)


@frozen
class BudgetLimits:
    """What may be spent in all; None: as much as it takes."""

    calls: int | None = None
    tokens: int | None = None
    cost_usd: float | None = None

    def __bool__(self) -> bool:
        return bool(self.amounts)

    @property
    def amounts(self) -> dict[str, float]:
        """Each limit that is set, by name."""
        return self.remaining(Amounts())

    def first_exceeded(self, amounts: Amounts) -> str | None:
        """The first limit that these amounts are above, by name; None where all hold."""
        for name, limit in self.amounts.items():
            # Sums of prices are not exact: a billionth of a dollar is nothing.
            if getattr(amounts, name) > (limit + 1e-9 if name == "cost_usd" else limit):
                return name
        return None

    def remaining(self, spent: Amounts) -> dict[str, float]:
        """What is left of each limit that is set, never below 0."""
        limits = ((name, getattr(self, name)) for name in ("calls", "tokens", "cost_usd"))
        return {n: max(0, most - getattr(spent, n)) for n, most in limits if most is not None}


@frozen
class CallPricing:
    """What a model's calls may come to. Prices are US dollars for a million tokens."""

    max_tokens: int  # of a reply whose sampling sets no limit
    price_in_usd_per_mtok: float | None = None  # None, either of them: the cost is unknown
    price_out_usd_per_mtok: float | None = None
    further_max_tokens: int = 0  # a limit that the request's further fields set besides
    replies: int = 1  # to one request

    def reply_tokens(self, limit: int | None = None) -> int:
        """At most, of all replies to a request; `limit` is that of its sampling."""
        return max(limit or self.max_tokens, self.further_max_tokens) * self.replies

    @property
    def has_price(self) -> bool:
        return self.price_in_usd_per_mtok is not None and self.price_out_usd_per_mtok is not None

    def cost_usd(self, prompt_tokens: int, completion_tokens: int) -> float:
        """0.0 where no price is known."""
        if self.price_in_usd_per_mtok is None or self.price_out_usd_per_mtok is None:
            return 0.0
        paid_in = prompt_tokens * self.price_in_usd_per_mtok
        return (paid_in + completion_tokens * self.price_out_usd_per_mtok) / 1e6

    def amounts_of(self, usage: Usage) -> Amounts:
        """What a counted usage comes to; a cost the endpoint's price gave stands."""
        cost_usd = usage.cost_usd
        if cost_usd is None:
            cost_usd = self.cost_usd(usage.prompt_tokens, usage.completion_tokens)
        return Amounts(usage.calls, usage.tokens, cost_usd)

    def usage_of(self, prompt_tokens: int, completion_tokens: int, calls: int = 1) -> Usage:
        cost_usd = self.cost_usd(prompt_tokens, completion_tokens) if self.has_price else None
        return Usage(prompt_tokens, completion_tokens, calls, cost_usd)


def estimate_prompt_tokens(
    messages: Sequence[Message], tools: Sequence[Mapping[str, object]] = ()
) -> int:
    """An estimate of a request's tokens, rather too high than too low."""
    size = sum(
        len((message.content + message.reasoning).encode("utf-8", "replace"))
        + sum(len(call.arguments) + len(call.name) for call in message.tool_calls)
        for message in messages
    )
    size += sum(len(orjson.dumps(dict(tool))) for tool in tools)
    return -(-size // BYTES_A_TOKEN) + TOKENS_A_MESSAGE * len(messages)


class Budget:
    """The money of one run or evaluation. Used from one event loop."""

    def __init__(self, limits: BudgetLimits, give_up: Tell, spent: Amounts | None = None) -> None:
        """`give_up` ends the run for a reason, once at most; `spent` is by earlier processes."""
        self.limits = limits
        self.spent = spent or Amounts()
        self._give_up = give_up
        self._reserved = Amounts()
        self._under_way = 0
        self._never: Amounts | None = None  # a call that fits no more: nothing else is granted
        self._ended = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def remaining(self) -> dict[str, float]:
        """What is left of each limit, calls under way not counted."""
        return self.limits.remaining(self.spent)

    async def reserve(self, need: Amounts) -> Callable[[Amounts], None]:
        """Return once a call that may come to `need` fits; where it never will, end the run.

        What is under way is awaited before: it is paid for and will be recorded. A call that
        does not fit waits for ever, to be cancelled with the run. Returns what must be called,
        once, with what the call has cost.
        """
        while True:
            if self._never is None:
                if self.limits.first_exceeded(self.spent + self._reserved + need) is None:
                    return self._grant(need)
                if self.limits.first_exceeded(self.spent + need) is not None:
                    self._never = need  # what is spent only grows
            if self._never is not None and not self._under_way:
                if not self._ended:
                    self._ended = True
                    self._give_up(self._refusal(self._never))
                await asyncio.get_running_loop().create_future()
            settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(settled)
            await settled

    def _grant(self, need: Amounts) -> Callable[[Amounts], None]:
        self._reserved += need
        self._under_way += 1

        def settle(cost: Amounts) -> None:
            self._reserved -= need
            self._under_way -= 1
            if not self._under_way:
                self._reserved = Amounts()  # leaves no rounding of prices behind
            self.spent += cost
            while self._waiting:
                waiter = self._waiting.popleft()
                if not waiter.done():
                    waiter.set_result(None)

        return settle

    def _refusal(self, need: Amounts) -> str:
        """Why a call never fits, in words."""
        name = self.limits.first_exceeded(self.spent + need)
        assert name is not None
        limit, spent, more = (getattr(each, name) for each in (self.limits, self.spent, need))
        least = spent + more
        if isinstance(least, float):
            least = math.ceil(least * 1e6) / 1e6  # it must fit below what is shown
        return (
            f"budget.{name}={_format_amount(limit)}: {_format_amount(spent)} spent, the next call "
            f"may take {_format_amount(more)}; it takes budget.{name}={_format_amount(least)} at "
            f"least to go on"
        )


Aside = Callable[[], AbstractContextManager[None]]


@runtime_checkable
class ReservingPolicy(Protocol):
    """A policy that gives its reservation back between the tries of a call."""

    def with_reservation(self, reservation: protocols.Reservation) -> protocols.Policy: ...


@dataclass(slots=True)
class _UncountedTokens:
    """Tokens that an endpoint counted in a prompt beyond its estimate, at most."""

    most: int = 0


@frozen
class BudgetedPolicy(WrappedPolicy):
    """A policy whose calls are reserved first, and each further try of a call again.

    It belongs below `Throttled`: who waits for money then holds a slot, and who has
    reserved is at work, so that neither can wait for the other. Waiting for money is no
    part of any deadline.
    """

    budget: Budget
    terms: CallPricing
    aside: Aside = nullcontext  # entered while a call waits for money: no batch waits for its try
    uncounted: _UncountedTokens = field(default_factory=_UncountedTokens)

    async def complete(
        self,
        messages: Sequence[Message],
        sampling: Sampling,
        on_text: protocols.OnText | None = None,
    ) -> Completion:
        if waiting.is_replayed():  # paid for when it was recorded
            return await self.inner.complete(messages, sampling, on_text)
        asked = estimate_prompt_tokens(messages, sampling.tools)
        prompt = asked + self.uncounted.most
        need = self.terms.amounts_of(Usage(prompt, self.terms.reply_tokens(sampling.max_tokens), 1))
        reservation = _CallReservation(self.budget, need, self.terms, self.aside)
        policy = self.inner
        if isinstance(policy, ReservingPolicy):
            policy = policy.with_reservation(reservation)
        await reservation.take()
        spent = NO_USAGE
        try:
            reply = await policy.complete(messages, sampling, on_text)
            if reply.usage.calls and not reply.usage.tokens:
                # The endpoint counts nothing.
                text = len((reply.text + reply.reasoning).encode("utf-8", "replace"))
                usage = self.terms.usage_of(prompt, -(-text // BYTES_A_TOKEN), reply.usage.calls)
                reply = replace(reply, usage=usage)
            elif reply.usage.calls == 1:
                self.uncounted.most = max(self.uncounted.most, reply.usage.prompt_tokens - asked)
            spent = reply.usage
            return reply
        except errors.CallFailed as failed:
            spent = failed.usage
            raise
        except asyncio.CancelledError as cut:
            reported = errors.reported_usage(cut)
            spent = reported or NO_USAGE
            if reported is not None or isinstance(policy, ReservingPolicy):
                raise
            spent = self.terms.usage_of(prompt, 0)  # it was sent, so it is likely charged for
            raise asyncio.CancelledError(spent) from None
        finally:
            reservation.settle(spent)


@dataclass(slots=True)
class _CallReservation:
    """The reservation of one call, taken anew for each of its tries."""

    budget: Budget
    need: Amounts
    terms: CallPricing
    aside: Aside
    _settle: Callable[[Amounts], None] | None = None  # None: nothing is reserved
    _charged: Amounts = Amounts()  # for the tries so far

    async def take(self) -> None:
        if self._settle is None:
            with waiting.pause_deadlines(), self.aside():
                self._settle = await self.budget.reserve(self.need)

    def settle(self, spent: Usage) -> None:
        if self._settle is not None:
            settle, self._settle = self._settle, None
            paid = self.terms.amounts_of(spent)
            settle(paid - self._charged)
            self._charged = paid


def earlier_amounts(paid: Iterable[tuple[str, Usage]], terms: Mapping[str, CallPricing]) -> Amounts:
    """Add up what earlier processes paid, by policy and usage of each record.

    `terms` price by policy what was recorded while no price was known.
    """
    unknown = CallPricing(0)
    priced = (terms.get(policy, unknown).amounts_of(usage) for policy, usage in paid)
    return sum(priced, Amounts())


def _format_amount(amount: float) -> str:
    return str(amount) if isinstance(amount, int) else f"{amount:.6g}"
