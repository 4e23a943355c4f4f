"""What a person is told while a run goes: lines in a pipe, a redrawn block on a terminal."""

from __future__ import annotations

from typing import Any

import pytest

from engines.core import events as ev
from engines.core.library import OperationOutcome
from engines.core.state.fold import fold, fold_events
from engines.core.types import CallKey, Lesson, LostWork, Reflection, Usage, Verdict
from studio.report.progress import (
    LinePrinter,
    commit_line,
    duration_text,
)
from tests.support.builders import (
    a_decision,
    a_lesson,
    a_rollout_finished,
    a_run,
    a_step,
    an_operation,
)

OPERATION = an_operation()


def told(*events: Any, run: ev.RunStarted | None = None) -> list[str]:
    """Every line said about these events of a run, folded as they come."""
    state = fold_events([run or a_run(epochs=2)])
    said: list[str] = []
    lines = LinePrinter(state, said.append)
    for event in events:
        if not isinstance(event, ev.TransientEvent):
            fold(state, event)
        lines(event)
    return said


def judged(reward: float | None, index: int = 0) -> ev.RolloutJudged:
    error = "timeout: 2 s" if reward is None else None
    return ev.RolloutJudged(1, 0, index, Verdict(reward, error=error))


def test_a_step_begins_with_its_place_in_the_run_its_problems_and_library() -> None:
    # 2 epochs of 2 steps each.
    assert told(a_step(library_version=3)) == ["step 1 of 4, epoch 1 of 2: 2 problems, library v3"]


def test_a_lesson_tells_rewards_with_n_groups_operations_and_spending() -> None:
    (line,) = told(
        a_step(),
        a_rollout_finished(0, 0),
        judged(1.0),
        a_rollout_finished(0, 1),
        judged(0.0, 1),
        ev.GroupReflected(1, 0, Reflection(1, 0, "used")),
        ev.GroupReflected(1, 1, Reflection(1, 1, "all-right")),
        ev.LessonProposed(1, a_lesson(OPERATION)),
    )[1:]
    assert line == (
        "step 1: reward 0.500 (n=2); groups: 1 all-right, 1 used; 1 operation proposed; "
        "2 calls, 14 tokens"
    )


def test_a_known_price_is_told_and_an_unknown_one_is_not_shown_as_zero() -> None:
    def lesson(usage: Usage) -> str:
        return told(a_step(), ev.LessonProposed(1, Lesson(1, 0, usage=usage)))[-1]

    assert "$0.0250" in lesson(Usage(1, 1, 1, 0.025))
    assert "$" not in lesson(Usage(1, 1, 1, None))


def test_a_review_that_waits_names_the_command_and_one_by_itself_does_not() -> None:
    events = (a_step(), ev.LessonProposed(1, a_lesson(OPERATION)), ev.StageEntered(1, "review"))
    assert told(*events)[-1] == "step 1: 1 operation to review (studio review exp)"
    alone = told(*events, run=a_run(reviewer="auto"))
    assert not any("studio review" in line for line in alone)


def test_a_review_with_nothing_left_to_decide_says_nothing() -> None:
    decided = ev.OperationDecided(1, a_decision(OPERATION))
    events = (a_step(), ev.LessonProposed(1, a_lesson(OPERATION)), decided)
    assert told(*events, ev.StageEntered(1, "review")) == told(*events)


def test_an_idea_that_is_withheld_and_a_lost_consolidation_are_told_with_their_step() -> None:
    lesson = Lesson(
        1,
        0,
        withheld=(OPERATION,),
        losses=(
            LostWork("extraction", "s1p0", "its JSON is not valid"),
            LostWork("consolidation", "step 1", "timeout: 60 s"),
        ),
    )
    line = told(a_step(), ev.LessonProposed(1, lesson))[-1]
    assert "; 1 idea withheld: rejected before; " in line
    assert "; its consolidation failed: timeout: 60 s; " in line
    plain = told(a_step(), ev.LessonProposed(1, a_lesson(OPERATION)))[-1]
    assert "withheld" not in plain and "failed" not in plain


def test_what_a_person_did_with_a_lost_reply_is_told() -> None:
    lost = Lesson(1, 0, losses=(LostWork("consolidation", "step 1", "no JSON", "{"),))
    events = (a_step(), ev.LessonProposed(1, lost))
    mended = told(*events, ev.ReplyMended(1, "s1", (OPERATION,), "ann"))[-1]
    assert mended == "reply s1: mended by ann; it holds 1 operation"
    dropped = told(*events, ev.ReplyDropped(1, "s1", "noise\x1b[2J", "ann"))[-1]
    assert dropped == "reply s1: dropped by ann: noise\\u001b[2J"


