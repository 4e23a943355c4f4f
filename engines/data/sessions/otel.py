"""OpenTelemetry: spans of models in OTLP JSON, one export a file or one a line.

Messages are found as the GenAI conventions have them (`gen_ai.input.messages`), as OpenInference
does (`llm.input_messages.0.message.role`), and flat as `gen_ai.prompt.0.role`. Every call repeats
the conversation so far: each message is taken once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engines.core.ids import digest
from engines.data.sessions.steps import (
    Intake,
    Session,
    Step,
    as_object,
    chat_steps,
    exit_failed,
    objects,
    parse_json,
    text_of,
)

_IN = (("llm.input_messages.", "message"), ("gen_ai.prompt.", ""))
_OUT = (("llm.output_messages.", "message"), ("gen_ai.completion.", ""))


def read(path: Path, intake: Intake) -> Iterator[Session]:
    exports = intake.read_lines(path) if path.suffix == ".jsonl" else [intake.read_whole(path)]
    spans = [_Span(span) for export in exports for span in _spans(as_object(export))]
    spans.sort(key=lambda span: span.start)
    by_id = {span.id: span for span in spans}
    for span in spans:
        span.count_agents(by_id)
    calls: dict[str, list[_Span]] = defaultdict(list)
    for span in spans:
        if span.messages(intake):
            calls[span.session].append(span)
        else:
            intake.drop("spans without messages")
    for name, found in calls.items():
        main = min(span.agents for span in found)
        session = Session(name)
        session.steps = _steps([span for span in found if span.agents == main], intake)
        inner = (span.agent for span in found if span.agents > main)
        session.subagents += dict.fromkeys(inner)
        for span in spans:
            if span.session == name and span.score is not None:
                session.score, session.score_name = span.score, "evaluation result"
        yield session


def _spans(export: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for resource in objects(export.get("resourceSpans")):
        for scope in objects(resource.get("scopeSpans")):
            yield from objects(scope.get("spans"))


class _Span:
    def __init__(self, span: dict[str, Any]) -> None:
        self._attributes = _values(span.get("attributes"))
        self.id, self._parent = str(span.get("spanId")), str(span.get("parentSpanId") or "")
        self.start = int(str(span.get("startTimeUnixNano") or 0))
        self.status = as_object(span.get("status"))
        self.score: float | None = None
        for event in objects(span.get("events")):
            told = _values(event.get("attributes"))
            score = told.get("gen_ai.evaluation.score.value")
            if isinstance(score, int | float):
                self.score = float(score)
            self._attributes = {**told, **self._attributes}
        of = self._attributes
        own = of.get("gen_ai.conversation.id") or of.get("session.id")
        self.session = str(own or span.get("traceId") or "unknown")
        self.model = str(of.get("gen_ai.request.model") or of.get("llm.model_name") or "")
        self.is_agent = of.get("gen_ai.operation.name") == "invoke_agent"
        self.is_agent = self.is_agent or of.get("openinference.span.kind") == "AGENT"
        self._name = str(of.get("gen_ai.agent.name") or "sub-agent")
        self.agent = ""  # the innermost that it runs within
        self.agents = 0  # it runs within
        self._messages: list[dict[str, Any]] | None = None

    def count_agents(self, spans: dict[str, _Span]) -> None:
        above, met = spans.get(self._parent), {self.id}
        while above is not None and above.id not in met:
            met.add(above.id)
            if above.is_agent:
                self.agent = self.agent or above._name
                self.agents += 1
            above = spans.get(above._parent)

    def messages(self, intake: Intake) -> list[dict[str, Any]]:
        """What went in and then what came out; an agent's own span only repeats its calls'."""
        if self._messages is None:
            both = (("gen_ai.input.messages", _IN), ("gen_ai.output.messages", _OUT))
            self._messages = [] if self.is_agent else [m for one in both for m in self._side(*one)]
        return self._messages

    def _side(self, name: str, flat: tuple[tuple[str, str], ...]) -> list[dict[str, Any]]:
        told = self._attributes.get(name)
        if told is not None:
            return objects(parse_json(told) if isinstance(told, str) else told)
        for prefix, inner in flat:
            found = [
                one.get(inner, one) if inner else one
                for one in _unflatten(self._attributes, prefix)
            ]
            if found:
                return objects(found)
        return []


def _steps(spans: list[_Span], intake: Intake) -> Iterator[Step]:
    seen: set[str] = set()
    for span in spans:
        for message in span.messages(intake):
            if (
                key := digest({k: v for k, v in message.items() if k != "finish_reason"})
            ) not in seen:
                seen.add(key)
                yield from _message_steps(message, intake, span.model)
        if span.status.get("code") in (2, "STATUS_CODE_ERROR"):
            yield Step("error", str(span.status.get("message") or ""))


def _message_steps(message: dict[str, Any], intake: Intake, model: str) -> Iterator[Step]:
    if not isinstance(message.get("parts"), list):
        calls = [call.get("tool_call", call) for call in objects(message.get("tool_calls"))]
        contents = [one.get("message_content", one) for one in objects(message.get("contents"))]
        content = message.get("content") or contents or None
        yield from chat_steps({**message, "content": content, "tool_calls": calls}, intake, model)
        return
    for part in objects(message["parts"]):
        name, call = str(part.get("name") or ""), str(part.get("id") or "")
        match part.get("type"):
            case "text" if message.get("role") in ("user", "assistant"):
                kind = "user" if message["role"] == "user" else "assistant"
                yield Step(kind, str(part.get("content") or ""), model=model)
            case "tool_call":
                yield Step("call", name=name, id=call, arguments=part.get("arguments"))
            case "tool_call_response":
                text = text_of(part.get("response", part.get("result")), intake)
                yield Step("result", text, id=call, failed=exit_failed(text))
            case other if message.get("role") != "system":
                intake.drop_kind(other)


def _values(attributes: Any) -> dict[str, Any]:
    return {str(one.get("key")): _value(one.get("value")) for one in objects(attributes)}


def _value(value: Any) -> Any:
    """An AnyValue of OTLP, whose whole numbers are texts in JSON."""
    for kind, inner in as_object(value).items():
        if kind == "arrayValue":
            return [_value(one) for one in objects(as_object(inner).get("values"))]
        if kind == "kvlistValue":
            return _values(as_object(inner).get("values"))
        return int(inner) if kind == "intValue" and str(inner).lstrip("-").isdigit() else inner
    return None


def _unflatten(attributes: dict[str, Any], prefix: str) -> list[Any]:
    """The list that stands in keys such as `PREFIX0.message.role`, with what is inside it."""
    tree: dict[str, Any] = {}
    for key, value in attributes.items():
        if key.startswith(prefix):
            *path, last = key.removeprefix(prefix).split(".")
            node = tree
            for name in path:
                inner = node.setdefault(name, {})
                node = inner if isinstance(inner, dict) else node
            node[last] = value
    found = _as_lists(tree)
    return found if isinstance(found, list) else []


def _as_lists(tree: Any) -> Any:
    if not isinstance(tree, dict):
        return tree
    inner = {key: _as_lists(value) for key, value in tree.items()}
    if inner and all(key.isdigit() for key in inner):
        return [inner[key] for key in sorted(inner, key=int)]
    return inner
