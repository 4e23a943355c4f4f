"""What a span says, by the names of the GenAI conventions and of OpenInference.

Both are written, since collectors know the one or the other. Names of our own begin with `studio.`.
Sources: OpenTelemetry semantic conventions (`gen_ai.*`), OpenInference 0.1 (`llm.*`, `tool.*`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, Protocol

from engines.core.types import CallKey, Completion, Message, Sampling, Usage, Verdict

Value = str | bool | int | float | Sequence[str] | Sequence[float]
Attributes = dict[str, Value]
Kind = Literal["CHAIN", "AGENT", "LLM", "TOOL", "EVALUATOR", "EMBEDDING"]
LONGEST_TEXT = 20_000
"""Characters of a text of a span; collectors refuse requests of several megabytes."""


class Reply(Protocol):
    """One recorded reply, of a model or a tool; see `engines.record.ledger.Record`."""

    @property
    def key(self) -> CallKey: ...
    @property
    def policy(self) -> str: ...
    @property
    def base(self) -> int: ...
    @property
    def messages(self) -> tuple[Message, ...]: ...
    @property
    def sampling(self) -> Sampling: ...
    @property
    def reply(self) -> Completion: ...
    @property
    def elapsed_s(self) -> float: ...
    @property
    def at(self) -> float: ...
    @property
    def is_tool_result(self) -> bool: ...
    def extend(self, messages: tuple[Message, ...]) -> tuple[Message, ...]: ...


def kind_of(kind: Kind) -> Attributes:
    return {"openinference.span.kind": kind}


def text_values(**texts: str | None) -> Attributes:
    """`input.value` and `output.value`, as far as there is something."""
    return {f"{name}.value": shorten(text) for name, text in texts.items() if text}


def shorten(text: str) -> str:
    """A long text without its middle, which is least missed."""
    if len(text) <= LONGEST_TEXT:
        return text
    half = LONGEST_TEXT // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half} characters left out …]\n{text[-half:]}"


def usage_values(usage: Usage) -> Attributes:
    """Of one call; Phoenix adds the tokens of its spans of models up itself."""
    found: Attributes = {
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.output_tokens": usage.completion_tokens,
        "llm.token_count.prompt": usage.prompt_tokens,
        "llm.token_count.completion": usage.completion_tokens,
        "llm.token_count.total": usage.tokens,
    }
    if usage.cost_usd is not None:
        found["llm.cost.total"] = usage.cost_usd
    return found


def spent_values(usage: Usage) -> Attributes:
    """What several calls have cost: not by the names of one call, or it would count twice."""
    found: Attributes = {"studio.calls": usage.calls, "studio.tokens": usage.tokens}
    return found if usage.cost_usd is None else {**found, "studio.cost_usd": usage.cost_usd}


def model_call(record: Reply, before: tuple[Message, ...], content: bool) -> Attributes:
    """A reply of a model to the messages `before` it."""
    sampling, reply = record.sampling, record.reply
    provider, _, model = record.policy.partition(":")
    drawn: dict[str, float | int | list[str] | None] = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_tokens": sampling.max_tokens,
        "seed": sampling.seed,
        "stop_sequences": list(sampling.stop) or None,
    }
    given: Attributes = {name: value for name, value in drawn.items() if value is not None}
    found: Attributes = {
        **kind_of("LLM"),
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": provider,
        "gen_ai.request.model": model or provider,
        "gen_ai.response.model": reply.model or model or provider,
        "gen_ai.response.finish_reasons": [reply.finish],
        "llm.model_name": reply.model or model or provider,
        "llm.provider": provider,
        "llm.finish_reason": reply.finish,
        "llm.invocation_parameters": json.dumps(given),
        **{f"gen_ai.request.{name}": value for name, value in given.items()},
        **usage_values(reply.usage),
    }
    if content:
        said = reply.as_message()
        found |= _messages("llm.input_messages", before) | _messages("llm.output_messages", [said])
        found["gen_ai.input.messages"] = json.dumps([_parts(one) for one in before])
        ended = {**_parts(said), "finish_reason": reply.finish}
        found["gen_ai.output.messages"] = json.dumps([ended])
        found |= text_values(input=before[-1].content if before else None, output=reply.text)
        if sampling.tools:
            defined = [{"type": "function", **tool} for tool in sampling.tools]
            found["gen_ai.tool.definitions"] = json.dumps(defined)
            for at, schema in enumerate(function_tools(sampling.tools)):
                found[f"llm.tools.{at}.tool.json_schema"] = json.dumps(schema)
    return found


def function_tools(tools: Iterable[Mapping[str, object]]) -> list[dict[str, object]]:
    """Tools as chat APIs define them."""
    return [{"type": "function", "function": dict(tool)} for tool in tools]


def tool_call(record: Reply, arguments: str, content: bool) -> Attributes:
    call = record.reply.tool_calls[0]
    found: Attributes = {
        **kind_of("TOOL"),
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": call.name,
        "gen_ai.tool.call.id": call.id,
        "gen_ai.tool.type": "function",
        "tool.name": call.name,
        "tool.id": call.id,
        "studio.tool.status": record.reply.finish,
        **(spent_values(record.reply.usage) if record.reply.usage.calls else {}),
    }
    if content:
        found["gen_ai.tool.call.arguments"] = found["tool.parameters"] = shorten(arguments)
        found["gen_ai.tool.call.result"] = shorten(record.reply.text)
        found |= text_values(input=arguments, output=record.reply.text)
    return found


def verdict_values(verdict: Verdict, content: bool) -> Attributes:
    found: Attributes = {
        **kind_of("EVALUATOR"),
        "gen_ai.evaluation.name": "reward",
        **{f"studio.metrics.{name}": value for name, value in verdict.metrics.items()},
    }
    if verdict.reward is not None:
        found["gen_ai.evaluation.score.value"] = found["studio.reward"] = verdict.reward
        found |= {"evaluation.name": "reward", "evaluation.score": verdict.reward}
    if content and verdict.critique:
        found["gen_ai.evaluation.explanation"] = shorten(verdict.critique)
        found |= text_values(output=verdict.critique)
    return found


def _messages(prefix: str, messages: Iterable[Message]) -> Attributes:
    """As OpenInference has them: `llm.input_messages.0.message.role`."""
    found: Attributes = {}
    for at, one in enumerate(messages):
        place = f"{prefix}.{at}.message"
        found[f"{place}.role"] = one.role
        found[f"{place}.content"] = shorten(one.content)
        if one.speaker:
            found[f"{place}.name"] = one.speaker
        if one.tool_call_id:
            found[f"{place}.tool_call_id"] = one.tool_call_id
        for number, call in enumerate(one.tool_calls):
            inner = f"{place}.tool_calls.{number}.tool_call"
            found[f"{inner}.id"] = call.id
            found[f"{inner}.function.name"] = call.name
            found[f"{inner}.function.arguments"] = shorten(call.arguments)
    return found


def _parts(message: Message) -> Mapping[str, object]:
    """As the GenAI conventions have it: a role, and parts of several types."""
    parts: list[dict[str, object]] = []
    if message.reasoning:
        parts.append({"type": "reasoning", "content": shorten(message.reasoning)})
    if message.role == "tool":
        response = shorten(message.content)
        parts.append(
            {"type": "tool_call_response", "id": message.tool_call_id, "response": response}
        )
    elif message.content:
        parts.append({"type": "text", "content": shorten(message.content)})
    for call in message.tool_calls:
        arguments = shorten(call.arguments)
        parts.append(
            {"type": "tool_call", "id": call.id, "name": call.name, "arguments": arguments}
        )
    named = {"name": message.speaker} if message.speaker else {}
    return {"role": message.role, **named, "parts": parts}
