"""What a run's events add up to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engines.core import events as ev
from engines.core.library import OperationOutcome
from engines.core.state.fold import KEPT_LOSSES, KEPT_REPLY_CHARS, fold, fold_events, fold_library
from engines.core.state.run_state import RunState
from engines.core.types import (
    MERGED,
    Decision,
    Flag,
    GroupOutcome,
    Lesson,
    LostWork,
    Operation,
    Reflection,
    Usage,
    Verdict,
)
from tests.support.builders import (
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


def reflected(position: int, outcome: GroupOutcome, *losses: LostWork) -> ev.GroupReflected:
    reflection = Reflection(1, position, outcome, losses=losses, usage=Usage(100, 10, 1))
    return ev.GroupReflected(1, position, reflection)


def reviewing(*operations: Operation) -> RunState:
    return fold_events([a_run(), a_step(), ev.LessonProposed(1, a_lesson(*operations))])


def decide(state: RunState, decision: Decision) -> None:
    fold(state, ev.OperationDecided(state.step, decision))


def committed(*ids: str, step: int = 1, version: int = 1) -> ev.LessonCommitted:
    outcomes = tuple(OperationOutcome(name, "add", True, "E1") for name in ids)
    return ev.LessonCommitted(step, version, "hash", outcomes)


def test_rewards_pool_known_ones_only_and_an_unjudged_rollout_is_no_zero() -> None:
    state = fold_events(
        [
            a_run(),
            a_step(),
            *(a_rollout_finished(0, index) for index in range(3)),
            judged(0, 0, 1.0),
            judged(0, 1, 0.5),
            judged(0, 2, None),
        ]
    )
    pooled = state.rewards_by_epoch()[1]
    assert (pooled.mean, pooled.n) == (0.75, 2)  # (1 + 0.5) / 2, not / 3
    assert (state.steps[1].unjudged, dict(state.lost)) == (1, {"verdict": 1})
    assert state.losses[0].where == "s1p0r2"


def test_an_epoch_in_which_nothing_was_tried_yet_is_not_told_of() -> None:
    state = fold_events([a_run(), a_step(), a_rollout_finished(), judged(0, 0, 1.0)])
    fold(state, replace(a_step(2), epoch=2))
    assert list(state.rewards_by_epoch()) == [1]


def test_an_epoch_without_a_known_reward_has_no_mean() -> None:
    state = fold_events([a_run(), a_step(), a_rollout_finished(), judged(0, 0, None)])
    assert state.rewards_by_epoch()[1].mean is None


def test_a_failed_rollout_is_lost_once_and_not_unjudged_as_well() -> None:
    state = fold_events(
        [a_run(), a_step(), a_rollout_finished(error="timeout: slow"), judged(0, 0, None)]
    )
    assert (state.steps[1].failed, state.steps[1].unjudged) == (1, 0)
    assert dict(state.lost) == {"rollout": 1}
    assert state.losses == [LostWork("rollout", "s1p0r0", "timeout: slow")]


def test_every_ending_of_a_group_is_counted() -> None:
    """Known defect elsewhere: groups without contrast vanished without a count."""
    endings: tuple[GroupOutcome, ...] = ("used", "all-right", "all-wrong", "failed", "unjudged")
    events = [reflected(n, outcome) for n, outcome in enumerate((*endings, "all-right"))]
    state = fold_events([a_run(), a_step(), *events])
    assert state.group_outcomes() == {
        "used": 1,
        "all-right": 2,
        "all-wrong": 1,
        "failed": 1,
        "unjudged": 1,
    }


def test_groups_of_the_same_question_are_kept_apart_by_their_position() -> None:
    """Known defect elsewhere: groups keyed by question text ran into one another."""
    state = fold_events(
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
    evaluation = ev.EvaluationFinished(
        step=1,
        data="d",
        policy_version=0,
        library_version=0,
        k=1,
        n=1,
        unjudged=0,
        mean=1.0,
        usage=Usage(5, 5, 1),
    )
    state = fold_events(
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
    by_stage = {stage: spent.tokens for stage, spent in state.spent_on.items()}
    assert by_stage == {"rollouts": 7, "reading": 110, "consolidation": 1001, "evaluation": 10}
    assert state.steps[1].usage.tokens == 7 + 110 + 1001  # evaluation is not practice


def test_a_finished_step_keeps_its_counts_and_lets_go_of_its_rollouts() -> None:
    state = fold_events(
        [a_run(), a_step(), a_rollout_finished(), judged(0, 0, 1.0), ev.StepFinished(1, 1)]
    )
    step = state.steps[1]
    assert (step.rollouts, step.verdicts, step.reflections, step.lesson) == ({}, {}, {}, None)
    assert (step.rollouts_done, step.rewards.n) == (1, 1)
    assert (state.current, state.steps_finished) == (None, 1)


def test_steps_finished_counts_whole_steps_and_adopted_ones() -> None:
    assert fold_events([a_run()]).steps_finished == 0
    assert fold_events([a_run(), a_step(1)]).steps_finished == 0
    assert fold_events([a_run(forked_from="old", forked_steps=3)]).steps_finished == 3


def test_undecided_operations_block_deferred_ones_do_not_and_stay_open() -> None:
    state = reviewing(A, B)
    assert state.undecided_operations == (A, B)
    decide(state, a_decision(A, "defer"))
    assert list(state.undecided_operations) == [B]
    assert state.open_operations == (A, B)
    decide(state, a_decision(B))
    assert not state.undecided_operations
    assert state.open_operations == (A,)
    assert [op.id for op, _ in state.reviewed_operations] == [B.id]
    fold(state, committed(B.id))
    fold(state, ev.StepFinished(1, 1))
    assert not state.undecided_operations and not state.reviewed_operations
    assert state.open_operations == (A,)


def test_the_last_decision_about_an_operation_stands_and_takes_its_place_in_the_order() -> None:
    state = reviewing(A, B)
    for decision in (a_decision(A), a_decision(B), a_decision(A, "reject", reason="no")):
        decide(state, decision)
    assert [(op.id, d.action) for op, d in state.reviewed_operations] == [
        (B.id, "approve"),
        (A.id, "reject"),
    ]


def test_an_undo_asks_again() -> None:
    state = reviewing(A, B)
    decide(state, a_decision(A, assigned="E7"))
    fold(state, ev.DecisionUndone(1, A.id))
    assert state.undecided_operations == (A, B)


def test_a_returned_lesson_is_asked_again_flagged_until_its_commit() -> None:
    state = reviewing(A)
    decide(state, a_decision(A))
    fold(state, ev.LessonReturned(1, 0, 4, (A.id,)))
    (asked,) = state.undecided_operations
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
    assert (state.open_operations, state.library_version, state.status) == ((), 1, "finished")


def test_a_stepped_run_holds_after_the_step_under_way_or_the_next_one() -> None:
    underway = fold_events([a_run(), a_step(1), ev.RunPaused(), ev.RunContinued(1)])
    assert underway.hold_after == 1
    between = fold_events(
        [a_run(), a_step(1), ev.StepFinished(1, 1), ev.RunPaused(), ev.RunContinued(1)]
    )
    assert between.hold_after == 2
    fold(between, ev.RunResumed(9, 1, "auto", {}))
    assert between.hold_after is None
    assert (between.pid, between.reviewer) == (9, "auto")


@pytest.mark.parametrize("how", ["finished", "stopped", "held", "failed"])
def test_every_ending_is_a_status_and_frees_the_process(how: str) -> None:
    state = fold_events([a_run(), ev.RunResumed(9, 2, "auto", {}), ev.RunEnded(how, "because")])
    assert (state.status, state.reason, state.pid, state.epochs) == (how, "because", None, 2)


def test_losses_beyond_those_kept_in_words_are_still_counted() -> None:
    many = [LostWork("proposal", "s1p0", str(n)) for n in range(KEPT_LOSSES + 5)]
    state = fold_events([a_run(), a_step(), reflected(0, "used", *many)])
    assert (len(state.losses), state.lost["proposal"]) == (KEPT_LOSSES, KEPT_LOSSES + 5)


def test_events_of_a_library_do_not_belong_into_a_run_nor_a_run_s_into_a_library() -> None:
    with pytest.raises(ValueError, match="library's event"):
        fold(RunState(), ev.LibraryCreated("lib", 1, ()))
    with pytest.raises(ValueError, match="StepFinished is not the next event"):
        fold_library(None, ev.StepFinished(1, 1))
    with pytest.raises(ValueError, match="LibraryCommitted is not the next event"):
        fold_library(None, ev.LibraryCommitted(1, "", 0, (), "x"))


HM = LostWork("extraction", "s1p0", "no JSON array was found in it.", "hm")
PART = LostWork("proposal", "s1p1", "Object 2: E9 is not in the library.", "[{}, {}]")
WHOLE = LostWork("consolidation", "step 1", "its JSON is not valid.", "[{")


def with_repairs() -> RunState:
    lesson = Lesson(1, 0, (), losses=(WHOLE,))
    return fold_events(
        [
            a_run(),
            a_step(),
            reflected(0, "failed", HM),
            reflected(1, "used", PART, replace(PART, reason="Object 3: no.")),
            ev.LessonProposed(1, lesson),
        ]
    )


def test_a_reply_that_could_not_be_understood_waits_once_with_every_reason() -> None:
    state = with_repairs()
    assert list(state.repairs) == ["s1p0", "s1p1", "s1"]
    assert state.repairs["s1p1"].reasons == (PART.reason, "Object 3: no.")
    assert state.repairs["s1"].kind == "consolidation"
    assert state.open_operations == (), "a reply is a loss, not an open operation"
    assert dict(state.lost) == {"extraction": 1, "proposal": 2, "consolidation": 1}


def test_a_call_that_failed_leaves_nothing_to_mend() -> None:
    state = fold_events(
        [a_run(), a_step(), reflected(0, "failed", LostWork("extraction", "s1p0", "cut"))]
    )
    assert state.repairs == {}
    assert dict(state.lost) == {"extraction": 1}


def test_mending_takes_the_losses_back_and_opens_what_the_reply_held() -> None:
    state = with_repairs()
    fold(state, ev.ReplyMended(1, "s1p0", (A,), "ann"))
    assert dict(state.lost) == {"proposal": 2, "consolidation": 1}
    assert state.group_outcomes() == {"used": 2}, (
        "the group was of use after all, and none is counted twice"
    )
    assert state.undecided_operations == (A,)
    fold(state, ev.ReplyMended(1, "s1p1", (), "ann"))
    fold(state, ev.ReplyMended(1, "s1", (B,), "ann"))
    assert (dict(state.lost), state.losses, state.repairs) == ({}, [], {})
    assert state.repaired["s1"] == "mended by ann"


def test_mending_one_of_two_equal_replies_leaves_the_other_lost() -> None:
    other = replace(HM, where="s1p1")
    state = fold_events(
        [a_run(), a_step(), reflected(0, "failed", HM), reflected(1, "failed", other)]
    )
    fold(state, ev.ReplyMended(1, "s1p0", (), "ann"))
    assert state.losses == [other]
    assert dict(state.lost) == {"extraction": 1}


def test_a_dropped_reply_stays_lost_and_waits_no_more() -> None:
    state = with_repairs()
    before = dict(state.lost)
    fold(state, ev.ReplyDropped(1, "s1p0", "noise", "ann"))
    assert list(state.repairs) == ["s1p1", "s1"]
    assert dict(state.lost) == before
    assert state.repaired == {"s1p0": "dropped by ann"}


@pytest.mark.parametrize("how", ["mended", "dropped"])
def test_a_group_that_a_person_has_settled_is_not_tried_again_after_an_outage(how: str) -> None:
    """Trying again would bring its ideas twice, or take a loss back that is gone already."""
    other = LostWork("extraction", "s1p1", "cut: the line broke")
    state = fold_events(
        [a_run(), a_step(), reflected(0, "failed", HM), reflected(1, "failed", other)]
    )
    mended = ev.ReplyMended(1, "s1p0", (A,), "ann")
    dropped = ev.ReplyDropped(1, "s1p0", "noise", "ann")
    fold(state, mended if how == "mended" else dropped)
    fold(state, ev.RunEnded("failed", "nothing works"))
    fold(state, ev.RunResumed(1, 1, "wait", {}))
    assert list(state.steps[1].reflections) == [0]
    assert dict(state.lost) == ({} if how == "mended" else {"extraction": 1})


def test_withheld_ideas_are_counted() -> None:
    lesson = replace(a_lesson(A), withheld=(B, B))
    assert fold_events([a_run(), a_step(), ev.LessonProposed(1, lesson)]).withheld == 2


def test_curation_counts_every_committed_decision_once_and_nothing_else() -> None:
    first, second, third = (an_operation(id=f"op1.{n}") for n in (1, 2, 3))
    flagged = replace(first, flags=(Flag("duplicate", 0.9),))
    state = reviewing(flagged, second, third)
    decide(state, a_decision(first, "reject", reason="no", took_s=99.0))  # superseded below
    decide(state, a_decision(first, took_s=2.0))
    decide(state, a_decision(second, took_s=50.0))
    fold(state, ev.DecisionUndone(1, second.id))
    decide(state, a_decision(second, "edit", text="x", flags=(Flag("leak"),), took_s=4.0))
    decide(state, a_decision(third, "defer", took_s=1.0))
    assert state.curation == {}, "nothing is counted before it is committed"
    fold(state, committed(first.id, second.id))
    found = state.curation["person"]
    assert (found.approved, found.edited, found.rejected, found.flagged) == (1, 1, 0, 2)
    fold(state, ev.RunEnded("stopped"))
    fold(state, ev.RunResumed(1, 1, "wait", {}))
    decide(state, a_decision(third, "reject", reason="no", took_s=9.0))
    fold(state, committed(third.id, step=0, version=2))
    fold(state, committed(first.id, step=0, version=3))  # told of again: counted already
    assert (found.n, found.accept_rate) == (3, pytest.approx(2 / 3))
    assert found.times_s == [2.0, 4.0, 9.0]
    assert (found.median_s, found.mean_s) == (4.0, 5.0)  # of 2, 4, 9: 15 / 3


def test_a_proposal_that_was_merged_into_another_counts_as_taken() -> None:
    state = reviewing(A, B)
    decide(state, a_decision(A, "reject", reason=f"{MERGED}{B.id}"))
    decide(state, a_decision(B, "edit", text="x"))
    fold(state, committed(A.id, B.id))
    assert state.curation["person"].accept_rate == 1.0


def test_reviewers_are_counted_apart_and_one_that_nobody_timed_has_no_time() -> None:
    state = reviewing(A, B)
    decide(state, a_decision(A, reviewer="auto"))
    decide(state, a_decision(B, "reject", reviewer="ann", reason="no", took_s=3.0))
    fold(state, committed(A.id, B.id))
    assert state.curation["auto"].accept_rate == 1.0
    assert state.curation["auto"].median_s is None
    assert (state.curation["ann"].accept_rate, state.curation["ann"].median_s) == (0.0, 3.0)


def test_long_replies_do_not_grow_the_state_and_are_found_again_all_the_same() -> None:
    long = replace(HM, reply="x" * 1_000_000)
    state = fold_events([a_run(), a_step(), reflected(0, "failed", long)])
    assert len(state.repairs["s1p0"].reply) == len(state.losses[0].reply) == KEPT_REPLY_CHARS
    fold(state, ev.ReplyMended(1, "s1p0", (), "ann"))
    assert state.losses == []


def test_replies_to_be_mended_lie_in_sample_order_whenever_their_groups_ended() -> None:
    def lost(position: int) -> ev.GroupReflected:
        loss = LostWork("extraction", f"s1p{position}", "no JSON", "garbled")
        return ev.GroupReflected(1, position, Reflection(1, position, "failed", losses=(loss,)))

    whole = LostWork("consolidation", "step 1", "no JSON", "garbled")
    lesson = ev.LessonProposed(1, Lesson(1, 0, losses=(whole,)))
    state = fold_events([a_run(), a_step(1), lost(10), lost(2), lesson, lost(0)])
    assert list(state.repairs) == ["s1p0", "s1p2", "s1p10", "s1"]


def tried(position: int, *errors: str | None) -> list[ev.DurableEvent]:
    """A group's rollouts with their verdicts; those with an error failed."""
    found: list[ev.DurableEvent] = []
    for index, error in enumerate(errors):
        found.append(a_rollout_finished(position, index, error=error))
        found.append(judged(position, index, None if error else 1.0))
    return found


