"""The try of an agent that writes its requests itself: a program, or a function.

Puts the library in front of each request, keeps the run's sampling, and collects the trajectory
and what it cost. Knows no protocol; `engines.agents.gateway` speaks those.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import takewhile
from typing import Any, cast

from engines.agents.loops import system_messages
from engines.core import chat_protocol, errors, protocols
from engines.core.text.tool_text import call_mark, clean_text, result_mark
from engines.core.types import (
    NO_USAGE,
    Attempt,
    Completion,
    Message,
    Sampling,
    ToolCall,
    ToolResult,
    Usage,
    is_cut,
)

MOST_CALLS = 1_000
"""Of one try: a program that asks in a circle ends, however short its replies are."""

_Words = tuple[str, tuple[tuple[str, str, str], ...]]


@dataclass(slots=True)
class GuidedTry:
    """One try. Its calls are made one after another, in the order in which they came.

    The try holds one slot of the endpoint, and the seed of a call follows from its number. A
    program whose calls come in another order when it is started anew still finds what was
    recorded: the ledger looks for the request among the other turns of the try.
    """

    policy: protocols.Policy
    sampling: Sampling
    guidance: str = ""
    instructions: str = ""  # for requests without a system message of their own
    on_text: protocols.OnText | None = None  # the screen
    usage: Usage = NO_USAGE
    calls: int = 0
    last: Completion | None = None
    failure: str = ""  # of the last call that failed
    over: str = ""  # why no call is taken any more
    fatal: Exception | None = None  # what has to end the rollout, whatever the agent makes of it
    stopped: asyncio.Event = field(default_factory=asyncio.Event)  # set with `fatal`
    trajectory: list[Message] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)  # numbers calls: one at a time
    _latest: tuple[Message, ...] = ()  # the last request and its reply
    _replies: dict[_Words, Message] = field(default_factory=dict)
    _shown_calls: dict[str, ToolCall] = field(default_factory=dict)

    async def ask(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        stop: Sequence[str] = (),
        max_tokens: int | None = None,
        on_text: protocols.OnText | None = None,
        by: tuple[protocols.Policy, Sampling] | None = None,  # takes this turn, without the library
    ) -> Completion:
        """The recorded reply; raises what the policy raises, and CallFailed once all is over."""
        async with self._turn:
            if not self.over and self.calls >= MOST_CALLS:
                self.over = f"the try has made {MOST_CALLS:,} calls"
            if self.over:
                raise errors.CallFailed("refused", self.over)
            self.calls += 1
            usual = self.sampling if by is None else by[1]
            asked = self._prepare(messages) if by is None else tuple(messages)
            self._show_results(asked)
            limits = [n for n in (usual.max_tokens, max_tokens) if n is not None]
            sampling = replace(
                usual,
                max_tokens=min(limits, default=None),
                stop=tuple(stop) or usual.stop,
                tools=tuple(tools) or usual.tools,
            )
            complete = self.policy.complete
            if by is not None:  # only workflows ask others, and theirs is the policy of a try
                complete = partial(cast("protocols.TryPolicy", self.policy).complete_as, by[0])
            reply = await self._complete(complete, asked, sampling, on_text)
            # Some servers give calls no ids, and a program could not answer them.
            calls = []
            for number, call in enumerate(reply.tool_calls):
                calls.append(replace(call, id=call.id or f"call_{self.calls}_{number}"))
            reply = replace(reply, tool_calls=tuple(calls))
            self._keep(asked, reply)
            self.last = reply if by is None else self.last
            return reply

    async def answer(
        self, asked: chat_protocol.Asked, on_text: protocols.OnText | None
    ) -> Completion:
        """A request of a program, whose own sampling the run's replaces."""
        tools, stop, limit = asked.tools, asked.stop, asked.max_tokens
        return await self.ask(
            asked.messages, tools=tools, stop=stop, max_tokens=limit, on_text=on_text
        )

    def end(self, reason: str) -> None:
        """Take no more calls."""
        self.over = self.over or reason

    def attempt(
        self, question: str, answer: str, error: str | None, metrics: Mapping[str, float]
    ) -> Attempt:
        """What came of it: the trajectory, and the answer where the last reply is another text."""
        self.end("the try has ended")
        said = self.last.text if self.last else ""
        cut = self.last is not None and is_cut(self.last.finish)
        asked = () if self.trajectory else (Message("user", question),)
        final = () if error or answer == said.strip() else (Message("assistant", answer),)
        return Attempt(
            messages=(*asked, *self.trajectory, *final),
            answer=None if error else answer,
            status="failed" if error else "truncated" if cut else "ok",
            usage=self.usage,
            elapsed_s=round(time.monotonic() - self.began, 4),
            error=error,
            metrics=metrics,
        )

    async def _complete(
        self,
        complete: Callable[..., Awaitable[Completion]],
        asked: tuple[Message, ...],
        sampling: Sampling,
        on_text: protocols.OnText | None,
    ) -> Completion:
        listeners = [one for one in (self.on_text, on_text) if one is not None]

        def pass_on(text: str) -> None:
            for listener in listeners:
                listener(text)

        try:
            reply = await complete(asked, sampling, pass_on if listeners else None)
        except errors.CallFailed as failed:
            self.usage += failed.usage
            self.failure = str(failed)
            if failed.kind == "too long":  # every further call would be paid for and refused
                self.over = self.failure
            raise
        except asyncio.CancelledError as cut:
            self.usage += errors.lost_usage(cut)
            raise
        except Exception as error:
            self.fatal, self.over = error, str(error)
            self.stopped.set()
            raise
        self.usage += reply.usage
        return reply

    def _prepare(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """With the library in front, and our own replies as they were given."""
        own, rest = self.instructions, list(messages)
        if rest and rest[0].role == "system":
            own = rest.pop(0).content
        guidance = "" if self.guidance in own else self.guidance  # read from a mounted file
        return (
            *system_messages(own, guidance),
            *(self._replies.get(_words(m), m) if m.role == "assistant" else m for m in rest),
        )

    def _keep(self, asked: tuple[Message, ...], reply: Completion) -> None:
        said = reply.as_message()
        pairs = zip(self._latest, asked, strict=False)
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        self.trajectory += (*asked[shared:], said)
        self._latest = (*asked, said)
        self._replies[_words(said)] = said
        for call in reply.tool_calls:
            self._shown_calls[call.id] = call
            if self.on_text is not None:
                self.on_text(call_mark(call))

    def _show_results(self, asked: Sequence[Message]) -> None:
        for message in asked:
            call = self._shown_calls.pop(message.tool_call_id, None)
            if call is not None and self.on_text is not None:
                self.on_text(result_mark(call, ToolResult(clean_text(message.content))))


def _words(message: Message) -> _Words:
    """What a program gives back of a reply: it knows no ids of tokens and no reasoning."""
    calls = tuple((c.id, c.name, _canonical(c.arguments)) for c in message.tool_calls)
    return message.content.strip(), calls


def _canonical(arguments: str) -> str:
    """Two of the protocols carry arguments as an object, which loses how it was written."""
    try:
        return json.dumps(json.loads(arguments or "{}"), sort_keys=True)
    except (ValueError, RecursionError):
        return arguments
