"""What a span says, by the names of the GenAI conventions and of OpenInference.

Both are written, since collectors know the one or the other; texts by the names of OpenInference
alone. Names of our own begin with `studio.`.
Sources: OpenTelemetry semantic conventions (`gen_ai.*`), OpenInference 0.1 (`llm.*`, `tool.*`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Literal

from engines.core import events as ev
from engines.core.frozen import frozen
from engines.core.types import (
    Decision,
    Lesson,
    Message,
    Operation,
    RecordRef,
    Usage,
    Verdict,
    group_id,
    operation_step,
    rollout_id,
    update_id,
)
from engines.policies.chat.exchange import function_tools
from engines.record.journal import Entry
from engines.record.ledger import Record

Value = str | bool | int | float | Sequence[str] | Sequence[float]
Attributes = dict[str, Value]
Kind = Literal["CHAIN", "AGENT", "LLM", "TOOL", "EVALUATOR", "EMBEDDING"]
_TALK = "gen_ai.conversation.id"
LONGEST_TEXT = 20_000
"""Characters of a text of a span; collectors refuse requests of several megabytes."""


def text_values(**texts: str | None) -> Attributes:
    """`input.value` and `output.value`, as far as there is something."""
    return {f"{name}.value": shorten(text) for name, text in texts.items() if text}


def shorten(text: str) -> str:
    """A long text without its middle, which is least missed."""
    if len(text) <= LONGEST_TEXT:
        return text
    half = LONGEST_TEXT // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half} characters left out …]\n{text[-half:]}"


def spent_values(usage: Usage) -> Attributes:
    """What several calls have cost: not by the names of one call, or it would count twice."""
    found: Attributes = {"studio.calls": usage.calls, "studio.tokens": usage.tokens}
    return found if usage.cost_usd is None else {**found, "studio.cost_usd": usage.cost_usd}


def model_call(record: Record, before: tuple[Message, ...], content: bool) -> Attributes:
    """A reply of a model to the messages `before` it."""
    sampling, reply, usage = record.sampling, record.reply, record.reply.usage
    provider, _, model = record.policy.partition(":")
    names = ("temperature", "top_p", "max_tokens", "seed")
    given: Attributes = {
        name: value for name in names if (value := getattr(sampling, name)) is not None
    }
    if sampling.stop:
        given["stop_sequences"] = list(sampling.stop)
    found: Attributes = {
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
        # Of one call; Phoenix adds the tokens of its spans of models up itself.
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.output_tokens": usage.completion_tokens,
        "llm.token_count.prompt": usage.prompt_tokens,
        "llm.token_count.completion": usage.completion_tokens,
        "llm.token_count.total": usage.tokens,
    }
    if usage.cost_usd is not None:
        found["llm.cost.total"] = usage.cost_usd
    if content:
        said = reply.as_message()
        found |= _messages("llm.input_messages", before) | _messages("llm.output_messages", [said])
        found |= text_values(input=before[-1].content if before else None, output=reply.text)
        for at, schema in enumerate(function_tools(sampling.tools) or ()):
            found[f"llm.tools.{at}.tool.json_schema"] = json.dumps(schema)
    return found


def tool_call(record: Record, before: tuple[Message, ...], content: bool) -> Attributes:
    call = record.reply.tool_calls[0]
    asked = [one for message in before for one in message.tool_calls if one.id == call.id]
    values: Attributes = {
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
        arguments = asked[0].arguments if asked else ""
        values["tool.parameters"] = shorten(arguments)
        values |= text_values(input=arguments, output=record.reply.text)
    return values


def verdict_values(verdict: Verdict, content: bool) -> Attributes:
    found: Attributes = {
        "gen_ai.evaluation.name": "reward",
        **{f"studio.metrics.{name}": value for name, value in verdict.metrics.items()},
    }
    if verdict.reward is not None:
        found["gen_ai.evaluation.score.value"] = found["studio.reward"] = verdict.reward
    if content and verdict.critique:
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


ReadReply = Callable[[RecordRef], Record]


@frozen
class Span:
    """One thing that happened, from `start` to `end` in seconds since the epoch."""

    name: str
    trace: int
    id: int
    parent: int | None
    start: float
    end: float
    attributes: Mapping[str, Value] = field(default_factory=dict)
    error: str | None = None  # None: it went well; "" where its text is left out


@dataclass(slots=True)
class _StepFacts:
    """What is known of the step under way."""

    began: float | None = None
    groups: dict[int, float] = field(default_factory=dict)  # position → when its first try began
    tries: Counter[tuple[int, int]] = field(default_factory=Counter)
    ended: dict[tuple[int, int], float] = field(default_factory=dict)
    rewards: dict[tuple[int, int], float | None] = field(default_factory=dict)
    outcomes: Counter[str] = field(default_factory=Counter)
    seen: set[str] = field(default_factory=set)  # records that have a span


class SpanMapper:
    """Makes spans of the entries of one journal, in their order."""

    def __init__(self, read: ReadReply, *, content: bool = True) -> None:
        """`read` fetches a recorded reply; without `content` no text of anybody is in a span."""
        self._read, self._content = read, content
        self._started: ev.RunStarted | None = None
        self._began = self._before = self._at = 0.0  # of the run, the entry before and this one
        self._trace = 0
        self._ended = False
        self._step = _StepFacts()

    def take(self, entry: Entry) -> Iterator[Span]:
        """Yield the spans that end with an entry of the journal."""
        at, event = entry.at, entry.event
        self._before, self._at = self._at or at, at
        own = f"e{entry.seq}"
        match event:
            case ev.RunStarted():
                self._started, self._began = event, at
                digest = blake2b(f"{event.run} of {at:.3f}".encode(), digest_size=16).digest()
                self._trace = int.from_bytes(digest, "big")
            case ev.RunEnded():
                yield from self._run(event)
            case ev.StepStarted():
                self._step = _StepFacts(began=at)
            case ev.StepFinished():
                yield self._finished_step(event)
            case ev.RolloutFinished():
                yield from self._rollout(event)
            case ev.RolloutJudged():
                yield from self._verdict(event)
            case ev.GroupReflected():
                yield from self._group(event)
            case ev.LessonProposed():
                yield from self._lesson(f"lesson {event.step}", event.step, event.lesson)
                # Those of a draft that was not chosen are no one's.
                for operation in event.lesson.operations:
                    yield self._operation(operation, f"lesson {event.step}")
            case ev.LessonsCompared():
                for number, draft in enumerate(event.drafts):
                    refs = [ref for reflection in draft.reflections for ref in reflection.refs]
                    name = f"draft {event.step}.{number}"
                    yield from self._lesson(name, event.step, draft.lesson, refs)
            case ev.EffectMeasured():
                values: Attributes = {
                    "studio.step": event.step,
                    "studio.operations": list(event.operations),
                    "studio.verdict": event.effect.verdict,
                    "studio.error": event.error,
                }
                name, parent = f"gate {', '.join(event.operations)}", _step_name(event.step)
                yield self._span(name, own, parent, self._before, values, kind="EVALUATOR")
            case ev.OperationDecided() | ev.OperationsDecided():
                for number, decision in enumerate(event.decisions):
                    yield self._decision(f"{own}.{number}", decision)
            case ev.DecisionUndone():
                yield self._span(
                    f"undo {event.operation_id}",
                    own,
                    event.operation_id,
                    at,
                    self._texts(None, event.reason),
                )
            case ev.OperationProposed():
                yield self._operation(event.operation, f"s{event.step}")
            case ev.ReplyMended():
                for operation in event.operations:
                    yield self._operation(operation, f"s{event.step}")
            case ev.LessonCommitted() | ev.CheckpointSaved():
                values = {"studio.step": event.step, "studio.policy_version": event.policy_version}
                kind = "checkpoint"
                if isinstance(event, ev.LessonCommitted):
                    kind, values["studio.library_version"] = "commit", event.library_version
                name, parent = f"{kind} {event.step}", _step_name(event.step)
                yield self._span(name, own, parent, self._before, values)
            case ev.EvaluationFinished():
                yield self._evaluation(f"evaluation {event.data}", own, event)
            case ev.CellMeasured(result=result):
                weights = "trained" if event.trained else "first"
                library = "with" if event.with_library else "without"
                name = f"evaluation {result.data}, {weights} weights {library} library"
                yield self._evaluation(name, own, result)

    def _span(
        self,
        name: str,
        own: str,
        parent: str,
        start: float,
        attributes: Mapping[str, Value],
        *,
        kind: Kind = "CHAIN",
        error: str | None = None,
        end: float | None = None,
    ) -> Span:
        """`own` and `parent` are what ids follow from; "" is the parent of the run alone."""
        if error is not None:
            error = shorten(error) if self._content else ""
        end = self._at if end is None else end
        run = self._started.run if self._started else ""
        return Span(
            name=name,
            trace=self._trace,
            id=self._id(own),
            parent=self._id(parent) if parent else None,
            start=min(start, end),
            end=end,
            attributes={"openinference.span.kind": kind, "studio.run": run, **attributes},
            error=error,
        )

    def _id(self, name: str) -> int:
        digest = blake2b(f"{self._trace:x}/{name}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") or 1

    def _run(self, event: ev.RunEnded) -> Iterator[Span]:
        if self._ended or self._started is None:
            return
        self._ended, started = True, self._started
        values: Attributes = {
            "gen_ai.operation.name": "invoke_workflow",
            "gen_ai.workflow.name": started.exp_id,
            "studio.experiment": started.exp_id,
            "studio.seed": started.seed,
            "studio.epochs": started.epochs,
            "studio.group_size": started.group_size,
            "studio.library": started.library,
            "studio.reviewer": started.reviewer,
            "studio.rehearsal": started.rehearsal,
            "studio.forked_from": started.forked_from or "",
            "studio.ending": event.how,
            **(spent_values(event.paid) if event.paid else {}),
        }
        error = event.reason if event.how == "failed" else None
        yield self._span(f"run {started.run}", "run", "", self._began, values, error=error)

    def _finished_step(self, event: ev.StepFinished) -> Span:
        facts = self._step
        rewards = [reward for reward in facts.rewards.values() if reward is not None]
        values: Attributes = {
            "studio.step": event.step,
            "studio.epoch": event.epoch,
            "studio.rewards": len(rewards),
            **{f"studio.groups.{outcome}": n for outcome, n in facts.outcomes.items()},
        }
        if rewards:
            values["studio.reward"] = sum(rewards) / len(rewards)
        start = min([facts.began or self._at, *facts.groups.values()])
        return self._span(f"step {event.step}", f"s{event.step}", "run", start, values)

    def _rollout(self, event: ev.RolloutFinished) -> Iterator[Span]:
        place, facts = (event.position, event.index), self._step
        facts.tries[place] += 1
        name, own, values = self._try(event.step, place)
        calls, messages = self._calls(event.refs, own, {_TALK: values[_TALK]})
        start = min([self._at - event.elapsed_s, *(call.start for call in calls)])
        facts.groups[event.position] = min(start, facts.groups.get(event.position, start))
        facts.ended[place] = self._at
        question = next((one.content for one in messages if one.role == "user"), "")
        last = messages[-1] if messages else None
        answer = event.answer or (last.content if last and last.role == "assistant" else "")
        values |= {
            "gen_ai.operation.name": "invoke_agent",
            "studio.status": event.status,
            "studio.seed": event.seed,
            "studio.turns": event.turns,
            "studio.tool_calls": event.tool_calls,
            **spent_values(event.usage),
            **self._texts(question, answer),
        }
        yield from calls
        error = None if event.status != "failed" else event.error or ""
        parent = group_id(event.step, event.position)
        yield self._span(f"rollout {name}", own, parent, start, values, kind="AGENT", error=error)

    def _verdict(self, event: ev.RolloutJudged) -> Iterator[Span]:
        place, verdict = (event.position, event.index), event.verdict
        self._step.rewards[place] = verdict.reward
        name, rollout, values = self._try(event.step, place)
        own = f"{rollout}/verdict"
        calls, _ = self._calls(verdict.refs, own)
        start = min([self._step.ended.get(place, self._at), *(call.start for call in calls)])
        values |= verdict_values(verdict, self._content)
        yield from calls
        title, error = f"verdict {name}", verdict.error
        yield self._span(title, own, rollout, start, values, kind="EVALUATOR", error=error)

    def _try(self, step: int, place: tuple[int, int]) -> tuple[str, str, Attributes]:
        """Name, what its id follows from, and place of a rollout: one made again has another id."""
        name, times = rollout_id(step, *place), self._step.tries[place]
        own = f"{name}~{times}" if times > 1 else name
        run = self._started.run if self._started else ""
        position, index = place
        values: Attributes = {
            "studio.step": step,
            "studio.position": position,
            "studio.index": index,
            _TALK: f"{run}/{own}",
        }
        return name, own, values

    def _group(self, event: ev.GroupReflected) -> Iterator[Span]:
        step, position, facts = event.step, event.position, self._step
        own, reflection = group_id(step, position), event.reflection
        calls, _ = self._calls(reflection.refs, own)
        facts.outcomes[event.outcome] += 1
        start = min([facts.groups.get(position, self._at), *(call.start for call in calls)])
        rewards = sorted((i, r) for (p, i), r in facts.rewards.items() if p == position)
        proposals = "\n".join(proposal.text for proposal in reflection.proposals)
        values = {
            "studio.step": step,
            "studio.position": position,
            "studio.outcome": event.outcome,
            "studio.rewards": [reward for _, reward in rewards if reward is not None],
            "studio.proposals": len(reflection.proposals),
            **self._texts(None, proposals),
        }
        yield from calls
        yield self._span(f"group {own}", own, f"s{step}", start, values)

    def _lesson(
        self, name: str, step: int, lesson: Lesson, refs: Sequence[RecordRef] = ()
    ) -> Iterator[Span]:
        calls, _ = self._calls((*refs, *lesson.refs), name)
        start = min([self._before, *(call.start for call in calls)])
        values: Attributes = {
            "studio.step": step,
            "studio.operations": len(lesson.operations),
            "studio.withheld": len(lesson.withheld),
            "studio.lost": len(lesson.losses),
            **spent_values(lesson.usage),
        }
        yield from calls
        if (update := lesson.update) is not None:
            values |= {f"studio.metrics.{key}": float(v) for key, v in update.metrics.items()}
            values["studio.note"] = update.note
            yield self._span(f"weight update {step}", update_id(step), name, start, {**values})
        yield self._span(name, name, f"s{step}", start, values)

    def _operation(self, operation: Operation, parent: str) -> Span:
        values = {
            "studio.step": operation_step(operation.id),
            "studio.operation": operation.kind,
            "studio.target": operation.target or "",
            "studio.evidence": list(operation.evidence),
            "studio.proposer": operation.proposer,
            "studio.flags": [flag.name for flag in operation.flags],
            **self._texts(operation.rationale, operation.text),
        }
        name = f"operation {operation.id}"
        return self._span(name, operation.id, parent, self._at, values)

    def _decision(self, own: str, decision: Decision) -> Span:
        values = {
            "studio.action": decision.action,
            "studio.reviewer": decision.reviewer,
            **self._texts(None, decision.text or decision.reason),
        }
        name = f"decision {decision.operation_id}: {decision.action}"
        start = self._at - (decision.took_s or 0.0)
        return self._span(name, own, decision.operation_id, start, values)

    def _evaluation(self, name: str, own: str, event: ev.EvaluationFinished) -> Span:
        values: Attributes = {
            "studio.step": event.step,
            "studio.k": event.k,
            "studio.n": event.n,
            "studio.unjudged": event.unjudged,
            "studio.library_version": event.library_version,
            "studio.policy_version": event.policy_version,
            "gen_ai.evaluation.name": event.data,
            **spent_values(event.usage),
        }
        if event.mean is not None:
            values["gen_ai.evaluation.score.value"] = values["studio.reward"] = event.mean
        parent = _step_name(event.step if self._step.began else 0)
        return self._span(name, own, parent, self._before, values, kind="EVALUATOR")

    def _texts(self, asked: str | None, answer: str | None) -> Attributes:
        return text_values(input=asked, output=answer) if self._content else {}

    def _calls(
        self, refs: Sequence[RecordRef], parent: str, shared: Mapping[str, Value] | None = None
    ) -> tuple[list[Span], tuple[Message, ...]]:
        """Spans of recorded replies, each given once, and the messages that these make up."""
        spans: list[Span] = []
        messages: tuple[Message, ...] = ()
        for ref in refs:
            record = self._read(ref)
            before, messages = messages, record.extend(messages)
            own = f"{ref.file}@{ref.offset}"
            if own not in self._step.seen:
                spans.append(self._call(own, record, before, parent, shared or {}))
            self._step.seen.add(own)
        return spans, messages

    def _call(
        self,
        own: str,
        record: Record,
        before: tuple[Message, ...],
        parent: str,
        shared: Mapping[str, Value],
    ) -> Span:
        key = record.key
        kind: Kind = "TOOL" if record.is_tool_result else "LLM"
        error = None
        if record.is_tool_result:
            name = f"execute_tool {record.reply.tool_calls[0].name}"
            values = tool_call(record, before, self._content)
            if record.reply.finish != "ok":
                error = record.reply.text
        else:
            is_talk = key.purpose in ("rollout", "evaluation")
            name = f"chat {record.policy}" if is_talk else key.purpose
            values = model_call(record, (*before[: record.base], *record.messages), self._content)
        values |= {**shared, "studio.purpose": key.purpose, "studio.turn": key.turn}
        start = record.at - record.elapsed_s
        return self._span(name, own, parent, start, values, kind=kind, error=error, end=record.at)


def _step_name(step: int) -> str:
    return f"s{step}" if step else "run"
