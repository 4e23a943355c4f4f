"""A try that a worker has under way, as the run's process serves it.

What the worker asks is asked, recorded and paid here, under the deadlines of the try.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from engines.core.errors import WorkerLost, lost_usage
from engines.core.protocols import OnText, Policy, TryPolicy
from engines.core.types import NO_USAGE, CallKey, Completion, Message, Sampling, Usage
from engines.rollouts.remote.line import Line, Work
from engines.rollouts.remote.worker import Ref


@dataclass(eq=False)
class ServedTry:
    """A try, or what is judged, that a worker has under way: it asks through its `policy`."""

    number: int
    line: Line
    among: dict[int, ServedTry]  # all that the worker has under way
    resolve: Callable[[Ref], Policy]  # what a worker calls a model
    key: CallKey | None = None  # None: it is judged
    policy: TryPolicy | None = None
    on_text: OnText | None = None
    context: Context = field(default_factory=copy_context)  # with its deadlines
    lost: Usage = NO_USAGE  # of calls that the worker gave up
    messages: tuple[Message, ...] = ()
    calls: set[asyncio.Task[Any]] = field(default_factory=set)

    async def ask(self, kind: str, *args: Any) -> Any:
        """What the worker makes of it. WorkerLost comes once nothing of it is under way here."""
        self.among[self.number] = self
        try:
            return await self.line.ask(kind, self.number, *args)
        except WorkerLost:
            # What was asked is paid for: its reply is recorded, and found when it is asked again.
            if self.calls:
                await asyncio.wait(self.calls)
            raise
        finally:
            del self.among[self.number]
            for call in self.calls:
                call.cancel()

    def work_for(self, kind: str, args: Sequence[Any]) -> Work:
        work: Coroutine[Any, Any, Any]
        match kind, *args:
            case "complete", ref, base, new, sampling, direct, listener:
                self.messages = (*self.messages[:base], *new)
                on_text = self.on_text if direct else self._listener(listener)
                work = self._complete(ref, self.messages, sampling, on_text)
            case "ask", ref, messages, sampling:
                assert self.policy is not None
                work = self.policy.ask(self.resolve(ref), messages, sampling)
            case "run_tools", token, calls, specs:
                work = self._run_tools(token, calls, specs)
            case _:
                raise AssertionError(f"a worker asks for {kind}")
        return self._track(work), self.context.copy()

    async def _track(self, work: Coroutine[Any, Any, Any]) -> Any:
        task = asyncio.current_task()
        assert task is not None
        self.calls.add(task)
        try:
            return await work
        except asyncio.CancelledError as cut:
            self.lost += lost_usage(cut)
            raise
        finally:
            self.calls.discard(task)

    async def _complete(
        self,
        ref: Ref | None,
        messages: tuple[Message, ...],
        sampling: Sampling,
        on_text: OnText | None,
    ) -> Completion:
        assert self.policy is not None
        if ref is None:
            return await self.policy.complete(messages, sampling, on_text)
        return await self.policy.complete_as(self.resolve(ref), messages, sampling, on_text)

    async def _run_tools(self, token: int, calls: Any, specs: Any) -> Any:
        assert self.policy is not None
        run = partial(self.line.ask, "run_tool", token)
        restore = partial(self.line.tell, "restored", token)
        return await self.policy.run_tools(calls, run, specs, restore)

    def _listener(self, number: int | None) -> OnText | None:
        if number is None:
            return None
        return lambda piece: self.line.tell("text", number, piece)
