"""OpenTelemetry: spans of models in OTLP JSON, one export a file or one a line.

Messages are found as the GenAI conventions have them (`gen_ai.input.messages`), as OpenInference
does (`llm.input_messages.0.message.role`), and flat as `gen_ai.prompt.0.role`. Every call repeats
the conversation so far: each message is taken once.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engines.data.sessions.steps import (
    Intake,
    Session,
    Step,
    as_object,
    call_step,
    chat_steps,
    objects,
    parse_json,
    result_step,
)

_SIDES = (
    ("gen_ai.input.messages", "llm.input_messages.", "gen_ai.prompt."),
    ("gen_ai.output.messages", "llm.output_messages.", "gen_ai.completion."),
)


def read(path: Path, intake: Intake) -> Iterator[Session]:
    exports = intake.read_lines(path) if path.suffix == ".jsonl" else [intake.read_whole(path)]
    spans = [
        _Span(span)
        for export in exports
        for resource in objects(as_object(export).get("resourceSpans"))
        for scope in objects(resource.get("scopeSpans"))
        for span in objects(scope.get("spans"))
    ]
    by_id = {span.id: span for span in spans}
    sessions: dict[str, list[_Span]] = {}
    for span in sorted(spans, key=lambda span: span.start):
        span.find_agents(by_id)
        sessions.setdefault(span.session, []).append(span)
    for name, found in sessions.items():
        calls = [span for span in found if span.messages]
        intake.drop("spans without messages", len(found) - len(calls))
        if calls:
            main = min(len(span.agents) for span in calls)
            own = [span for span in calls if len(span.agents) == main]
            inner = dict.fromkeys(span.agents[0] for span in calls if len(span.agents) > main)
            score = next((span.score for span in found if span.score is not None), None)
            steps = _steps(own, intake)
            yield Session(name, steps, subagents=[*inner], score=score, score_name="evaluation")


class _Span:
    def __init__(self, span: dict[str, Any]) -> None:
        of: dict[str, Any] = {}
        for event in objects(span.get("events")):
            of |= _values(event.get("attributes"))
        of |= _values(span.get("attributes"))
        self.id, self._parent = str(span.get("spanId")), str(span.get("parentSpanId") or "")
        began = str(span.get("startTimeUnixNano"))
        self.start = int(began) if began.isdecimal() else 0
        self.status = as_object(span.get("status"))
        score = of.get("gen_ai.evaluation.score.value")
        self.score = float(score) if isinstance(score, int | float) else None
        own = of.get("gen_ai.conversation.id") or of.get("session.id")
        self.session = str(own or span.get("traceId") or "unknown")
        self.model = str(of.get("gen_ai.request.model") or of.get("llm.model_name") or "")
        self._is_agent = of.get("gen_ai.operation.name") == "invoke_agent"
        self._is_agent = self._is_agent or of.get("openinference.span.kind") == "AGENT"
        self._name = str(of.get("gen_ai.agent.name") or "sub-agent")
        self.agents: list[str] = []  # it runs within, the innermost first
        # What went in, then what came out; an agent's own span only repeats its calls'.
        sides = () if self._is_agent else _SIDES
        self.messages = [one for side in sides for one in _side_messages(of, *side)]

    def find_agents(self, spans: "dict[str, _Span]") -> None:
        above, met = spans.get(self._parent), {self.id}
        while above is not None and above.id not in met:
            met.add(above.id)
            self.agents += [above._name] if above._is_agent else []
            above = spans.get(above._parent)


def _side_messages(of: dict[str, Any], whole: str, *flat: str) -> list[dict[str, Any]]:
    if (told := of.get(whole)) is not None:
        return objects(parse_json(told) if isinstance(told, str) else told)
    found = [one for prefix in flat for one in _unflatten(of, prefix)]
    return objects([one.get("message", one) for one in objects(found)])


def _steps(spans: list[_Span], intake: Intake) -> Iterator[Step]:
    seen: set[int] = set()
    for span in spans:
        for message in span.messages:
            told = {name: v for name, v in message.items() if name != "finish_reason"}
            key = hash(json.dumps(told, sort_keys=True))
            if key not in seen:
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
        if part.get("type") == "tool_call":
            yield call_step(part.get("name"), part.get("id"), part.get("arguments"))
        elif part.get("type") == "tool_call_response":
            text = intake.text_of(part.get("response", part.get("result")))
            yield result_step(text, part.get("id"))
        elif part.get("type") == "text":
            yield from chat_steps({**message, "content": part.get("content")}, intake, model)
        else:
            intake.drop_kind(part)


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
