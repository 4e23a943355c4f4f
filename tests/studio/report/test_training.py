"""What people and programs are told of a run that trains weights."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from engines.core import events as ev
from engines.core.codec import dumps
from engines.core.library import Library
from engines.core.state.fold import fold
from engines.core.state.run_state import RunState
from studio.facts.library import difference
from studio.facts.run import load_run_facts
from studio.facts.step import step_facts
from studio.facts.training import trained_step, trained_steps, training_facts
from studio.library.references import find_version
from studio.render.comparison_page import difference_page
from studio.render.json import json_data
from studio.render.library_lines import difference_lines
from studio.render.lines import sparkline
from studio.render.page import render_html
from studio.render.run_lines import run_text, step_text
from studio.render.training_lines import figure_text, figures_text, training_lines, value_curve
from studio.report.progress import LinePrinter
from studio.review.evidence import EvidenceLoader
from studio.review.line_mode import LineReview
from studio.review.review_run import RunReview, open_session
from studio.review.wording import WEIGHTS_AS_A_WHOLE, change_lines
from studio.session.requests import status_of
from studio.workspace.listing import listed_runs, runs_table
from studio.workspace.run_control import status_lines
from tests.support.summaries import end_json, end_text
from tests.support.training_runs import (
    a_state,
    begun,
    finished,
    history,
    metrics,
    proposed,
    settled,
    training_workspace,
    tried,
)

EMPTY = Library("lib", 0, (), 1)


def told(*events: ev.DurableEvent | ev.TransientEvent) -> list[str]:
    """What a person reads on stderr while these happen."""
    state = RunState()
    said: list[str] = []
    lines = LinePrinter(state, said.append)
    for event in events:
        if isinstance(event, ev.DurableEvent):
            fold(state, event)
        lines(event)
    return said


def test_a_curve_has_a_bar_a_value_and_ends_at_its_lowest_and_highest() -> None:
    # 0, 1/2 and 1 of eight heights: the first, round(3.5) = 4 to even, and the last.
    assert sparkline([0.0, 0.5, 1.0], 10) == "▁▅█"


def test_more_values_than_cells_are_averaged_in_equal_shares() -> None:
    # (0 + 0) / 2 = 0 and (1 + 1) / 2 = 1.
    assert sparkline([0.0, 0.0, 1.0, 1.0], 2) == "▁█"
    assert len(sparkline([n / 999 for n in range(1000)], 30)) == 30


def test_what_is_no_number_leaves_a_gap_and_level_values_stand_in_the_middle() -> None:
    assert sparkline([0.0, None, math.nan, 1.0], 4) == "▁  █"
    assert sparkline([0.3, 0.3], 4) == "▄▄"
    assert sparkline([], 4) == sparkline([None, math.inf], 4) == ""


def test_the_reward_curve_is_drawn_from_0_to_1_however_little_it_moves() -> None:
    steps = trained_steps(a_state(*begun(), *tried(1, (0, 0, 0)), *tried(2, (0, 0, 1))))
    steps = tuple(step for step in steps if step.value is not None)
    assert value_curve(steps, 10) == "▁▂"  # 0 and 1/12, not the whole height


def test_figures_are_rounded_by_what_they_are() -> None:
    assert figure_text("clip_share", 0.0213) == "2.1 %"
    assert figure_text("truncated", 0.125) == "12 %"
    assert figure_text("clip_low", 0.0) == "0 %"
    assert figure_text("length", 31.4) == "31"
    assert figure_text("tokens", 4019.0) == "4,019"
    assert figure_text("kl", 0.0031234) == "0.00312"
    assert figure_text("kl", 1.2345e-5) == "1.2e-05"
    assert figure_text("reward", 0.5) == "0.500"
    assert figure_text("grad_norm", math.nan) == "nan"


def test_every_step_says_what_became_of_its_update() -> None:
    steps = trained_steps(a_state(*history()))
    assert [step.update for step in steps] == [
        "applied", "applied", "rejected", "failed", "no update", "rolled back",
    ]  # fmt: skip
    assert steps[2].reason == "KL 9 is above 0.5"
    assert steps[3].reason == "the loss is not a number"
    assert steps[5].back_to == 2
    assert (steps[0].value, steps[0].n) == (3 / 12, 12)


def test_a_step_under_way_and_one_that_waits_are_told_apart() -> None:
    under_way = a_state(*begun(), *tried(1))
    waits = a_state(*begun(), *tried(1), proposed(1))
    assert [step.update for step in trained_steps(under_way)] == ["under way"]
    assert [step.update for step in trained_steps(waits)] == ["waits"]


def test_a_training_step_is_one_line_with_its_figures_and_policy() -> None:
    assert told(*begun(), *tried(1), proposed(1), *settled(1, 1)) == [
        "weights: 22,528 of 651,264 parameters are trained (3.5 %); cpu, float32, 1 thread",
        "step 1/30 reward 0.667 (n=12), kl 0.001, clip 2 %, entropy 0.49, |g| 0.8, length 31, "
        "policy v1",
    ]


def test_rejected_failed_idle_and_rolled_back_updates_say_so() -> None:
    lines = [line for line in told(*history()) if line.startswith("step")]
    assert lines[2].endswith("update rejected (KL 9 is above 0.5), policy stays v2")
    assert lines[3].endswith("update failed (the loss is not a number), policy stays v2")
    assert lines[4].endswith("no update: no group had contrast, policy stays v2")
    assert lines[5].endswith("rolled back to step 2, policy v3")


def test_a_checkpoint_is_told_with_its_folder() -> None:
    (line,) = [line for line in told(*history()) if line.startswith("checkpoint")]
    assert line == ("checkpoint of step 2 (policy v2): checkpoints/tiny/Experiment-1/global_step_2")


def test_an_update_that_waits_is_told_with_its_figures_and_the_command() -> None:
    lines = told(*begun(), *tried(1), proposed(1), ev.StageEntered(1, "review"))
    assert lines[-1].startswith(
        "step 1: its weight update is to be decided (studio review tiny): reward 0.667 (n=12)"
    )


def test_that_an_update_waits_is_told_once_a_step() -> None:
    review, hold = ev.StageEntered(1, "review"), ev.StageEntered(1, "hold", {"undecided": 1})
    lines = told(*begun(), *tried(1), proposed(1), review, hold)
    assert sum("is to be decided" in line for line in lines) == 1


def test_the_summary_of_a_training_run_tells_rewards_updates_weights_and_checkpoints() -> None:
    text = end_text(a_state(*finished()), EMPTY, EMPTY, "runs/tiny")
    assert (
        "reward      first step 1 0.250 (n=12); last step 7 0.917 (n=12); best step 5 1.000 (n=12)"
    ) in text
    assert (
        "updates     3 applied, 1 rejected, 1 rolled back, 1 failed, 1 without one "
        "(no group had contrast); policy v4"
    ) in text
    assert "    rolled back to step 2 at step 6\n" in text
    assert "weights     22,528 of 651,264 parameters are trained (3.5 %)" in text
    folder = "runs/tiny/checkpoints/tiny/Experiment-1/global_step_7"
    assert f"checkpoint  step 7, policy v4: {folder} (2 saved)" in text
    assert "lost     1 update" in text


def test_held_out_rewards_of_a_training_run_stand_before_and_after_with_intervals() -> None:
    text = end_text(a_state(*finished()), EMPTY, EMPTY, "runs/tiny")
    assert "skills-heldout after step 0, policy v0  0.150 [0.00, 0.32] (n=20)" in text
    assert "skills-heldout after step 7, policy v4  0.750 [0.54, 0.96] (n=20)" in text
    assert "skills-heldout policy v0 -> policy v4: +0.600 [+0.36, +0.84], helps" in text


def test_a_library_that_training_left_alone_is_no_noise_in_its_summary() -> None:
    state = a_state(*finished())
    text = end_text(state, EMPTY, EMPTY, "runs/tiny")
    assert "library" not in text
    assert "experience" not in text
    assert "@best" not in text  # a name for a version of a library


def test_the_json_of_a_summary_names_its_training_facts() -> None:
    found = end_json(a_state(*finished()), EMPTY, EMPTY)["training"]
    for name, step, value in (("first", 1, 0.25), ("last", 7, pytest.approx(11 / 12))):
        notable = found["reward"][name]
        assert (notable["step"], notable["value"], notable["n"]) == (step, value, 12)
    assert found["reward"]["best"]["step"] == 5
    assert found["updates"] == {
        "applied": 3, "rejected": 1, "rolled_back": 1, "failed": 1, "no_update": 1,
        "library_step": 0,
    }  # fmt: skip
    assert found["rolled_back"] == {"6": 2}
    assert found["last_checkpoint"] == "checkpoints/tiny/Experiment-1/global_step_7"
    assert [saved["policy_version"] for saved in found["checkpoints"]] == [2, 4]
    assert found["engine"]["trainable"] == 22_528
    assert found["policy_version"] == 4
    third = found["steps"][2]
    assert (third["update"], third["reason"]) == ("rejected", "KL 9 is above 0.5")
    assert third["metrics"]["kl"] == 9.0


def test_the_json_holds_no_figure_that_json_has_no_word_for() -> None:
    state = a_state(*begun(), *tried(1), proposed(1, figures=metrics(1, kl=math.nan)))
    data = json.loads(dumps(json_data(training_facts(state))))
    assert data["steps"][0]["metrics"]["kl"] is None


def test_what_others_wrote_neither_steers_a_terminal_nor_breaks_a_line() -> None:
    odd = "\x1b[2J[bold]\n\u202eno"
    state = a_state(
        begun()[0], ev.EngineOpened({"device": odd, "threads": None, "parameters": 0}),
        *tried(1), proposed(1, figures={odd: 1.0}), *settled(1, 0, rejected=odd),
        *tried(2), proposed(2, failed=odd), *settled(2, 0, decided=False),
        ev.CheckpointSaved(2, odd, 0, "d"),
    )  # fmt: skip
    lines = training_lines(training_facts(state))
    assert len(lines) == 7
    assert not any(char in line for line in lines for char in "\x1b\n\u202e")


def test_a_run_without_weights_has_no_training_facts() -> None:
    state = a_state(begun()[0])
    assert end_json(state, EMPTY, EMPTY)["training"] is None
    assert status_of(state)["policy_version"] is None


def test_a_training_run_that_was_cut_early_is_told_all_the_same() -> None:
    for events in (begun(), [*begun(), ev.StepStarted(1, 1, ("p",), 0, 0)]):
        state = a_state(*events)
        assert training_lines(training_facts(state))[0] == "updates     none yet; policy v0"
        assert end_text(state, EMPTY, EMPTY, "x")
        assert training_facts(state).reward == {"first": None, "last": None, "best": None}


def test_runs_show_lists_the_figures_of_every_step(tmp_path: Path) -> None:
    workspace = training_workspace(tmp_path, finished())
    tiny = workspace.run("tiny")
    text = run_text(load_run_facts(tiny, workspace, alive=False))
    assert "policy v0 -> v4" in text
    row = next(line for line in text.splitlines() if line.split()[:1] == ["3"])
    assert row.split() == [
        "3", "0.750", "(n=12)", "9", "2", "%", "0.47", "0.8", "31", "rejected",
    ]  # fmt: skip
    assert "rolled back to 2" in text
    assert "PROPOSED" not in text


def test_runs_list_names_the_policy_instead_of_a_library(tmp_path: Path) -> None:
    workspace = training_workspace(tmp_path, finished())
    table = runs_table(listed_runs(workspace))
    assert "policy v4" in table
    assert "lib@0" not in table


def test_a_step_page_shows_all_figures_of_its_update_and_what_was_decided(tmp_path: Path) -> None:
    workspace = training_workspace(tmp_path, finished())
    text = step_text(step_facts(workspace.run("tiny"), 3), prompts=True)
    assert "weight update\n" in text
    assert "  KL              9\n" in text
    assert "op3.w  rejected by auto -> not applied\n      because: KL 9 is above 0.5" in text
    assert text.endswith("committed: policy v2")
    assert "consolidation" not in text
    back = step_text(step_facts(workspace.run("tiny"), 6), prompts=False)
    assert "  back to the weights of step 2\n" in back
    failed = step_text(step_facts(workspace.run("tiny"), 4), prompts=False)
    assert "  none was computed\n  lost: the loss is not a number" in failed


def test_a_status_tells_the_policy_and_the_last_step(tmp_path: Path) -> None:
    answer = {**status_of(a_state(*history(), *tried(7), proposed(7))), "alive": True}
    lines = status_lines(answer)
    assert lines[2] == "policy v3, review: wait"
    assert lines[3].startswith("training: step 7: reward 0.667 (n=12), kl 0.007")
    assert lines[-1] == "1 weight update is open: studio review tiny"
    for count, words in ((1, "1 operation is open"), (3, "3 operations are open")):
        lines = status_lines({**answer, "training": None, "open": count})
        assert lines[-1] == f"{words}: studio review tiny"


def test_two_steps_of_a_training_run_are_compared_by_figures_and_held_out(tmp_path: Path) -> None:
    workspace = training_workspace(tmp_path, finished())
    older, newer = find_version("tiny@step:0", workspace), find_version("tiny@step:7", workspace)
    lines = difference_lines(difference(older, newer))
    assert lines == [
        "tiny@step:0 (weights after step 0) -> tiny@step:7 (weights after step 7)",
        "this run changes weights, not its library: there is no experience to compare",
        "before: the weights as they were loaded, before the first step",
        "after: step 7: reward 0.917 (n=12), kl 0.007, clip 2 %, entropy 0.43, |g| 0.8, "
        "length 31; its update: applied",
        "before: skills-heldout: mean reward 0.150 [0.00, 0.32] (n=20)",
        "after: skills-heldout: mean reward 0.750 [0.54, 0.96] (n=20)",
        "skills-heldout: +0.600 [+0.36, +0.84] helps",
    ]
    assert difference(older, newer).b.weights.startswith("step 7: reward 0.917")
    assert "changes weights" in render_html(difference_page(difference(older, newer)))


def test_an_update_rests_on_all_groups_of_its_step_in_sample_order(tmp_path: Path) -> None:
    workspace = training_workspace(tmp_path, [*history(), *tried(7), proposed(7)])
    state = workspace.run("tiny").state()
    groups = EvidenceLoader(workspace.run("tiny")).operation_groups(state.operations["op7.w"])
    assert [(group.id, group.won, group.n) for group in groups] == [
        ("s7p0", 3, 4), ("s7p1", 1, 4), ("s7p2", 4, 4),
    ]  # fmt: skip


def test_line_review_shows_an_update_as_its_figures() -> None:
    state = a_state(*begun(), *tried(1), proposed(1, back_to=1))
    (line, *more) = change_lines(state.operations["op1.w"], {})
    assert line == "^ back to the weights of step 1"
    assert "^ KL 0.001" in more


def test_figures_that_an_engine_does_not_give_are_left_away() -> None:
    step = trained_step(a_state(*begun(), *tried(1), proposed(1, figures={"kl": 0.5})), 1)
    assert step is not None
    assert figures_text(step) == "reward 0.667 (n=12), kl 0.5"


def test_line_review_takes_or_leaves_an_update_and_refuses_anything_between(
    tmp_path: Path,
) -> None:
    held = [*history(), *tried(7), proposed(7), ev.RunEnded("held")]
    workspace = training_workspace(tmp_path, held)
    run = workspace.run("tiny")
    said: list[str] = []
    typed = iter(["e better", "M E1 better", "t", "o", "l", "r it unlearns sums"])
    with open_session(workspace, run, "sam") as (session, wait_for):
        sitting = LineReview(
            RunReview(session, wait_for, False, said.append, said.append),
            lambda prompt: next(typed, None),
            lambda text: pytest.fail("an update has no wording"),
            EvidenceLoader(run),
            clock=lambda: 0.0,
        )
        sitting.ask_all()
    assert said.count(WEIGHTS_AS_A_WHOLE) == 3
    first = said[0]
    assert "op7.w  WEIGHTS  (1 open)" in first
    assert "  ^ reward 0.6\n" in first
    assert "  s7p1  1 of 4 won" in first
    assert "--- s7p1r3  reward 0" in "\n".join(said)
    decided = [
        entry.event.decision
        for entry in run.entries()
        if isinstance(entry.event, ev.OperationDecided) and entry.event.step == 7
    ]
    assert [(made.operation_id, made.action, made.reason) for made in decided] == [
        ("op7.w", "reject", "it unlearns sums")
    ]
