"""What happened in each step, as one pass over a run's events gives it."""

from __future__ import annotations

from dataclasses import replace

from engines.core import events as ev
from engines.core.state.fold import run_history
from engines.core.types import NO_USAGE, Lesson, Reflection, Verdict, WeightUpdate
from tests.support.builders import (
    a_decision,
    a_lesson,
    a_rollout_finished,
    a_run,
    a_step,
    an_operation,
)

A, B = an_operation(id="op1.1"), an_operation(id="op1.2")


def judged(index: int, reward: float | None, step: int = 1) -> ev.RolloutJudged:
    return ev.RolloutJudged(step, 0, index, Verdict(reward))


def test_rollouts_carry_their_verdicts_and_stay_after_the_step_is_finished() -> None:
    history = run_history(
        [
            a_run(),
            a_step(),
            a_rollout_finished(0, 1),
            judged(1, 1.0),
            a_rollout_finished(0, 0),
            ev.StepFinished(1, 1),
            a_step(2),
            a_rollout_finished(step=2),
        ]
    )
    one = history.steps[1]
    assert [rollout.id for rollout in history.rollouts] == ["s1p0r1", "s1p0r0", "s2p0r0"]
    assert [(rollout.id, rollout.reward) for rollout in one.members(0)] == [
        ("s1p0r0", None),
        ("s1p0r1", 1.0),
    ]
    assert one.rewards == {(0, 1): 1.0}, "one that nobody judged is not among them"
    assert one.problems == ("p0", "p1")
    assert history.last_step == 2


def test_a_new_try_replaces_the_failed_one_and_its_verdict() -> None:
    failed = a_rollout_finished(error="timeout: 2 s")
    history = run_history(
        [a_run(), a_step(), failed, judged(0, None), a_rollout_finished(0, 1), a_rollout_finished()]
    )
    again = history.steps[1].rollouts[0, 0]
    assert again.finished.status == "ok"
    assert again.verdict is None
    assert [rollout.id for rollout in history.rollouts] == ["s1p0r0", "s1p0r1"]


def test_both_reflections_of_a_group_are_kept_and_the_later_one_counts() -> None:
    first, other, later = (
        Reflection(1, 1, "failed"),
        Reflection(1, 0, "used"),
        Reflection(1, 1, "used"),
    )
    reflected = [ev.GroupReflected(1, r.position, r) for r in (first, other, later)]
    step = run_history([a_run(), a_step(), *reflected]).steps[1]
    assert step.reflections == [first, other, later]
    assert step.latest_reflections == {0: other, 1: later}
    assert list(step.latest_reflections) == [0, 1]


def test_an_operation_keeps_the_decision_that_stands_until_it_is_taken_back() -> None:
    history = run_history(
        [
            a_run(),
            a_step(),
            ev.LessonProposed(1, a_lesson(A, B)),
            ev.OperationDecided(1, a_decision(A)),
            ev.OperationDecided(1, a_decision(A, "reject")),
            ev.OperationDecided(1, a_decision(B)),
            ev.DecisionUndone(1, B.id),
            ev.OperationDecided(1, a_decision(B, "defer")),
            ev.LessonReturned(1, 0, 1, (A.id,)),
            ev.LessonCommitted(1, 1, "hash", ()),
            a_step(2),
            ev.OperationDecided(2, a_decision(B)),
        ]
    )
    made = [decision.action for decision in history.steps[1].decisions]
    assert made == ["approve", "reject", "approve", "defer"]
    standing = {
        name: one.decision and one.decision.action for name, one in history.operations.items()
    }
    assert standing == {A.id: None, B.id: "approve"}


def test_a_resubmitted_reply_belongs_to_the_step_it_was_drawn_in() -> None:
    late = an_operation(id="op1.p0.1", evidence=("s1p0r0",))
    own = an_operation(id="op2.h1")
    history = run_history(
        [
            a_run(),
            a_step(),
            ev.LessonProposed(1, a_lesson(A)),
            a_step(2),
            ev.ReplyMended(2, "s1p0", (late,), "ann"),
            ev.ReplyDropped(2, "s1", "no use", "ann"),
            ev.OperationProposed(2, own, "ann"),
        ]
    )
    assert [event.repair for event in history.steps[1].answers] == ["s1p0", "s1"]
    assert history.steps[1].operations == (A, late)
    assert history.steps[2].operations == (own,)


def test_a_lesson_knows_the_settings_and_the_plan_it_was_made_with() -> None:
    resumed = ev.RunResumed(1, 3, "wait", {"b": 2}, steps_per_epoch=4)
    unchanged = replace(resumed, settings={}, steps_per_epoch=None, epochs=5)
    history = run_history(
        [
            a_run(settings={"a": 1}),
            a_step(),
            ev.LessonProposed(1, a_lesson()),
            resumed,
            a_step(2),
            ev.LessonProposed(2, a_lesson(step=2)),
            unchanged,
        ]
    )
    assert [one.lesson_settings for one in history.steps.values()] == [{"a": 1}, {"b": 2}]
    assert [one.planned_steps for one in history.steps.values()] == [2, 12]
    assert (history.settings, history.planned_steps) == ({"b": 2}, 20)


def test_a_run_that_trains_weights_tells_its_version_and_checkpoints() -> None:
    lesson = Lesson(1, 0, update=WeightUpdate({"loss": 0.5}, "u1"))
    saved = ev.CheckpointSaved(1, "checkpoints/1", 1, "digest")
    history = run_history(
        [
            a_run(policy_version=3),
            a_step(),
            ev.LessonProposed(1, lesson),
            ev.LessonCommitted(1, 0, "hash", (), policy_version=4),
            saved,
        ]
    )
    assert history.trains_weights
    assert history.policy_version == 4
    assert history.steps[1].checkpoint == saved
    assert history.steps[1].committed is not None


def test_what_belongs_to_no_step_is_kept_under_step_0() -> None:
    measured = ev.EvaluationFinished(
        step=0,
        data="d",
        policy_version=0,
        library_version=0,
        k=1,
        n=1,
        unjudged=0,
        mean=1.0,
        usage=NO_USAGE,
    )
    history = run_history([a_run(), measured])
    assert history.steps[0].evaluations == [measured]
    assert history.steps[0].started is None
    assert history.last_step == 0
