"""How a run went, in numbers and words, and the exit code that follows."""

from __future__ import annotations

from typing import Any

import pytest

from engines.core import events as ev
from engines.core.library import Library, OperationOutcome
from engines.core.state.fold import fold, fold_events
from engines.core.state.run_state import Rewards, RunState
from engines.core.types import LostWork, Reflection, Usage, Verdict
from studio.exit_codes import run_exit_code
from studio.facts.library import library_difference
from studio.facts.run import run_progress
from studio.render.library_lines import library_lines, tokens_text
from studio.render.words import mean_reward_text, usage_text
from tests.support.builders import (
    a_decision,
    a_lesson,
    a_library,
    a_rollout_finished,
    a_run,
    a_step,
    an_operation,
)
from tests.support.summaries import end_json, end_text

ADD = an_operation("add", text="Carry: mind it.")
BEFORE, AFTER = a_library(), a_library("Carry: mind it.", version=1)


def a_finished_run(**more: Any) -> RunState:
    """Two rollouts of one problem with rewards 1 and 0, one addition, one step of two."""
    return fold_events(
        [
            a_run(**more),
            a_step(),
            a_rollout_finished(0, 0),
            ev.RolloutJudged(1, 0, 0, Verdict(1.0)),
            a_rollout_finished(0, 1),
            ev.RolloutJudged(1, 0, 1, Verdict(0.0)),
            ev.GroupReflected(1, 0, Reflection(1, 0, "used")),
            ev.LessonProposed(1, a_lesson(ADD)),
            ev.OperationDecided(1, a_decision(ADD, assigned="E1")),
            ev.LessonCommitted(1, 1, "hash", (OperationOutcome(ADD.id, "add", True, "E1"),)),
            ev.StepFinished(1, 1),
        ]
    )


def ended(state: RunState, how: str = "finished", reason: str = "") -> RunState:
    return fold(state, ev.RunEnded(how, reason))


def text_of(state: RunState, before: Library = BEFORE, after: Library = AFTER) -> str:
    return end_text(state, before, after, "practice/runs/exp")


def test_the_end_tells_library_before_and_after_rewards_with_n_losses_and_place() -> None:
    text = text_of(ended(a_finished_run()))
    assert "run exp: finished after step 1 of 2" in text
    assert "epoch 1  0.500 (n=2)" in text  # (1 + 0) / 2
    assert "  groups   1 used\n" in text
    assert "library lib  v0 -> v1  1 added" in text
    assert "+ E1  Carry: mind it." in text
    assert "lost     nothing" in text
    assert "folder   practice/runs/exp" in text


def test_json_holds_the_same_facts() -> None:
    state = ended(a_finished_run())
    data = end_json(state, BEFORE, AFTER)
    assert data["kind"] == "Summary"
    assert data["epochs"] == [{"epoch": 1, "mean_reward": 0.5, "n": 2, "interval": None}]
    assert data["groups"]["used"] == 1
    assert data["library"]["added"] == ["E1"]
    assert (data["library"]["before"], data["library"]["after"]) == (0, 1)
    assert (data["open"], data["lost"], data["steps_finished"]) == ([], {}, 1)
    # Two rollouts of one call with 3 + 4 tokens each.
    usage = data["usage"]
    assert (usage["calls"], usage["prompt_tokens"], usage["completion_tokens"]) == (2, 6, 8)


def test_scripted_replies_are_called_a_rehearsal_and_only_those() -> None:
    assert "rehearsal" in text_of(ended(a_finished_run(rehearsal=True)))
    assert "rehearsal" not in text_of(ended(a_finished_run()))
    assert end_json(a_finished_run(rehearsal=True), BEFORE, AFTER)["rehearsal"] is True


def test_adopted_steps_are_named_with_the_run_they_come_from() -> None:
    state = fold_events([a_run(forked_from="old", forked_steps=2), a_step(3)])
    assert "steps 1-2 adopted from run old" in text_of(state)


def test_open_operations_name_the_command_that_decides_them() -> None:
    state = fold_events([a_run(), a_step(), ev.LessonProposed(1, a_lesson(ADD))])
    text = text_of(ended(state, "held", "operations are left to decide"), after=BEFORE)
    assert "held (operations are left to decide)" in text
    assert "open     1 operation: studio review exp" in text


def test_losses_are_counted_by_kind_and_the_first_shown_with_their_words() -> None:
    state = a_finished_run()
    losses = tuple(
        LostWork("extraction", f"s2p{n}", f"said {n}\x1b[31m\nand more") for n in range(5)
    )
    fold(state, a_step(2))
    fold(state, ev.GroupReflected(2, 0, Reflection(2, 0, "used", losses=losses)))
    text = text_of(ended(state))
    assert "lost     5 extractions" in text
    assert "and 2 more: studio runs show exp" in text
    assert "extraction s2p0: said 0\\u001b[31m and more" in text
    assert "s2p4" not in text
    assert end_json(state, BEFORE, AFTER)["lost"] == {"extraction": 5}


