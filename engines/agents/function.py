"""A function of the user's own as the agent: `async (problem, model) -> answer`.

Or a workflow of AgentScope's tuner, `async (task, model)`, whose other models are never trained. It
runs in this process, with all that this process may; `command` agents have boxes.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from types import SimpleNamespace
from typing import Any

from engines.agents import agentscope_classes, guided_try, loops, open
from engines.core import chat_protocol, codec, errors, protocols, user_code
from engines.core.frozen import frozen
from engines.core.types import Attempt, Completion, Job, Message, Problem, Sampling

Asked = str | Sequence[Message | codec.JsonMapping]


@frozen
class Model:
    """What the function is given: the policy, with the library in front of what it asks.

    Calls are recorded and paid for once; made at the same time, they wait for each other.
    """

    guided: guided_try.GuidedTry

    async def ask(
        self, messages: Asked, tools: Sequence[codec.JsonMapping] | None = None
    ) -> Completion:
        """The reply to a text, or to messages: {"role": …, "content": …} or `Message`."""
        return await self.guided.ask(_as_messages(messages), tools=tools or ())

    async def __call__(self, text: str) -> str:
        return (await self.ask(text)).text


@frozen
class BlockingModel:
    """The same for a function that is not async, which runs in a thread."""

    model: Model
    loop: asyncio.AbstractEventLoop

    def ask(self, messages: Asked, tools: Sequence[codec.JsonMapping] | None = None) -> Completion:
        work = self.model.ask(messages, tools)
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    def __call__(self, text: str) -> str:
        return self.ask(text).text


@frozen
class FunctionAgent:
    """Calls the function once a try. Its answer is a text, or an object with `answer`.

    Such an object may have `metrics`, too, by name.
    """

    call: Callable[..., Any]
    sampling: Sampling
    instructions: str = ""  # for requests without a system message of their own

    async def attempt(
        self, job: Job, policy: protocols.Policy, on_text: protocols.OnText | None = None
    ) -> Attempt:
        guided = guided_try.GuidedTry(
            policy, self.sampling, job.guidance, self.instructions, on_text
        )
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
        metrics = getattr(made, "metrics", None) or {}
        return guided.attempt(job.problem.asked, text, error, metrics)


def open_function(needs: open.AgentNeeds) -> FunctionAgent:
    settings = needs.settings
    call = as_function(user_code.load_function("agent.function", settings.function), needs.models)
    return FunctionAgent(call, needs.sampling, settings.instructions)


def _as_messages(asked: Asked) -> tuple[Message, ...]:
    if isinstance(asked, str):
        return (Message("user", asked),)
    return tuple(m if isinstance(m, Message) else Message(**m) for m in asked)


WORKFLOW = ("task", "model", "auxiliary_models")
PROMPT_WORKFLOW = ("task", "system_prompt")
"""Parameters of a workflow, and of one whose system prompt is tuned."""
current_try: ContextVar[guided_try.GuidedTry] = ContextVar("current_try")
"""In which models are asked that a workflow has opened itself."""


def check_parameters(call: Callable[..., Any], supported: Sequence[str]) -> None:
    """Raises ConfigError: it is not async, lacks one of the first two, or has another parameter."""
    place, move = getattr(call, "__name__", "function"), f"Supported: {', '.join(supported)}."
    if not inspect.iscoroutinefunction(call):
        raise errors.ConfigError(place, "it is not async.", "Write it as async def.")
    parameters = inspect.signature(call).parameters
    if unknown := [str(one) for one in parameters.values() if one.name not in supported]:
        raise errors.ConfigError(place, f'its parameter "{unknown[0]}" is not supported.', move)
    if missing := [name for name in supported[:2] if name not in parameters]:
        raise errors.ConfigError(place, f'it has no parameter "{missing[0]}".', move)


class ChatModel:
    """A model as workflows call it: messages of any form in, blocks of text and calls out."""

    stream = False

    def __init__(self, model_name: str, ask: Callable[..., Awaitable[Completion]]) -> None:
        """`ask` takes messages and `tools`."""
        self.model_name, self._ask = model_name, ask

    async def __call__(
        self, messages: Any, tools: Sequence[codec.JsonMapping] | None = None, *_: Any, **__: Any
    ) -> agentscope_classes.Msg:
        given = messages if isinstance(messages, list | tuple) else [messages]
        offered = [tool.get("function", tool) for tool in tools or ()]
        reply = await self._ask([_read_message(one) for one in given], tools=offered)
        calls = [
            {
                "type": "tool_use",
                "id": call.id,
                "name": call.name,
                "input": chat_protocol.arguments_object(call.arguments),
            }
            for call in reply.tool_calls
        ]
        return agentscope_classes.Msg(
            self.model_name, [agentscope_classes.TextBlock(text=reply.text), *calls], "assistant"
        )


def as_function(
    call: Callable[..., Any], models: Mapping[str, tuple[protocols.Policy, Sampling]]
) -> Callable[[Problem, Model], Awaitable[SimpleNamespace]]:
    """A workflow as `engines.agents.function` calls one, others as they are.

    `models` are the auxiliary ones. What reward it gives is the metric `reward` of the try.
    """
    form = inspect.signature(call).parameters
    first = [*form][:2]
    forms = [one for one in (WORKFLOW, PROMPT_WORKFLOW) if first == [*one[:2]]]
    if not forms:
        return call
    check_parameters(call, forms[0])

    async def solve(problem: Problem, model: Model) -> SimpleNamespace:
        guided = model.guided
        system = loops.system_messages(guided.instructions, guided.guidance)
        usual = {"question": problem.asked, "answer": problem.answer}
        others = {name: ChatModel(name, partial(guided.ask, by=by)) for name, by in models.items()}
        offered = {
            "task": {**usual, "ground_truth": problem.answer, **problem.meta},
            "model": ChatModel(guided.policy.name, guided.ask),
            "auxiliary_models": others,
            "system_prompt": system[0].content if system else "",
        }
        current_try.set(guided)
        made = await call(**{name: offered[name] for name in form})
        reward, response = getattr(made, "reward", None), getattr(made, "response", made)
        if hasattr(response, "get_text_content"):
            response = response.get_text_content()
        if response is None and reward is not None and guided.last is not None:
            response = guided.last.text
        metrics = dict(getattr(made, "metrics", None) or {})
        metrics |= {} if reward is None else {"reward": float(reward)}
        return SimpleNamespace(answer=response, metrics=metrics)

    return solve


def _read_message(given: Any) -> Message:
    """A message of any form; the calls of tools are those of OpenAI's protocol."""
    (plain,) = agentscope_classes.to_chat_messages(given)
    return chat_protocol.parse_message({**(given if isinstance(given, Mapping) else {}), **plain})
