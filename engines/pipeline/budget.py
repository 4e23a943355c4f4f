"""What may still be spent: every call is reserved before it is made.

Owns the count of what is spent and what calls under way may come to at most. Fails
closed: a call that does not fit is not made, and ends the run. Does not know where the
limits stand or what was spent before; both are given.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import orjson

from engines.core.errors import CallFailed, reported_usage
from engines.core.protocols import OnText, Policy, Reservation
from engines.core.types import NO_USAGE, Completion, Message, Sampling, Usage
from engines.core.waiting.deadline import pause_deadlines
from engines.core.waiting.replayed_call import is_replayed
from engines.policies.limits.congestion import Congestion, with_congestion

BYTES_A_TOKEN = 3
"""Of a prompt. English has about four, figures and other scripts fewer; where an endpoint
counts more than this gives, later estimates grow by as much."""
TOKENS_A_MESSAGE = 8
"""What chat templates put round each message."""
LONG_PROMPT = 2000
"""Tokens from which a prompt tells how far estimates are off in proportion: in a shorter one
that may be what the endpoint puts before every prompt."""


@dataclass(frozen=True, slots=True)
class Amounts:
    """Calls, tokens and US dollars: of a call, of many, or left."""

    calls: int = 0
    tokens: int = 0
    cost_usd: float = 0.0

    def __add__(self, other: Amounts) -> Amounts:
        return Amounts(
            self.calls + other.calls, self.tokens + other.tokens, self.cost_usd + other.cost_usd
        )

    def __sub__(self, other: Amounts) -> Amounts:
        return self + Amounts(-other.calls, -other.tokens, -other.cost_usd)


@dataclass(frozen=True, slots=True)
class BudgetLimits:
    """What may be spent in all; None: as much as it takes."""

    calls: int | None = None
    tokens: int | None = None
    cost_usd: float | None = None

    def __bool__(self) -> bool:
        return any(limit is not None for limit in (self.calls, self.tokens, self.cost_usd))

    @property
    def amounts(self) -> dict[str, float]:
        """Each limit that is set, by name."""
        return self.remaining(Amounts())

    def first_exceeded(self, amounts: Amounts) -> str | None:
        """The first limit that these amounts are above, by name; None where all hold."""
        if self.calls is not None and amounts.calls > self.calls:
            return "calls"
        if self.tokens is not None and amounts.tokens > self.tokens:
            return "tokens"
        # Sums of prices are not exact: a billionth of a dollar is nothing.
        if self.cost_usd is not None and amounts.cost_usd > self.cost_usd + 1e-9:
            return "cost_usd"
        return None

    def remaining(self, spent: Amounts) -> dict[str, float]:
        """What is left of each limit that is set, never below 0."""
        pairs = (
            ("calls", self.calls, spent.calls),
            ("tokens", self.tokens, spent.tokens),
            ("cost_usd", self.cost_usd, spent.cost_usd),
        )
        return {name: max(0, limit - used) for name, limit, used in pairs if limit is not None}


@dataclass(frozen=True, slots=True)
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


def estimate_prompt_tokens(
    messages: Sequence[Message], tools: Sequence[Mapping[str, object]] = ()
) -> int:
    """An estimate of a request's tokens, rather too high than too low."""
    held = sum(
        len(message.content.encode("utf-8", "replace"))
        + len(message.reasoning.encode("utf-8", "replace"))
        + sum(len(call.arguments) + len(call.name) for call in message.tool_calls)
        for message in messages
    )
    held += sum(len(orjson.dumps(dict(tool))) for tool in tools)
    return -(-held // BYTES_A_TOKEN) + TOKENS_A_MESSAGE * len(messages)


class Budget:
    """The money of one run or evaluation. Used from one event loop."""

    def __init__(
        self, limits: BudgetLimits, give_up: Callable[[str], None], spent: Amounts | None = None
    ) -> None:
        """Nothing is checked before the first call is asked for.

        Args:
            limits: at least one is set.
            give_up: ends the run, for the reason it is given; called once at most.
            spent: by earlier processes.
        """
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

        What is under way is awaited before the run is ended: it is paid for and will be
        recorded. A call that does not fit waits for ever, to be cancelled with the run.

        Returns:
            What must be called, once, with what the call has cost.
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
            await self._wait_for_change()

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

    async def _wait_for_change(self) -> None:
        """Return after the next call has been settled."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        await waiter

    def _refusal(self, need: Amounts) -> str:
        """Why a call never fits, in words."""
        name = self.limits.first_exceeded(self.spent + need)
        assert name is not None
        limit, spent, more = (getattr(each, name) for each in (self.limits, self.spent, need))
        return (
            f"budget.{name}={_format_amount(limit)}: {_format_amount(spent)} spent, the next "
            f"call may take "
            f"{_format_amount(more)}; it takes budget.{name}={_format_rounded_up(spent + more)} "
            f"at least to go on"
        )


Aside = Callable[[], AbstractContextManager[None]]


@runtime_checkable
class ReservingPolicy(Protocol):
    """A policy that gives its reservation back between the tries of a call."""

    def with_reservation(self, reservation: Reservation) -> Policy: ...


class BudgetedPolicy:
    """A policy whose calls are reserved first, and each further try of a call again.

    It belongs below `Throttled`: who waits for money then holds a slot, and who has
    reserved is at work, so that neither can wait for the other. Waiting for money is no
    part of any deadline.
    """

    def __init__(
        self,
        policy: Policy,
        budget: Budget,
        terms: CallPricing,
        off: _EstimateCorrection | None = None,
        aside: Aside = nullcontext,
    ) -> None:
        """Ask nothing yet.

        Args:
            policy: what is asked.
            budget: of the run.
            terms: of the policy.
            off: what another view of the same policy has learnt of its estimates.
            aside: entered while a call waits for money, so that no batch waits for its try.
        """
        self._policy = policy
        self._budget = budget
        self._terms = terms
        self._off = off or _EstimateCorrection()
        self._aside = aside

    @property
    def name(self) -> str:
        return self._policy.name

    def with_congestion(self, congestion: Congestion) -> Policy:
        """The same budget round the policy as it is seen from certain slots."""
        inner = with_congestion(self._policy, congestion)
        return BudgetedPolicy(inner, self._budget, self._terms, self._off, self._aside)

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, on_text: OnText | None = None
    ) -> Completion:
        if is_replayed():  # paid for when it was recorded
            return await self._policy.complete(messages, sampling, on_text)
        asked = estimate_prompt_tokens(messages, sampling.tools)
        prompt = self._off.corrected_estimate(asked)
        limit = self._terms.reply_tokens(sampling.max_tokens)
        need = Amounts(1, prompt + limit, self._terms.cost_usd(prompt, limit))
        held = _CallReservation(self._budget, need, self._terms, self._aside)
        policy = self._policy
        if isinstance(policy, ReservingPolicy):
            policy = policy.with_reservation(held)
        await held.take()
        spent = NO_USAGE
        try:
            reply = await policy.complete(messages, sampling, on_text)
            if reply.usage.calls and not reply.usage.tokens:
                reply = replace(reply, usage=_estimate_usage(prompt, reply, self._terms))
            elif reply.usage.calls == 1:
                self._off.learn_count(asked, reply.usage.prompt_tokens)
            spent = reply.usage
            return reply
        except CallFailed as failed:
            spent = failed.usage
            raise
        except asyncio.CancelledError as cut:
            told = reported_usage(cut)
            spent = told or NO_USAGE
            if told is not None or isinstance(policy, ReservingPolicy):
                raise
            # It was sent, so it is likely charged for.
            cost_usd = self._terms.cost_usd(prompt, 0) if self._terms.has_price else None
            spent = Usage(prompt, 0, 1, cost_usd)
            raise asyncio.CancelledError(spent) from None
        finally:
            held.settle(spent)

    async def ping(self) -> None:
        await self._policy.ping()

    async def aclose(self) -> None:
        await self._policy.aclose()


class _CallReservation:
    """The reservation of one call, taken anew for each of its tries."""

    def __init__(self, budget: Budget, need: Amounts, terms: CallPricing, aside: Aside) -> None:
        self._budget, self._need, self._terms, self._aside = budget, need, terms, aside
        self._settle: Callable[[Amounts], None] | None = None
        self._told = Amounts()

    async def take(self) -> None:
        if self._settle is None:
            with pause_deadlines(), self._aside():
                self._settle = await self._budget.reserve(self._need)

    def settle(self, spent: Usage) -> None:
        if self._settle is not None:
            settle, self._settle = self._settle, None
            paid = self._terms.amounts_of(spent)
            settle(paid - self._told)
            self._told = paid


class _EstimateCorrection:
    """How far an endpoint's counts of prompts exceeded the estimates.

    A short prompt tells what stands before every prompt, a long one the rest in proportion.
    """

    def __init__(self) -> None:
        self._more = 0
        self._times = 1.0

    def corrected_estimate(self, estimated: int) -> int:
        return self._more + math.ceil(estimated * self._times)

    def learn_count(self, estimated: int, counted: int) -> None:
        if estimated < LONG_PROMPT:
            self._more = max(self._more, counted - math.ceil(estimated * self._times))
        else:
            self._times = max(self._times, (counted - self._more) / estimated)


def earlier_amounts(paid: Iterable[tuple[str, Usage]], terms: Mapping[str, CallPricing]) -> Amounts:
    """Add up what earlier processes paid.

    Args:
        paid: policy and usage of each record.
        terms: by policy; they price what was recorded while no price was known.
    """
    unknown = CallPricing(0)
    found = Amounts()
    for policy, usage in paid:
        found += terms.get(policy, unknown).amounts_of(usage)
    return found


def _estimate_usage(prompt: int, reply: Completion, terms: CallPricing) -> Usage:
    """The usage of a reply whose endpoint counts nothing."""
    text = len((reply.text + reply.reasoning).encode("utf-8", "replace"))
    completion = -(-text // BYTES_A_TOKEN)
    cost_usd = terms.cost_usd(prompt, completion) if terms.has_price else None
    return Usage(prompt, completion, reply.usage.calls, cost_usd)


def _format_amount(amount: float) -> str:
    return str(amount) if isinstance(amount, int) else f"{amount:.6g}"


def _format_rounded_up(amount: float) -> str:
    """A limit that amount fits below."""
    return str(amount) if isinstance(amount, int) else f"{math.ceil(amount * 1e6) / 1e6:.6g}"