def test_held_out_results_come_with_version_n_and_what_was_not_judged() -> None:
    state = a_finished_run()
    fold(
        state,
        ev.EvaluationFinished(
            step=0,
            data="heldout",
            policy_version=0,
            library_version=0,
            k=1,
            n=8,
            unjudged=2,
            mean=0.25,
            usage=Usage(),
        ),
    )
    fold(
        state,
        ev.EvaluationFinished(
            step=1,
            data="heldout",
            policy_version=0,
            library_version=1,
            k=1,
            n=0,
            unjudged=10,
            mean=None,
            usage=Usage(),
        ),
    )
    text = text_of(ended(state))
    assert "heldout after step 0, v0  0.250 (n=8), 2 unjudged" in text
    assert "heldout after step 1, v1  none known (n=0), 10 unjudged" in text


def test_a_price_is_shown_where_it_is_known_and_never_guessed_as_zero() -> None:
    assert usage_text(Usage(1000, 234, 3210)) == "3,210 calls, 1,234 tokens"
    assert usage_text(Usage(1000, 234, 3, 0.0123)) == "3 calls, 1,234 tokens, $0.0123"
    assert "$" not in text_of(ended(a_finished_run()))


def test_a_mean_without_known_rewards_is_no_number() -> None:
    assert mean_reward_text(Rewards()) == "none known (n=0)"
    assert mean_reward_text(Rewards(2.0, 3)) == "0.667 (n=3)"


def test_progress_counts_steps_over_all_epochs_and_is_zero_before_anything_is_known() -> None:
    state = fold_events([a_run(epochs=3, steps_per_epoch=4), a_step(6, epoch=2)])
    found = run_progress(state)
    assert (found.epoch, found.epochs, found.step, found.steps) == (2, 3, 6, 12)
    assert run_progress(RunState()).steps == 0


@pytest.mark.parametrize(
    ("how", "reason", "open_", "lost", "code"),
    [
        ("finished", "", False, False, 0),
        ("finished", "", False, True, 4),
        ("finished", "", True, True, 3),
        ("held", "operations are left to decide", True, False, 3),
        ("stopped", "Ctrl-C", True, True, 130),
        ("stopped", "studio ctl stop", False, False, 130),
        ("stopped", "after this step", False, False, 0),
        ("stopped", "after this step", False, True, 4),
        ("stopped", "after this step", True, True, 3),
    ],
)
def test_the_exit_code_tells_the_gravest_thing(
    how: str, reason: str, open_: bool, lost: bool, code: int
) -> None:
    state = a_finished_run()
    fold(state, a_step(2))
    if lost:
        fold(state, a_rollout_finished(0, 0, step=2, error="timeout: 1 s"))
    if open_:
        fold(state, ev.LessonProposed(2, a_lesson(an_operation(id="op2.1"), step=2)))
    assert run_exit_code(ended(state, how, reason)) == code


def test_what_a_run_ended_for_decides_its_exit_code_in_this_order() -> None:
    def lost(state: RunState) -> RunState:
        state.lost["rollout"] += 1
        return state

    waiting = fold_events([a_run(), a_step(), ev.LessonProposed(1, a_lesson(ADD))])
    assert run_exit_code(ended(waiting, "budget", "budget.calls=1: 1 spent")) == 5  # before open
    assert run_exit_code(ended(lost(a_finished_run()), "budget", "budget.calls=1")) == 5
    assert run_exit_code(ended(a_finished_run(), "failed", "the last 16 rollouts failed")) == 4
    assert run_exit_code(ended(lost(a_finished_run()), "stopped", "Ctrl-C")) == 130


def test_a_run_that_ended_early_says_how_to_go_on() -> None:
    budget = text_of(ended(a_finished_run(), "budget", "budget.tokens=90: 88 spent, the next …"))
    assert "budget reached (budget.tokens=90) after step" in budget, "told in full before"
    failed = text_of(ended(a_finished_run(), "failed", "the last 16 rollouts failed: refused"))
    assert "failed (the last 16 rollouts failed) after step" in failed


def test_a_verifier_that_judged_nothing_at_all_is_told() -> None:
    said = "the verifier had no opinion on any try"
    silent = fold_events([a_run(), a_step(), ev.GroupReflected(1, 0, Reflection(1, 0, "unjudged"))])
    assert said in text_of(ended(silent)) and said not in text_of(ended(a_finished_run()))


def test_of_a_library_that_no_prompt_shows_whole_the_tokens_are_told_in_all() -> None:
    def lines(n: int) -> str:
        return library_lines(a_library(*(f"Rule {at}." for at in range(n))))[0]

    assert "tokens a call" in lines(30)
    assert "tokens in all" in lines(31)
    before, after = a_library("one"), a_library(*(f"Rule {at}." for at in range(31)))
    assert tokens_text(library_difference(before, after)).endswith(" tokens in all (estimated)")
