"""A function of the user's own as the agent: `async (problem, model) -> answer`.

It runs in this process, with all that this process may; `command` agents have boxes.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engines.agents.guided_try import GuidedTry
from engines.core.protocols import OnText, Policy
from engines.core.types import Attempt, Completion, Job, Message, Sampling

Asked = str | Sequence[Message | Mapping[str, Any]]


class Model:
    """What the function is given: the policy, with the library in front of what it asks.

    Calls are recorded and paid for once; made at the same time, they wait for each other.
    """

    def __init__(self, guided: GuidedTry) -> None:
        self._guided = guided

    async def ask(
        self, messages: Asked, tools: Sequence[Mapping[str, Any]] | None = None
    ) -> Completion:
        """The reply to a text, or to messages: {"role": …, "content": …} or `Message`."""
        return await self._guided.ask(_as_messages(messages), tools=tools or ())

    async def __call__(self, text: str) -> str:
        return (await self.ask(text)).text


class BlockingModel:
    """The same for a function that is not async, which runs in a thread."""

    def __init__(self, model: Model, loop: asyncio.AbstractEventLoop) -> None:
        self._model, self._loop = model, loop

    def ask(self, messages: Asked, tools: Sequence[Mapping[str, Any]] | None = None) -> Completion:
        work = self._model.ask(messages, tools)
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def __call__(self, text: str) -> str:
        return self.ask(text).text


@dataclass(frozen=True, slots=True)
class FunctionAgent:
    """Calls the function once a try. Its answer is a text, or an object with `answer`."""

    call: Callable[..., Any]
    sampling: Sampling
    instructions: str = ""  # for requests without a system message of their own

    async def attempt(self, job: Job, policy: Policy, on_text: OnText | None = None) -> Attempt:
        guided = GuidedTry(policy, self.sampling, job.guidance, self.instructions, on_text)
        model = Model(guided)
        try:
            if inspect.iscoroutinefunction(self.call):
                made = await self.call(job.problem, model)
            else:
                blocking = BlockingModel(model, asyncio.get_running_loop())
                made = await asyncio.to_thread(self.call, job.problem, blocking)
        finally:
            guided.end("the try has ended")  # a thread cannot be stopped, its calls can
            if guided.fatal is not None:
                raise guided.fatal
        answer = getattr(made, "answer", made)
        text = "" if answer is None else str(answer).strip()
        error = None if text else "empty: the function returned no answer"
        return guided.attempt(job.problem.question, text, error, {})


def _as_messages(asked: Asked) -> tuple[Message, ...]:
    if isinstance(asked, str):
        return (Message("user", asked),)
    return tuple(m if isinstance(m, Message) else Message(**m) for m in asked)
