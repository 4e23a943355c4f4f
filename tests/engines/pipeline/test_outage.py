"""What counts as an outage, and what a resume forgets of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from engines.core import events as ev
from engines.core.state.fold import fold, fold_events
from engines.core.state.run_state import RunState
from engines.core.types import (
    CallKey,
    Lesson,
    LostWork,
    Operation,
    RecordRef,
    Reflection,
    Usage,
    Verdict,
)
from engines.pipeline.control import IN_A_ROW, LESSONS_IN_A_ROW, Outage
from tests.support.builders import a_rollout_finished, a_run, a_step

DOWN = "refused: no connection"
REF = RecordRef("step-0001.jsonl", 0, 9, "d")


def report(outage: Outage, event: ev.DurableEvent, state: RunState) -> None:
    """What a step reports once it has recorded an event."""
    fold(state, event)
    match event:
        case ev.RolloutFinished():
            outage.report_rollout(event, state)
        case ev.RolloutJudged():
            outage.report_verdict(event, state.steps[event.step])
        case ev.GroupReflected(reflection=reflection):
            outage.report_reflection(reflection, state)
        case ev.LessonProposed(lesson=lesson):
            outage.report_lesson(lesson)


def told(events: Sequence[ev.DurableEvent], begun: RunState | None = None) -> list[str]:
    """The reasons to give up that a run with these events after its first step gave."""
    reasons: list[str] = []
    state = begun or fold_events([a_run(), a_step()])
    outage = Outage(reasons.append)
    for event in events:
        report(outage, event, state)
    return reasons


def failing(n: int, *, start: int = 0) -> list[ev.DurableEvent]:
    return [a_rollout_finished(at, error=DOWN) for at in range(start, start + n)]


def test_sixteen_failed_rollouts_in_a_row_are_an_outage_with_its_cause() -> None:
    assert told(failing(IN_A_ROW - 1)) == []
    assert told(failing(IN_A_ROW)) == [f"the last 16 rollouts failed: {DOWN}"]


def test_failures_are_no_outage_while_as_many_are_under_way_that_may_work() -> None:
    """What fails fails at once; with 64 slow calls under way sixteen of these prove nothing."""
    reasons: list[str] = []
    state = fold_events([a_run(), a_step()])
    outage = Outage(reasons.append)
    for position in range(40):
        fold(state, ev.RolloutStarted(CallKey("rollout", 1, 1, position, 0), "p"))
    for event in failing(19):
        report(outage, event, state)
    assert reasons == []  # 19 failed, 21 are under way
    for event in failing(2, start=19):
        report(outage, event, state)
    assert reasons == [f"the last 21 rollouts failed: {DOWN}"]


def test_a_rollout_that_works_begins_the_count_anew() -> None:
    worked = a_rollout_finished(15)
    assert told([*failing(15), worked, *failing(15, start=16)]) == []


def test_a_failed_rollout_is_no_failed_verdict() -> None:
    events: list[ev.DurableEvent] = []
    for at in range(IN_A_ROW):
        events += [
            a_rollout_finished(at, error=DOWN) if at != 8 else a_rollout_finished(at),
            ev.RolloutJudged(1, at, 0, Verdict(None, error="failed: nothing to judge")),
        ]
    assert told(events) == []


def verdicts(*found: Verdict) -> list[ev.DurableEvent]:
    events: list[ev.DurableEvent] = []
    for at, verdict in enumerate(found):
        events += [a_rollout_finished(at), ev.RolloutJudged(1, at, 0, verdict)]
    return events


def test_a_verifier_that_always_fails_is_an_outage() -> None:
    broken = Verdict(None, error="failed: KeyError")
    reason = "the last 16 verdicts failed: failed: KeyError"
    assert told(verdicts(*[broken] * 16)) == [reason]
    assert told(verdicts(*[broken] * 15, Verdict(0.0), *[broken] * 15)) == []


def test_a_verifier_without_an_opinion_is_no_outage() -> None:
    assert told(verdicts(*[Verdict(None)] * 40)) == []


def reflections(*found: Reflection) -> list[ev.DurableEvent]:
    return [ev.GroupReflected(1, r.position, r) for r in found]


def test_reflections_whose_calls_fail_are_an_outage_but_replies_that_cannot_be_read_are_not() -> (
    None
):
    failed = [
        Reflection(1, at, "failed", losses=(LostWork("extraction", f"s1p{at}", DOWN),))
        for at in range(20)
    ]
    unread = [replace(r, losses=(LostWork("extraction", "s1p0", "no JSON", "hm"),)) for r in failed]
    assert told(reflections(*failed[:16])) == [f"the last 16 reflections failed: {DOWN}"]
    assert told(reflections(*unread)) == []
    assert told(reflections(*failed[:15], unread[15], *failed[16:])) == []


@pytest.mark.parametrize("outcome", ["all-right", "all-wrong", "failed", "unjudged"])
def test_groups_about_which_nothing_was_asked_do_not_count(outcome: str) -> None:
    quiet = [Reflection(1, at, outcome) for at in range(40)]  # type: ignore[arg-type]
    assert told(reflections(*quiet)) == []


def test_three_consolidations_in_a_row_are_an_outage() -> None:
    def lesson(step: int, *, works: bool) -> list[ev.DurableEvent]:
        losses = () if works else (LostWork("consolidation", f"s{step}", DOWN),)
        operations = (Operation(f"op{step}.1", "keep", "E1"),) if works else ()
        refs = (REF,) if works else ()
        found = Lesson(step, 0, operations, losses=losses, refs=refs)
        return [a_step(step), ev.LessonProposed(step, found), ev.StepFinished(1, step)]

    failed = [event for step in (1, 2, 3) for event in lesson(step, works=False)]
    reasons = told(failed, fold_events([a_run()]))
    assert LESSONS_IN_A_ROW == 3 and reasons == [f"the last 3 consolidations failed: {DOWN}"]
    between = [
        *lesson(1, works=False),
        *lesson(2, works=False),
        *lesson(3, works=True),
        *lesson(4, works=False),
    ]
    assert told(between, fold_events([a_run(steps_per_epoch=9)])) == []


def test_one_lost_consolidation_is_enough_where_the_calls_before_it_failed_too() -> None:
    lost = ev.LessonProposed(1, Lesson(1, 0, losses=(LostWork("consolidation", "s1", DOWN),)))
    reason = f"the calls before and the consolidation failed: {DOWN}"
    assert told([*failing(3), lost]) == [reason]
    assert told([*failing(2), lost]) == []
    assert told([*failing(3), a_rollout_finished(3), lost]) == []


def test_an_answer_that_cannot_be_compared_says_nothing_of_the_verifier() -> None:
    masked = Verdict(None, error="masked: the expected answer holds what looks like a secret")
    events = [
        event
        for at in range(2 * IN_A_ROW)
        for event in (a_rollout_finished(at), ev.RolloutJudged(1, at, 0, masked))
    ]
    assert told(events) == []


# What a resume forgets. --------------------------------------------------------------------


def resumed() -> ev.RunResumed:
    return ev.RunResumed(7, 1, "auto", {})


def ended(how: str = "failed") -> ev.RunEnded:
    return ev.RunEnded(how, "the last 16 rollouts failed")


def test_a_resume_after_an_outage_tries_again_what_failed_and_keeps_what_worked() -> None:
    events: list[ev.DurableEvent] = [
        a_run(),
        a_step(),
        a_rollout_finished(0, 0),
        ev.RolloutJudged(1, 0, 0, Verdict(1.0)),
        a_rollout_finished(0, 1, error=DOWN),
        ev.RolloutJudged(1, 0, 1, Verdict(None, error="failed: no answer")),
        ev.GroupReflected(1, 0, Reflection(1, 0, "all-right")),
        a_rollout_finished(1, 0),
        ev.RolloutJudged(1, 1, 0, Verdict(None, error="timeout: judge")),
        a_rollout_finished(1, 1),
        ended(),
    ]
    before = fold_events(events)
    step = before.steps[1]
    assert before.lost == {"rollout": 1, "verdict": 1}
    assert (step.failed, step.unjudged, step.rollouts_done) == (1, 1, 4)

    state = fold(before, resumed())
    assert state.lost == {} and state.losses == []
    assert (step.failed, step.unjudged, step.rollouts_done) == (0, 0, 3)
    assert set(step.rollouts) == {(0, 0), (1, 0), (1, 1)}
    assert set(step.verdicts) == {(0, 0)}
    assert step.reflections == {} and sum(step.groups.values()) == 0
    assert (step.rewards.total, step.rewards.n) == (1.0, 1)
    assert state.usage == Usage(12, 16, 4)  # what was paid stays paid


def test_a_second_outage_is_forgotten_like_the_first() -> None:
    events = [a_run(), a_step(), *failing(2), ended(), resumed(), *failing(2), ended(), resumed()]
    state = fold_events(events)
    assert state.lost == {} and state.steps[1].rollouts_done == 0


def test_a_step_whose_lesson_was_proposed_keeps_what_failed_in_it() -> None:
    lesson = ev.LessonProposed(1, Lesson(1, 0, (Operation("op1.1", "add", None, "Say it."),)))
    state = fold_events([a_run(), a_step(), *failing(2), lesson, ended(), resumed()])
    assert state.lost == {"rollout": 2}


def test_a_lesson_that_failed_with_its_call_is_asked_for_again() -> None:
    lesson = Lesson(1, 0, losses=(LostWork("consolidation", "s1", DOWN),))
    state = fold_events([a_run(), a_step(), ev.LessonProposed(1, lesson), ended(), resumed()])
    assert state.steps[1].lesson is None and state.lost == {}
    assert state.status == "running"