def test_rules_that_leave_something_say_so_only_once_they_had_their_say() -> None:
    proposed = (a_step(), ev.LessonProposed(1, a_lesson(OPERATION)), ev.StageEntered(1, "review"))
    ruled = a_run(reviewer="rules:r.yaml")
    assert not any("studio review" in line for line in told(*proposed, run=ruled))
    held = told(*proposed, ev.StageEntered(1, "hold", {"undecided": 1}), run=ruled)[-1]
    assert held == (
        "step 1: no rule settled 1 operation; a person is to decide: studio review exp, "
        "or a rule with do: defer"
    )


def test_a_returned_lesson_says_between_which_versions_the_library_moved() -> None:
    events = (a_step(), ev.LessonProposed(1, a_lesson(OPERATION)), ev.LessonReturned(1, 0, 4))
    assert "moved from v0 to v4" in told(*events)[-1]


def test_a_commit_counts_each_kind_and_what_was_rejected() -> None:
    outcomes = (
        OperationOutcome("a", "add", True, "E1"),
        OperationOutcome("b", "add", True, "E2"),
        OperationOutcome("c", "delete", True, "E0"),
        OperationOutcome("d", "modify", False, None, "it is gone"),
    )
    assert commit_line(outcomes, 5) == "library v5: 2 added, 1 deleted, 1 rejected"
    assert commit_line(outcomes[:1], 5) == "library v5: 1 added"
    assert told(a_step(), ev.LessonCommitted(1, 5, "h", outcomes))[-1].startswith("step 1: library")


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (
            ev.EvaluationFinished(
                step=1,
                data="held",
                policy_version=0,
                library_version=1,
                k=1,
                n=8,
                unjudged=0,
                mean=0.25,
                usage=Usage(),
            ),
            "held-out held: mean reward 0.250 (n=8)",
        ),
        (
            ev.EvaluationFinished(
                step=1,
                data="held",
                policy_version=0,
                library_version=1,
                k=1,
                n=0,
                unjudged=3,
                mean=None,
                usage=Usage(),
            ),
            "held-out held: mean reward none known (n=0), 3 unjudged",
        ),
        (ev.RunPaused(), "paused (studio ctl resume goes on)"),
        (ev.RunContinued(), "going on"),
    ],
)
def test_other_events_that_matter_are_a_line_each(event: ev.DurableEvent, line: str) -> None:
    assert told(event) == [line]


def test_a_lost_worker_is_told_and_that_none_is_left() -> None:
    lost = "node n1 was lost: its process ended; its tries are made again"
    assert told(ev.NodesChanged(("n1",))) == []
    assert told(ev.NodesChanged(("n1",), lost)) == [lost]
    assert told(ev.NodesChanged((), lost))[1].startswith("no worker of the cluster is left")


def test_a_failed_rollout_is_told_on_one_harmless_line_of_bounded_length() -> None:
    (line,) = told(a_step(), a_rollout_finished(error="status: \x1b[31mno\nway " + "x" * 500))[1:]
    assert line.startswith("step 1: a rollout failed: status: \\u001b[31mno way")
    assert len(line) <= 200
    assert "\n" not in line


def test_what_happens_many_times_a_step_is_not_told() -> None:
    key = CallKey("rollout", 1, 1, 0, 0)
    quiet = (
        ev.RolloutStarted(key, "p0"),
        ev.TextStreamed(key, "hello"),
        a_rollout_finished(),
        judged(1.0),
        ev.GroupReflected(1, 0, Reflection(1, 0, "used")),
    )
    assert len(told(a_step(), *quiet)) == 1


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.2, "0 s"),
        (59.4, "59 s"),
        (59.6, "1m 00s"),
        (61, "1m 01s"),
        (3599.6, "1h 00m"),
        (7384, "2h 03m"),
    ],
)
def test_a_duration_is_told_in_its_two_largest_units(seconds: float, shown: str) -> None:
    assert duration_text(seconds) == shown


def test_an_evaluation_says_in_one_line_that_it_began() -> None:
    events = (ev.EvaluationProgressed(0, "aime", done, 30) for done in range(3))
    assert told(*events) == ["evaluating aime: 30 rollouts …"]
