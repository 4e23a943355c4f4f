"""The curves of a run as values: reward, held-out sets, commits, tokens, and words for a step."""

from __future__ import annotations

from dataclasses import replace

from engines.core import events as ev
from engines.core.library import OperationOutcome
from engines.core.state.fold import fold
from engines.core.state.list_row import Point
from engines.core.state.run_state import RunState
from engines.core.types import Lesson, Usage
from studio.facts.curves import Commit, RunCurves, curves_key, run_curves, running_mean
from studio.facts.run import with_parent
from studio.render.training_lines import held_out_change_text, step_summary
from studio.tui.drawing.lines import plain_text
from studio.tui.pages.progress.page import draw_picture
from tests.support.builders import a_run
from tests.support.training_runs import (
    a_state,
    begun,
    finished,
    history,
    proposed,
    settled,
    tried,
)


def a_library_run(*, cost_usd: float | None = None) -> RunState:
    """Two epochs of one step: the first changes the library, the second keeps it."""
    events: list[ev.DurableEvent] = [a_run(run="mine", epochs=2, steps_per_epoch=1, group_size=4)]
    outcomes = (
        OperationOutcome("op1.1", "add", True, "E1"),
        OperationOutcome("op1.2", "modify", False, None, "rejected"),
        OperationOutcome("op1.3", "keep", True, "E1"),
    )
    for step, became in ((1, outcomes), (2, ())):
        begins, *others = tried(step)
        assert isinstance(begins, ev.StepStarted)
        events.append(replace(begins, epoch=step))
        for event in others:
            if isinstance(event, ev.RolloutFinished):
                event = replace(event, usage=Usage(20, 30, 1, cost_usd))
            events.append(event)
        events.append(ev.LessonProposed(step, Lesson(step, 0)))
        events += [ev.LessonCommitted(step, 1, "hash", became), ev.StepFinished(step, step)]
    return a_state(*events)


def test_a_fork_has_the_steps_it_adopted_on_its_curves() -> None:
    parent, fork = a_library_run(), a_state(a_run(run="fork", forked_from="mine", forked_steps=1))
    parent.training = {1: {"loss": 2.0}, 2: {"loss": 1.0}}
    whole = with_parent(fork, parent)
    assert run_curves(fork).steps == () and run_curves(whole).steps == (1,)
    assert whole.training == {1: {"loss": 2.0}}, "of a run that trains, too"


def test_a_library_run_has_reward_commits_sizes_and_a_gap_at_each_epoch() -> None:
    curves = run_curves(a_library_run(), {0: 0, 1: 5})
    # 3 + 1 + 4 of 12 rollouts are right in both.
    assert curves.practice.points == (Point(1, 8 / 12, 12), Point(2, 8 / 12, 12))
    assert (curves.steps, curves.last_step, curves.steps_planned) == ((1, 2), 2, 2)
    assert curves.commits == (Commit(1, 1, "applied", 5),)
    assert curves.epochs == (1, 2)
    # 12 rollouts of 50 tokens a step, added up; no price is known.
    assert curves.tokens.points == (Point(1, 600), Point(2, 1200))
    assert curves.cost is None and not curves.held_out and not curves.updates


def test_an_alternating_run_marks_library_commits_beside_those_of_the_policy() -> None:
    begins, *others = tried(2)
    assert isinstance(begins, ev.StepStarted)
    done = ev.LessonCommitted(2, 1, "h", (OperationOutcome("op2.1", "add", True, "E1"),))
    state = a_state(*begun(), *tried(1), proposed(1), *settled(1, 1),
                    replace(begins, learns="library"), *others,
                    ev.LessonProposed(2, Lesson(2, 0)), done, ev.StepFinished(1, 2))  # fmt: skip
    first, second = run_curves(state, {1: 1}).commits
    assert (first.step, first.outcome, first.beside_weights) == (1, "applied", False)
    assert second == Commit(2, 1, "applied", 1, beside_weights=True)
    assert "1 operation committed, v1 (1 experience)" in step_summary(state, 2, {1: 1})
    lines = draw_picture(run_curves(state), None, "", (116, 24)).lines
    (row,) = [text for text in map(plain_text, lines) if text.lstrip().startswith("policy ")]
    assert row.split() == ["policy", "v1", "library", "v1"]


