"""What a person is told while a run goes: lines in a pipe, a redrawn block on a terminal."""

from __future__ import annotations

import io
from typing import Any

import pytest

from engines.core import events as ev
from engines.core.library import OperationOutcome
from engines.core.state.fold import fold, fold_events
from engines.core.state.run_state import RunState
from engines.core.types import CallKey, Lesson, LostWork, Reflection, Usage, Verdict
from studio.report.progress import (
    Display,
    LinePrinter,
    commit_line,
    display_lines,
    duration_text,
    progress_bar,
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


def a_state(**more: Any) -> RunState:
    return fold_events([a_run(**more), a_step(), a_rollout_finished(), judged(1.0)])


def test_the_block_shows_place_stages_reward_with_n_and_spending() -> None:
    assert display_lines(a_state()) == [
        "epoch 1/1  step 1/2  running",
        f"rollouts  {progress_bar(1, 4)}",  # 2 problems in groups of 2
        f"verdicts  {progress_bar(1, 4)}",
        f"groups    {progress_bar(0, 2)}",
        "reward so far 1.000 (n=1)  1 call, 7 tokens",
    ]


def test_the_block_says_rehearsal_eta_and_what_waits_for_review() -> None:
    state = a_state(rehearsal=True)
    fold(state, ev.LessonProposed(1, a_lesson(OPERATION)))
    lines = display_lines(state, "1m 15s")
    assert lines[0] == "epoch 1/1  step 1/2  reviewing  rehearsal"
    assert lines[-1] == "REVIEW 1: studio review exp"
    assert "ETA" not in lines[-2], "nobody knows how long a person takes"
    fold(state, ev.OperationDecided(1, a_decision(OPERATION)))
    assert display_lines(state, "1m 15s")[-1].endswith("ETA 1m 15s")


def test_between_steps_the_block_is_one_line() -> None:
    state = a_state()
    fold(state, ev.StepFinished(1, 1))
    assert display_lines(state) == ["epoch 1/1  step 1/2  running"]
    assert display_lines(RunState()) == ["epoch 0/0  step 0/0  new"]


@pytest.mark.parametrize(
    ("done", "total", "drawn"),
    [
        (0, 4, "[....] 0/4"),
        (1, 3, "[#...] 1/3"),
        (3, 4, "[###.] 3/4"),
        (4, 4, "[####] 4/4"),
        (0, 0, "[....] 0/0"),
    ],
)
def test_a_bar_is_full_only_when_everything_is_done(done: int, total: int, drawn: str) -> None:
    assert progress_bar(done, total, 4) == drawn


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


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_the_eta_is_the_median_step_time_times_the_steps_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    state = fold_events([a_run(steps_per_epoch=5)])
    now = [0.0]
    stream = Terminal()
    with Display(state, stream, clock=lambda: now[0]) as display:
        for step, took in enumerate((100.0, 900.0, 200.0), 1):
            for event in (a_step(step), ev.StepFinished(1, step)):
                fold(state, event)
                display(event)
                now[0] += took
        fold(state, a_step(4))
        display(a_step(4))
    # Steps took 100, 900 and 200 s, the median is 200 s, and two of five are left.
    assert "ETA 6m 40s" in stream.getvalue()
    assert "step 1 of 5" in stream.getvalue(), "lines stay above the block"


def test_the_time_a_person_takes_to_review_is_not_in_the_eta(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    state = fold_events([a_run()])
    now = [0.0]
    stream = Terminal()
    # Practice takes 10 s, the person an hour, the commit 2 s.
    events = (
        (a_step(1), 10.0),
        (ev.LessonProposed(1, a_lesson(OPERATION)), 0.0),
        (ev.StageEntered(1, "review"), 3600.0),
        (ev.OperationDecided(1, a_decision(OPERATION)), 0.0),
        (ev.LessonCommitted(1, 1, "h", (OperationOutcome(OPERATION.id, "add", True, "E1"),)), 2.0),
        (ev.StepFinished(1, 1), 0.0),
        (a_step(2), 0.0),
    )
    with Display(state, stream, clock=lambda: now[0]) as display:
        for event, took in events:
            fold(state, event)
            display(event)
            now[0] += took
    assert "ETA < 1 min" in stream.getvalue()


def test_an_evaluation_under_way_has_a_bar_of_its_own() -> None:
    state = a_state()
    fold(state, ev.EvaluationProgressed(0, "held", 3, 8))
    lines = display_lines(state)
    assert lines[1:] == [f"held-out held  {progress_bar(3, 8)}"]


def test_an_evaluation_says_in_one_line_that_it_began() -> None:
    events = (ev.EvaluationProgressed(0, "aime", done, 30) for done in range(3))
    assert told(*events) == ["evaluating aime: 30 rollouts …"]
