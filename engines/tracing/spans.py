"""What a span says, by the names of the GenAI conventions and of OpenInference.

Both are written, since collectors know the one or the other. Names of our own begin with `studio.`.
Sources: OpenTelemetry semantic conventions (`gen_ai.*`), OpenInference 0.1 (`llm.*`, `tool.*`).
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Literal, Protocol

from engines.core import events as ev
from engines.core.types import (
    CallKey,
    Completion,
    Decision,
    Lesson,
    Message,
    Operation,
    RecordRef,
    Sampling,
    Usage,
    Verdict,
    group_id,
    operation_step,
    rollout_id,
    update_id,
)

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


ReadReply = Callable[[RecordRef], Reply]


@dataclass(frozen=True, slots=True)
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
    questions: dict[int, str] = field(default_factory=dict)
    outcomes: Counter[str] = field(default_factory=Counter)
    seen: set[tuple[str, int]] = field(default_factory=set)  # records that have a span


class SpanMapper:
    """Makes spans of the entries of one journal, in their order."""

    def __init__(self, read: ReadReply, *, content: bool = True) -> None:
        """`read` fetches a recorded reply; without `content` no text of anybody is in a span."""
        self._read, self._content = read, content
        self._started: ev.RunStarted | None = None
        self._began = self._before = 0.0
        self._trace = 0
        self._ended = False
        self._step = _StepFacts()

    def take(self, seq: int, at: float, event: ev.DurableEvent) -> Iterator[Span]:
        """The spans that end with an event; `seq` is its number in the journal, `at` its time."""
        before, self._before = self._before or at, at
        match event:
            case ev.RunStarted():
                self._started, self._began = event, at
                digest = blake2b(f"{event.run} of {at:.3f}".encode(), digest_size=16).digest()
                self._trace = int.from_bytes(digest, "big")
            case ev.RunEnded():
                yield from self._run(at, event)
            case ev.StepStarted():
                self._step = _StepFacts(began=at)
            case ev.StepFinished():
                yield self._finished_step(at, event)
            case ev.RolloutFinished():
                yield from self._rollout(at, event)
            case ev.RolloutJudged():
                yield from self._verdict(at, event)
            case ev.GroupReflected():
                yield from self._group(at, event)
            case ev.LessonProposed():
                name = f"lesson {event.step}"
                yield from self._lesson(before, at, name, event.step, event.lesson)
            case ev.LessonsCompared():
                for number, draft in enumerate(event.drafts):
                    name = f"draft {event.step}.{number}"
                    refs = [ref for one in draft.reflections for ref in one.refs]
                    yield from self._lesson(before, at, name, event.step, draft.lesson, refs)
            case ev.EffectMeasured():
                yield self._gate(seq, before, at, event)
            case ev.OperationDecided() | ev.OperationsDecided():
                for number, decision in enumerate(event.decisions):
                    yield self._decision(f"e{seq}.{number}", at, decision)
            case ev.DecisionUndone():
                parent = self._id(event.operation_id)
                reason = text_values(output=event.reason) if self._content else {}
                yield self._span(f"undo {event.operation_id}", f"e{seq}", parent, at, at, reason)
            case ev.OperationProposed():
                yield self._operation(at, event.operation, self._id(f"s{event.step}"))
            case ev.ReplyMended():
                for operation in event.operations:
                    yield self._operation(at, operation, self._id(f"s{event.step}"))
            case ev.LessonCommitted() | ev.CheckpointSaved():
                yield self._saved(seq, before, at, event)
            case ev.EvaluationFinished():
                yield self._evaluation(f"evaluation {event.data}", seq, before, at, event)
            case ev.CellMeasured(result=result):
                weights = "trained" if event.trained else "first"
                library = "with" if event.with_library else "without"
                name = f"evaluation {result.data}, {weights} weights {library} library"
                yield self._evaluation(name, seq, before, at, result)

    def _id(self, name: str) -> int:
        digest = blake2b(f"{self._trace:x}/{name}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") or 1

    def _span(
        self,
        name: str,
        own: str,
        parent: int | None,
        start: float,
        end: float,
        attributes: Mapping[str, Value],
        *,
        kind: Kind = "CHAIN",
        error: str | None = None,
    ) -> Span:
        """`own` is what its id follows from."""
        run = self._started.run if self._started else ""
        if error is not None:
            error = shorten(error) if self._content else ""
        values = {**kind_of(kind), "studio.run": run, **attributes}
        return Span(name, self._trace, self._id(own), parent, min(start, end), end, values, error)

    def _run(self, at: float, event: ev.RunEnded) -> Iterator[Span]:
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
            "studio.ending": event.how,
            **({"studio.forked_from": started.forked_from} if started.forked_from else {}),
            **({} if event.paid is None else spent_values(event.paid)),
        }
        error = event.reason if event.how == "failed" else None
        yield self._span(f"run {started.run}", "run", None, self._began, at, values, error=error)

    def _finished_step(self, at: float, event: ev.StepFinished) -> Span:
        facts = self._step
        known = [reward for reward in facts.rewards.values() if reward is not None]
        values: Attributes = {
            "studio.step": event.step,
            "studio.epoch": event.epoch,
            "studio.rewards": len(known),
            **({"studio.reward": sum(known) / len(known)} if known else {}),
            **{f"studio.groups.{outcome}": n for outcome, n in facts.outcomes.items()},
        }
        start = min([facts.began or at, *facts.groups.values()])
        return self._span(
            f"step {event.step}", f"s{event.step}", self._id("run"), start, at, values
        )

    def _rollout(self, at: float, event: ev.RolloutFinished) -> Iterator[Span]:
        place, facts = (event.position, event.index), self._step
        facts.tries[place] += 1
        name, again = rollout_id(event.step, *place), facts.tries[place]
        own = name if again == 1 else f"{name}~{again}"
        talk = self._conversation(own)
        calls, messages = self._calls(event.refs, self._id(own), talk)
        start = min([at - event.elapsed_s, *(call.start for call in calls)])
        facts.groups[event.position] = min(start, facts.groups.get(event.position, start))
        facts.ended[place] = at
        question = next((one.content for one in messages if one.role == "user"), "")
        facts.questions.setdefault(event.position, question)
        said = messages[-1].content if messages and messages[-1].role == "assistant" else ""
        values = {
            **self._try(event.step, *place),
            **talk,
            "gen_ai.operation.name": "invoke_agent",
            "studio.status": event.status,
            "studio.seed": event.seed,
            "studio.turns": event.turns,
            "studio.tool_calls": event.tool_calls,
            **spent_values(event.usage),
            **self._texts(question, event.answer or said),
        }
        yield from calls
        error = None if event.status != "failed" else event.error or ""
        parent = self._id(group_id(event.step, event.position))
        yield self._span(
            f"rollout {name}", own, parent, start, at, values, kind="AGENT", error=error
        )

    def _verdict(self, at: float, event: ev.RolloutJudged) -> Iterator[Span]:
        place, facts, verdict = (event.position, event.index), self._step, event.verdict
        facts.rewards[place] = verdict.reward
        name, again = rollout_id(event.step, *place), facts.tries[place] or 1
        own = name if again == 1 else f"{name}~{again}"
        calls, _ = self._calls(verdict.refs, self._id(f"{own}/verdict"))
        start = min([facts.ended.get(place, at), *(call.start for call in calls)])
        values = {
            **self._try(event.step, *place),
            **verdict_values(verdict, self._content),
            **self._conversation(own),
        }
        yield from calls
        yield self._span(
            f"verdict {name}",
            f"{own}/verdict",
            self._id(own),
            start,
            at,
            values,
            kind="EVALUATOR",
            error=verdict.error,
        )

    def _group(self, at: float, event: ev.GroupReflected) -> Iterator[Span]:
        step, position, facts, found = event.step, event.position, self._step, event.reflection
        own = group_id(step, position)
        calls, _ = self._calls(found.refs, self._id(own))
        facts.outcomes[event.outcome] += 1
        start = min([facts.groups.get(position, at), *(call.start for call in calls)])
        known = {i: r for (p, i), r in facts.rewards.items() if p == position and r is not None}
        values = {
            "studio.step": step,
            "studio.position": position,
            "studio.outcome": event.outcome,
            "studio.rewards": [known[index] for index in sorted(known)],
            "studio.proposals": len(found.proposals),
            **self._texts(
                facts.questions.get(position), "\n".join(one.text for one in found.proposals)
            ),
        }
        yield from calls
        yield self._span(f"group {own}", own, self._id(f"s{step}"), start, at, values)

    def _lesson(
        self,
        before: float,
        at: float,
        name: str,
        step: int,
        lesson: Lesson,
        refs: Sequence[RecordRef] = (),
    ) -> Iterator[Span]:
        own = self._id(name)
        calls, _ = self._calls((*refs, *lesson.refs), own)
        start = min([before, *(call.start for call in calls)])
        values: Attributes = {
            "studio.step": step,
            "studio.operations": len(lesson.operations),
            "studio.withheld": len(lesson.withheld),
            "studio.lost": len(lesson.losses),
            **spent_values(lesson.usage),
        }
        yield from calls
        if (update := lesson.update) is not None:
            metrics = {f"studio.metrics.{key}": float(v) for key, v in update.metrics.items()}
            values |= {**metrics, "studio.note": update.note}
            title = f"weight update {step}"
            yield self._span(title, update_id(step), own, start, at, {**values})
        if name.startswith("lesson"):  # those of a draft that was not chosen are no one's
            for operation in lesson.operations:
                yield self._operation(at, operation, own)
        yield self._span(name, name, self._id(f"s{step}"), start, at, values)

    def _operation(self, at: float, operation: Operation, parent: int) -> Span:
        values = {
            "studio.step": operation_step(operation.id),
            "studio.operation": operation.kind,
            "studio.target": operation.target or "",
            "studio.evidence": list(operation.evidence),
            "studio.proposer": operation.proposer,
            "studio.flags": [flag.name for flag in operation.flags],
            **self._texts(operation.rationale, operation.text),
        }
        return self._span(f"operation {operation.id}", operation.id, parent, at, at, values)

    def _decision(self, own: str, at: float, decision: Decision) -> Span:
        values = {
            "studio.action": decision.action,
            "studio.reviewer": decision.reviewer,
            **self._texts(None, decision.text or decision.reason),
        }
        name = f"decision {decision.operation_id}: {decision.action}"
        start = at - (decision.took_s or 0.0)
        return self._span(name, own, self._id(decision.operation_id), start, at, values)

    def _gate(self, seq: int, before: float, at: float, event: ev.EffectMeasured) -> Span:
        effect = event.effect
        values: Attributes = {
            "studio.step": event.step,
            "studio.operations": list(event.operations),
            "studio.verdict": effect.verdict,
            "studio.error": event.error,
        }
        parent = self._id(f"s{event.step}" if event.step else "run")
        name = f"gate {', '.join(event.operations)}"
        return self._span(name, f"e{seq}", parent, before, at, values, kind="EVALUATOR")

    def _saved(
        self, seq: int, before: float, at: float, event: ev.LessonCommitted | ev.CheckpointSaved
    ) -> Span:
        values: Attributes = {
            "studio.step": event.step,
            "studio.policy_version": event.policy_version,
        }
        name = f"checkpoint {event.step}"
        if isinstance(event, ev.LessonCommitted):
            name = f"commit {event.step}"
            values["studio.library_version"] = event.library_version
        parent = self._id(f"s{event.step}" if event.step else "run")
        return self._span(name, f"e{seq}", parent, before, at, values)

    def _evaluation(
        self, name: str, seq: int, before: float, at: float, event: ev.EvaluationFinished
    ) -> Span:
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
        parent = self._id(f"s{event.step}" if event.step and self._step.began else "run")
        return self._span(name, f"e{seq}", parent, before, at, values, kind="EVALUATOR")

    def _conversation(self, own: str) -> Attributes:
        run = self._started.run if self._started else ""
        return {"gen_ai.conversation.id": f"{run}/{own}"}

    def _try(self, step: int, position: int, index: int) -> Attributes:
        return {"studio.step": step, "studio.position": position, "studio.index": index}

    def _texts(self, asked: str | None, said: str | None) -> Attributes:
        return text_values(input=asked, output=said) if self._content else {}

    def _calls(
        self, refs: Sequence[RecordRef], parent: int, shared: Attributes | None = None
    ) -> tuple[list[Span], tuple[Message, ...]]:
        """Spans of recorded replies, each given once, and the messages that these make up."""
        spans: list[Span] = []
        messages: tuple[Message, ...] = ()
        for ref in refs:
            place = (ref.file, ref.offset)
            is_new = place not in self._step.seen
            self._step.seen.add(place)
            record = self._read(ref)
            before, messages = messages, record.extend(messages)
            if is_new:
                spans.append(self._call(ref, record, before, parent, shared or {}))
        return spans, messages

    def _call(
        self,
        ref: RecordRef,
        record: Reply,
        before: tuple[Message, ...],
        parent: int,
        shared: Attributes,
    ) -> Span:
        key, start = record.key, record.at - record.elapsed_s
        kind: Kind = "TOOL" if record.is_tool_result else "LLM"
        values: Attributes = {**shared, "studio.purpose": key.purpose, "studio.turn": key.turn}
        error = None
        if record.is_tool_result:
            call = record.reply.tool_calls[0]
            asked = (one for message in before for one in message.tool_calls if one.id == call.id)
            arguments = next((one.arguments for one in asked), "")
            name = f"execute_tool {call.name}"
            values |= tool_call(record, arguments, self._content)
            if record.reply.finish != "ok":
                error = record.reply.text
        else:
            is_talk = key.purpose in ("rollout", "evaluation")
            name = f"chat {record.policy}" if is_talk else key.purpose
            request = (*before[: record.base], *record.messages)
            values |= model_call(record, request, self._content)
        own = f"{ref.file}@{ref.offset}"
        return self._span(name, own, parent, start, record.at, values, kind=kind, error=error)