def test_a_cost_is_there_only_where_every_call_has_a_price() -> None:
    curves = run_curves(a_library_run(cost_usd=0.01))
    assert curves.cost is not None
    assert [round(p.value, 4) for p in curves.cost.points] == [0.12, 0.24]
    state = a_library_run(cost_usd=0.01)
    state.steps[2].usage = Usage(1, 1, 1)
    assert run_curves(state).cost is None


def test_a_training_run_has_updates_what_became_of_them_and_intervals() -> None:
    curves = run_curves(a_state(*finished()))
    outcomes = {commit.step: commit.outcome for commit in curves.commits}
    assert outcomes == {
        1: "applied", 2: "applied", 3: "rejected", 6: "rolled back", 7: "applied",
    }  # fmt: skip
    assert [series.name for series in curves.updates] == ["KL", "loss"]
    assert [p.step for p in curves.updates[0].points] == [1, 2, 3, 6, 7]  # 4 and 5 had none
    (held_out,) = curves.held_out
    before, after = held_out.points
    # 3 of 20 and 15 of 20 right: mean ± t(0.975, 19) · s/√20 = 2.093 · 0.366/4.472 and 0.444/4.472
    assert (before.step, before.value, before.n, after.step, after.value) == (0, 0.15, 20, 7, 0.75)
    assert before.low == 0.0 and before.high is not None and abs(before.high - 0.321) < 0.001
    assert after.low is not None and abs(after.low - 0.542) < 0.001
    assert held_out_change_text(held_out) == "skills-heldout 0.150 -> 0.750 (n=20)"
    assert curves.steps[0] == 0 and curves.is_over


def test_the_key_changes_with_each_event_that_changes_a_curve_and_no_other() -> None:
    state = a_state(*begun())
    keys, drawn = {curves_key(state)}, [_shown(run_curves(state))]
    for event in (*tried(1), proposed(1), *settled(1, 1), *history()[1:3]):
        before = curves_key(state)
        fold(state, event)
        if curves_key(state) == before:
            assert _shown(run_curves(state)) == drawn[-1], event
        keys.add(curves_key(state))
        drawn.append(_shown(run_curves(state)))
    assert len(keys) == 6  # begun, step, lesson, commit, end of the step, evaluation


def _shown(curves: RunCurves) -> tuple[object, ...]:
    shown = (curves.practice, curves.held_out, curves.commits, curves.steps, curves.epochs)
    return (*shown, curves.tokens, curves.cost)


def test_a_running_mean_weighs_each_step_by_its_rollouts() -> None:
    points = [Point(1, 1.0, 10), Point(2, 0.0, 30), Point(3, 0.5, 10)]
    # 1; (10 + 0) / 40 = 0.25; of the last two (0 + 5) / 40 = 0.125
    assert running_mean(points, 2) == (
        Point(1, 1.0, 10), Point(2, 0.25, 40), Point(3, 0.125, 40),
    )  # fmt: skip
    assert [p.step for p in running_mean(points, 2, every=2)] == [1, 3]


def test_the_words_for_a_step_give_exact_figures() -> None:
    state = a_library_run(cost_usd=0.01)
    text = "step 1, epoch 1: reward 0.667 (n=12), 1 operation committed, v1 (5 experiences)"
    assert step_summary(state, 1, {1: 5}) == f"{text}, 600 tokens, $0.1200"
    assert step_summary(state, 9) == "it has no step 9"
    weights = step_summary(a_state(*history()), 3)
    assert "kl 9" in weights and "update rejected (KL 9 is above 0.5)" in weights
