"""A rollout as a document of ATIF, the trajectories of Harbor and others.

Its reader is `engines.data.sessions.formats`. A step is a message; the results of a tool stand with
the step that calls it. What a member of a team says is a step of the agent, its name in `extra`.
Source: Harbor RFC 0001, version 1.7.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import orjson

from engines.core.codec import fields_of
from engines.core.events import RolloutFinished
from engines.core.types import Message, ToolCall, Usage, Verdict
from engines.tracing.spans import Reply, function_tools

VERSION = "ATIF-v1.7"


def write_trajectory(
    *,
    run: str,
    name: str,
    agent: Mapping[str, str],
    rollout: RolloutFinished,
    verdict: Verdict | None,
    records: Iterable[Reply],
) -> dict[str, Any]:
    """The document as JSON values; `name` is the rollout's, `agent` has a name and a version."""
    steps = _Steps()
    for record in records:
        steps.take(record)
    usage, reward = rollout.usage, verdict.reward if verdict else None
    judged: dict[str, Any] = {}
    if verdict is not None:
        judged = {"critique": verdict.critique, "verdict_error": verdict.error}
        judged["metrics"] = dict(verdict.metrics)
    tried = fields_of(rollout, "step", "position", "index", "status", "seed", "error")
    return _given(
        schema_version=VERSION,
        session_id=run,
        trajectory_id=f"{run}/{name}",
        agent=_given(
            **agent,
            model_name=steps.model or None,
            tool_definitions=function_tools(steps.tools) or None,
        ),
        steps=steps.found,
        final_metrics=_given(
            total_prompt_tokens=usage.prompt_tokens,
            total_completion_tokens=usage.completion_tokens,
            total_cost_usd=usage.cost_usd,
            total_steps=len(steps.found),
            extra=_given(reward=reward, elapsed_s=rollout.elapsed_s),
        ),
        extra=_given(**tried, **judged),
    )


class _Steps:
    """The steps of a try, put together record by record."""

    def __init__(self) -> None:
        self.found: list[dict[str, Any]] = []
        self.model = ""
        self.tools: tuple[Mapping[str, Any], ...] = ()

    def take(self, record: Reply) -> None:
        reply = record.reply
        if record.is_tool_result:
            extra = {"status": reply.finish, "elapsed_s": record.elapsed_s}
            if reply.usage.calls:  # of models that the tool asked
                extra["metrics"] = _metrics(reply.usage)
            self._add_result(reply.tool_calls[0].id, reply.text, extra)
            return
        self.model = self.model or record.policy
        self.tools = self.tools or record.sampling.tools
        for message in record.messages:
            self._add_message(message)
        self._add(
            "agent",
            reply.text,
            timestamp=datetime.fromtimestamp(record.at, UTC).isoformat(),
            model_name=record.policy,
            reasoning_content=reply.reasoning or None,
            tool_calls=[_call(call) for call in reply.tool_calls] or None,
            metrics=_given(
                **_metrics(reply.usage),
                prompt_token_ids=list(reply.prompt_ids) or None,
                completion_token_ids=list(reply.token_ids) or None,
                logprobs=list(reply.logprobs) or None,
            ),
            llm_call_count=1,
            extra=_given(finish_reason=reply.finish, speaker=reply.speaker or None),
        )

    def _add_message(self, message: Message) -> None:
        """One that was there before the reply: of the problem, of a talk, or said again."""
        if message.role == "tool":
            self._add_result(message.tool_call_id, message.content, {})
        elif message.role == "assistant":
            calls = [_call(call) for call in message.tool_calls] or None
            self._add("agent", message.content, tool_calls=calls, is_copied_context=True)
        else:
            self._add(message.role, message.content)

    def _add_result(self, call: str, text: str, extra: dict[str, Any]) -> None:
        result = _given(content=text, extra=extra or None)
        for step in reversed(self.found):
            if any(one["tool_call_id"] == call for one in step.get("tool_calls", ())):
                results = step.setdefault("observation", {"results": []})["results"]
                if all(one["source_call_id"] != call for one in results):
                    results.append({"source_call_id": call, **result})
                return
        self._add("system", "", observation={"results": [result]})

    def _add(self, source: str, message: str, **more: object) -> None:
        number = len(self.found) + 1
        self.found.append(_given(step_id=number, source=source, message=message, **more))


def _call(call: ToolCall) -> dict[str, Any]:
    try:
        arguments = orjson.loads(call.arguments or "{}")
    except ValueError:
        arguments = None
    if isinstance(arguments, dict):
        return {"tool_call_id": call.id, "function_name": call.name, "arguments": arguments}
    extra = {"unread": True}  # the model wrote something that is no JSON object
    told = {"tool_call_id": call.id, "function_name": call.name}
    return {**told, "arguments": {"text": call.arguments}, "extra": extra}


def _metrics(usage: Usage) -> dict[str, Any]:
    prompt, completion = usage.prompt_tokens, usage.completion_tokens
    return _given(prompt_tokens=prompt, completion_tokens=completion, cost_usd=usage.cost_usd)


def _given(**fields: Any) -> dict[str, Any]:
    """The fields that have a value."""
    return {name: value for name, value in fields.items() if value is not None}
