"""What a run's events add up to."""

from __future__ import annotations

import pytest

from engines.core import events as ev
from engines.core.library import Outcome
from engines.core.state import KEPT_LOSSES, RunState, fold, fold_library, folded
from engines.core.types import (
    Decision,
    GroupOutcome,
    Lesson,
    Loss,
    Operation,
    Reflection,
    Usage,
    Verdict,
)
from tests.builders import (
    a_decision,
    a_lesson,
    a_rollout_finished,
    a_run,
    a_step,
    an_operation,
)

A, B = an_operation(id="op1.1"), an_operation(id="op1.2")


def judged(position: int, index: int, reward: float | None, step: int = 1) -> ev.RolloutJudged:
    error = None if reward is not None else "timeout: 2 s"
    return ev.RolloutJudged(step, position, index, Verdict(reward, error=error))


def reflected(position: int, outcome: GroupOutcome, *losses: Loss) -> ev.GroupReflected:
    reflection = Reflection(1, position, outcome, losses=losses, usage=Usage(100, 10, 1))
    return ev.GroupReflected(1, position, reflection)


def reviewing(*operations: Operation) -> RunState:
    return folded([a_run(), a_step(), ev.LessonProposed(1, a_lesson(*operations))])


def decide(state: RunState, decision: Decision) -> None:
    fold(state, ev.OperationDecided(state.step, decision))


def committed(*ids: str, step: int = 1, version: int = 1) -> ev.LessonCommitted:
    outcomes = tuple(Outcome(name, "add", True, "E1") for name in ids)
    return ev.LessonCommitted(step, version, "hash", outcomes)


def test_rewards_pool_known_ones_only_and_an_unjudged_rollout_is_no_zero() -> None:
    state = folded(
        [
            a_run(),
            a_step(),
            *(a_rollout_finished(0, index) for index in range(3)),
            judged(0, 0, 1.0),
            judged(0, 1, 0.5),
            judged(0, 2, None),
        ]
    )
    pooled = state.by_epoch()[1]
    assert (pooled.mean, pooled.n) == (0.75, 2)  # (1 + 0.5) / 2, not / 3
    assert (state.steps[1].unjudged, dict(state.lost)) == (1, {"verdict": 1})
    assert state.losses[0].where == "s1p0r2"


def test_an_epoch_without_a_known_reward_has_no_mean() -> None:
    state = folded([a_run(), a_step(), a_rollout_finished(), judged(0, 0, None)])
    assert state.by_epoch()[1].mean is None


def test_a_failed_rollout_is_lost_once_and_not_unjudged_as_well() -> None:
    state = folded(
        [a_run(), a_step(), a_rollout_finished(error="timeout: slow"), judged(0, 0, None)]
    )
    assert (state.steps[1].failed, state.steps[1].unjudged) == (1, 0)
    assert dict(state.lost) == {"rollout": 1}
    assert state.losses == [Loss("rollout", "s1p0r0", "timeout: slow")]


def test_every_ending_of_a_group_is_counted() -> None:
    """Known defect elsewhere: groups without contrast vanished without a count."""
    endings: tuple[GroupOutcome, ...] = ("used", "all-right", "all-wrong", "failed", "unjudged")
    events = [reflected(n, outcome) for n, outcome in enumerate((*endings, "all-right"))]
    state = folded([a_run(), a_step(), *events])
    assert state.groups() == {
        "used": 1,
        "all-right": 2,
        "all-wrong": 1,
        "failed": 1,
        "unjudged": 1,
    }


def test_groups_of_the_same_question_are_kept_apart_by_their_position() -> None:
    """Known defect elsewhere: groups keyed by question text ran into one another."""
    state = folded(
        [
            a_run(),
            ev.StepStarted(1, 1, ("same", "same"), 0, 0),
            a_rollout_finished(0, 0),
            a_rollout_finished(1, 0),
            judged(0, 0, 1.0),
            judged(1, 0, 0.0),
            reflected(0, "all-right"),
            reflected(1, "all-wrong"),
        ]
    )
    step = state.steps[1]
    assert set(step.rollouts) == {(0, 0), (1, 0)}
    assert [step.verdicts[at].reward for at in ((0, 0), (1, 0))] == [1.0, 0.0]
    assert [step.reflections[p].outcome for p in (0, 1)] == ["all-right", "all-wrong"]


def test_tokens_are_summed_over_rollouts_reflections_lessons_and_evaluations() -> None:
    lesson = Lesson(1, 0, usage=Usage(1000, 1, 1))
    evaluation = ev.EvaluationFinished(1, "d", 0, 0, 1, 1, 0, 1.0, Usage(5, 5, 1))
    state = folded(
        [
            a_run(),
            a_step(),
            a_rollout_finished(),
            reflected(0, "used"),
            ev.LessonProposed(1, lesson),
            evaluation,
        ]
    )
    # 3+4 rollout, 100+10 reflection, 1000+1 lesson, 5+5 evaluation
    assert state.usage.tokens == 7 + 110 + 1001 + 10
    assert state.steps[1].usage.tokens == 7 + 110 + 1001  # evaluation is not practice


