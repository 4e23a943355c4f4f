"""Which spans follow from which events, without any file."""

from __future__ import annotations

from typing import Any

import pytest

from engines.core import events as ev
from engines.core.types import (
    CallKey,
    Completion,
    Decision,
    GroupOutcome,
    Lesson,
    Message,
    RecordRef,
    Reflection,
    ToolCall,
    Usage,
    Verdict,
    WeightUpdate,
)
from engines.record.journal import Entry
from engines.record.ledger import Record
from studio.tracing.spans import LONGEST_TEXT, Span, SpanMapper
from tests.support.builders import a_lesson, a_run, a_step, an_effect, an_operation

MODEL = CallKey("rollout", 1, 1, 0, 0)


def a_record(reply: Completion, policy: str = "openai:gpt", **more: Any) -> Record:
    """Return a recorded reply, without the file."""
    given: dict[str, Any] = {"elapsed_s": 1.0, "at": 9.0, **more}
    return Record(key=MODEL, policy=policy, reply=reply, **given)


def a_ref(number: int) -> RecordRef:
    return RecordRef("step-0001.jsonl", number, 1, "d")


def an_end(at: int = 0, index: int = 0, **more: Any) -> ev.RolloutFinished:
    given: dict[str, Any] = {"status": "ok", "answer": "5", "error": None}
    given |= {"usage": Usage(7, 3, 1), "elapsed_s": 2.0, "seed": 1}
    return ev.RolloutFinished(step=1, position=at, index=index, **{**given, **more})


def spans_of(
    *events: Any, told: dict[int, Record] | None = None, content: bool = True
) -> list[Span]:
    """The spans of events that are a second apart, behind a run and a step that began."""
    mapper = SpanMapper(lambda ref: (told or {})[ref.offset], content=content)
    every = (a_run(), a_step(), *events)
    return [s for at, e in enumerate(every) for s in mapper.take(Entry(at + 1, 10.0 + at, e))]


def test_a_try_that_is_made_again_is_a_span_of_its_own_and_its_records_are_told_once() -> None:
    told = {1: a_record(Completion("four")), 2: a_record(Completion("five"), base=1)}
    failed = an_end(status="failed", answer=None, error="a timeout", refs=(a_ref(1),))
    again = an_end(refs=(a_ref(1), a_ref(2)))
    judged = ev.RolloutJudged(1, 0, 0, Verdict(1.0))
    spans = spans_of(failed, again, judged, told=told)
    assert [span.name for span in spans] == [
        *("chat openai:gpt", "rollout s1p0r0", "chat openai:gpt", "rollout s1p0r0"),
        "verdict s1p0r0",
    ]
    assert len({span.id for span in spans}) == 5
    assert spans[1].error == "a timeout" and spans[3].error is None
    assert spans[0].parent == spans[1].id and spans[2].parent == spans[3].id == spans[4].parent


def test_a_rollout_begins_before_its_first_call_and_a_group_before_its_first_rollout() -> None:
    told = {1: a_record(Completion("five"), at=5.0, elapsed_s=4.5)}
    reflection = Reflection(1, 0, "all-right")
    spans = spans_of(
        an_end(refs=(a_ref(1),)), an_end(index=1), ev.GroupReflected(1, 0, reflection), told=told
    )
    by_name = {span.name: span for span in spans}
    assert by_name["rollout s1p0r0"].start == by_name["group s1p0"].start == 0.5
    assert by_name["rollout s1p0r1"].start == 13.0 - 2.0
    assert by_name["group s1p0"].end == 14.0


@pytest.mark.parametrize("outcome", ["used", "all-wrong"])
def test_a_step_counts_its_groups_and_tells_its_mean_reward(outcome: GroupOutcome) -> None:
    (*_, step) = spans_of(
        an_end(),
        ev.RolloutJudged(1, 0, 0, Verdict(1.0)),
        ev.RolloutJudged(1, 0, 1, Verdict(0.5)),
        ev.RolloutJudged(1, 0, 2, Verdict(None, error="timeout")),
        ev.GroupReflected(1, 0, Reflection(1, 0, outcome)),
        ev.StepFinished(1, 1),
    )
    assert (step.name, step.attributes[f"studio.groups.{outcome}"]) == ("step 1", 1)
    assert (step.attributes["studio.reward"], step.attributes["studio.rewards"]) == (0.75, 2)