def test_failed_tries_beside_what_worked_are_made_again_at_any_resume() -> None:
    down = LostWork("extraction", "s1p2", "refused: nobody answers")
    state = fold_events(
        [
            a_run(),
            a_step(),
            *tried(0, None, "refused"),  # not reflected on yet
            *tried(1, None, "refused"),
            reflected(1, "used"),  # learned from as it is
            *tried(2, None, None),
            reflected(2, "failed", down),
            *tried(3, None, None),
            reflected(3, "failed", replace(HM, where="s1p3")),  # was read, not understood
            *tried(4, "refused", "refused"),
            reflected(4, "failed"),
            ev.RunEnded("stopped", "Ctrl-C"),
            ev.RunResumed(9, 1, "auto", {}),
        ]
    )
    step = state.steps[1]
    assert sorted(step.reflections) == [1, 3]
    failed = [place for place, found in step.rollouts.items() if found.status == "failed"]
    assert failed == [(1, 1)]
    assert (step.rollouts_done, step.failed) == (7, 1)
    assert dict(state.lost) == {"rollout": 1, "extraction": 1}
    assert dict(step.groups) == {"used": 1, "failed": 1}
    assert list(state.repairs) == ["s1p3"]


def test_nothing_is_tried_again_behind_a_lesson() -> None:
    events = [a_run(), a_step(), *tried(0, None, "refused"), ev.LessonProposed(1, a_lesson(A))]
    state = fold_events([*events, ev.RunResumed(9, 1, "auto", {})])
    assert state.steps[1].failed == state.lost["rollout"] == 1


def test_what_was_paid_is_what_the_records_said_at_the_end() -> None:
    events: list[ev.DurableEvent] = [a_run(), a_step(), *tried(0, None, None)]  # 14 tokens
    state = fold_events([*events, ev.RunEnded("stopped", "Ctrl-C", paid=Usage(70, 7, 5))])
    assert state.total_usage == Usage(70, 7, 5)
    fold(state, ev.RunResumed(9, 1, "auto", {}))
    for event in tried(1, None, None):
        fold(state, event)
    assert state.total_usage == Usage(70, 7, 5)  # events have not caught up with it
    for position in (2, 3):
        for event in tried(position, None, None):
            fold(state, event)
    assert state.total_usage == Usage(3 * 8, 4 * 8, 8)
    # A reply that was taken from the record stands in two events and was paid for once.
    fold(state, ev.RunEnded("finished", paid=Usage(80, 8, 6)))
    assert state.total_usage == Usage(80, 8, 6)