def test_a_finished_step_keeps_its_counts_and_lets_go_of_its_rollouts() -> None:
    state = folded(
        [a_run(), a_step(), a_rollout_finished(), judged(0, 0, 1.0), ev.StepFinished(1, 1)]
    )
    step = state.steps[1]
    assert (step.rollouts, step.verdicts, step.reflections, step.lesson) == ({}, {}, {}, None)
    assert (step.rollouts_done, step.rewards.n) == (1, 1)
    assert (state.current, state.steps_finished) == (None, 1)


def test_steps_finished_counts_whole_steps_and_adopted_ones() -> None:
    assert folded([a_run()]).steps_finished == 0
    assert folded([a_run(), a_step(1)]).steps_finished == 0
    assert folded([a_run(forked_from="old", forked_steps=3)]).steps_finished == 3


def test_undecided_operations_block_deferred_ones_do_not_and_stay_open() -> None:
    state = reviewing(A, B)
    assert state.undecided == (A, B)
    decide(state, a_decision(A, "defer"))
    assert list(state.undecided) == [B]
    assert state.open == (A, B)
    decide(state, a_decision(B))
    assert not state.undecided
    assert state.open == (A,)
    assert [op.id for op, _ in state.reviewed] == [B.id]
    fold(state, committed(B.id))
    fold(state, ev.StepFinished(1, 1))
    assert not state.undecided and not state.reviewed
    assert state.open == (A,)


def test_the_last_decision_about_an_operation_stands_and_takes_its_place_in_the_order() -> None:
    state = reviewing(A, B)
    for decision in (a_decision(A), a_decision(B), a_decision(A, "reject", reason="no")):
        decide(state, decision)
    assert [(op.id, d.action) for op, d in state.reviewed] == [
        (B.id, "approve"),
        (A.id, "reject"),
    ]


def test_an_undo_asks_again() -> None:
    state = reviewing(A, B)
    decide(state, a_decision(A, assigned="E7"))
    fold(state, ev.DecisionUndone(1, A.id))
    assert state.undecided == (A, B)


def test_a_returned_lesson_is_asked_again_flagged_until_its_commit() -> None:
    state = reviewing(A)
    decide(state, a_decision(A))
    fold(state, ev.LessonReturned(1, 0, 4, (A.id,)))
    (asked,) = state.undecided
    assert (asked.id, asked.flags[0].detail, state.flagged_stale) == (A.id, "v0 -> v4", 4)
    decide(state, a_decision(A))
    fold(state, committed(A.id, version=5))
    assert (state.flagged_stale, state.library_version) == (None, 5)
    assert state.steps[1].committed_version == 5


def test_a_commit_after_the_end_settles_deferred_operations() -> None:
    state = reviewing(A)
    decide(state, a_decision(A, "defer"))
    for event in (committed(version=0), ev.StepFinished(1, 1), ev.RunEnded("finished")):
        fold(state, event)
    decide(state, a_decision(A))
    fold(state, committed(A.id, step=0))
    assert (state.open, state.library_version, state.status) == ((), 1, "finished")


def test_a_stepped_run_holds_after_the_step_under_way_or_the_next_one() -> None:
    underway = folded([a_run(), a_step(1), ev.RunPaused(), ev.RunContinued(1)])
    assert underway.hold_after == 1
    between = folded(
        [a_run(), a_step(1), ev.StepFinished(1, 1), ev.RunPaused(), ev.RunContinued(1)]
    )
    assert between.hold_after == 2
    fold(between, ev.RunResumed(9, 1, "auto", {}))
    assert between.hold_after is None
    assert (between.pid, between.reviewer) == (9, "auto")


@pytest.mark.parametrize("how", ["finished", "stopped", "held", "failed"])
def test_every_ending_is_a_status_and_frees_the_process(how: str) -> None:
    state = folded([a_run(), ev.RunResumed(9, 2, "auto", {}), ev.RunEnded(how, "because")])
    assert (state.status, state.reason, state.pid, state.epochs) == (how, "because", None, 2)


def test_losses_beyond_those_kept_in_words_are_still_counted() -> None:
    many = [Loss("proposal", "s1p0", str(n)) for n in range(KEPT_LOSSES + 5)]
    state = folded([a_run(), a_step(), reflected(0, "used", *many)])
    assert (len(state.losses), state.lost["proposal"]) == (KEPT_LOSSES, KEPT_LOSSES + 5)


def test_events_of_a_library_do_not_belong_into_a_run_nor_a_run_s_into_a_library() -> None:
    with pytest.raises(ValueError, match="library's event"):
        fold(RunState(), ev.LibraryCreated("lib", 1, ()))
    with pytest.raises(ValueError, match="StepFinished is not the next event"):
        fold_library(None, ev.StepFinished(1, 1))
    with pytest.raises(ValueError, match="LibraryCommitted is not the next event"):
        fold_library(None, ev.LibraryCommitted(1, "", 0, (), "x"))