def test_operations_hang_below_their_lesson_and_decisions_below_their_operation() -> None:
    operation = an_operation()
    decision = Decision(operation.id, "approve", reviewer="ann", took_s=3.0)
    effect = an_effect(0.1, 0.05, 0.2)
    spans = spans_of(
        ev.LessonProposed(1, a_lesson(operation)),
        ev.EffectMeasured(1, (operation.id,), effect, 0.05, "base"),
        ev.OperationsDecided(1, (decision, decision)),
        ev.DecisionUndone(1, operation.id, "no"),
        ev.OperationDecided(1, decision),
        ev.LessonCommitted(1, 1, "hash", ()),
    )
    lesson, proposed, gate, first, second, undone, third, commit = spans
    assert proposed.parent == lesson.id and lesson.name == "lesson 1"
    assert {one.parent for one in (first, second, undone, third)} == {proposed.id}
    assert len({one.id for one in spans}) == len(spans)
    assert first.end - first.start == 3.0
    assert gate.parent == commit.parent == lesson.parent
    assert (gate.start, gate.end) == (12.0, 13.0)  # since the lesson was proposed
    assert gate.attributes["studio.verdict"] == "helps"


def test_a_weight_update_is_below_its_lesson_and_its_decision_below_it() -> None:
    update = Lesson(1, 0, update=WeightUpdate({"loss": 0.5}, "h"))
    decision = Decision("op1.w", "approve", kind="weights")
    spans = spans_of(ev.LessonProposed(1, update), ev.OperationDecided(1, decision))
    weights, lesson, decided = spans
    assert (weights.name, weights.parent) == ("weight update 1", lesson.id)
    assert weights.attributes["studio.metrics.loss"] == 0.5
    assert decided.parent == weights.id


def test_a_call_of_a_tool_that_failed_is_an_error_and_a_long_text_loses_its_middle() -> None:
    call = ToolCall("c1", "python", '{"code": "1/0"}')
    told = {
        1: a_record(Completion("", tool_calls=(call,)), messages=(Message("user", "x" * 50_000),)),
        2: a_record(
            Completion("by zero", tool_calls=(ToolCall("c1", "python", ""),), finish="error"),
            policy="tool:python",
        ),
    }
    chat, tool, _ = spans_of(an_end(refs=(a_ref(1), a_ref(2))), told=told)
    assert (tool.error, tool.attributes["tool.parameters"]) == (
        "by zero",
        call.arguments,
    )
    asked = chat.attributes["input.value"]
    assert isinstance(asked, str) and len(asked) < LONGEST_TEXT + 100
    assert "30000 characters left out" in asked
    assert chat.attributes[
        "llm.output_messages.0.message.tool_calls.0.tool_call.function.name"
    ] == ("python")
    _, bare, rollout = spans_of(an_end(refs=(a_ref(1), a_ref(2))), told=told, content=False)
    assert bare.error == "" and "input.value" not in rollout.attributes


def test_the_run_is_told_at_its_first_end_alone_and_ids_follow_from_when_it_began() -> None:
    ended = ev.RunEnded("stopped", paid=Usage(10, 5, 2, 0.25))
    (run,) = spans_of(ended, ended)
    assert (run.parent, run.start, run.end) == (None, 10.0, 12.0)
    assert run.attributes["studio.cost_usd"] == 0.25 and run.error is None
    mapper = SpanMapper(lambda _: a_record(Completion("")))
    later = [
        s for at, e in enumerate((a_run(), ended)) for s in mapper.take(Entry(at, 99.0 + at, e))
    ]
    assert (later[0].trace, later[0].id) != (run.trace, run.id)
    (failed,) = spans_of(ev.RunEnded("failed", "nobody answers"))
    assert failed.error == "nobody answers"
