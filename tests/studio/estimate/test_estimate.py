"""The arithmetic of an estimate, with numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from engines.data.sampler import Sampler
from engines.pipeline.budget import CallPricing
from studio.config.settings.run import PracticeConfig
from studio.estimate.cost import TOKENS_AT_MOST, CostInput, estimate, judge_questions
from studio.facts.estimate import Estimate, Range, Stage
from studio.render.estimate_lines import estimate_line, estimate_table, exceeded_limits_text

REPLIES = {
    "rollout": 50.0,
    "judge": 10.0,
    "summary": 20.0,
    "extraction": 30.0,
    "consolidation": 40.0,
    "evaluation": 50.0,
}


def practising(**more: Any) -> PracticeConfig:
    """Reads no group without contrast, and proposes one lesson a group."""
    return replace(PracticeConfig(), read_without_contrast=0, experiences_per_query=1, **more)


def some_facts(n: int = 10, batch_size: int = 4, epochs: int = 2, **more: Any) -> CostInput:
    """Ten problems in steps of 4, 4 and 2, twice; groups of 3, of which half have contrast."""
    terms = CallPricing(100, 1.0, 10.0)
    values: dict[str, Any] = {
        "sampler": Sampler(n, batch_size, epochs, 1),
        "group_size": 3,
        "terms": {"policy": terms, "reflector": terms, "judge": terms},
        "replies": REPLIES,
        "prompts": {
            "rollout": 30.0,
            "extraction": 100.0,
            "consolidation": 90.0,
            "summary": 60.0,
            "judge": 70.0,
        },
        "question": 20.0,
        "truth": 1.0,
        "growth": 0.0,
        "judged": Range(),
        "turns": Range(1, 1),
        "practice": practising(),
    }
    return CostInput(**{**values, **more})


def priced(**terms: CallPricing) -> dict[str, CallPricing]:
    """The terms of all roles, those of some replaced."""
    return {**some_facts().terms, **terms}


def stage(found: Estimate, name: str) -> Stage:
    return next(stage for stage in found.stages if stage.stage == name)


def test_rollouts_are_counted_exactly_and_priced() -> None:
    found = stage(estimate(some_facts()), "rollouts")
    # 10 problems × 3 tries × 2 epochs; each 30 + 20 tokens in and 50 out, 100 at most.
    assert (found.calls, found.reply_tokens) == (Range(60, 60), Range(3000, 6000))
    assert found.prompt_tokens.likely == 60 * 50
    assert found.cost_usd is not None
    assert found.cost_usd.likely == pytest.approx((3000 * 1 + 3000 * 10) / 1e6)


def test_half_of_groups_of_three_are_taken_to_show_a_difference() -> None:
    facts = some_facts()
    assert facts.contrast_share == 0.5  # (3 - 1) / (3 + 1)
    found = stage(estimate(facts), "extraction")
    # 20 groups, half of them asked about; at most each is, and again to repair the reply.
    assert found.calls == Range(10, 40)


def test_consolidation_is_asked_once_a_step_where_a_group_had_contrast() -> None:
    found = stage(estimate(some_facts()), "consolidation")
    # Twice steps of 4, 4 and 2 groups: 2 · (15/16 + 15/16 + 3/4) = 5.25 of 6; repaired: 12.
    assert found.calls == Range(5, 12)  # whole calls, so that a table adds up


def test_a_run_that_trains_weights_asks_nobody_for_lessons() -> None:
    found = estimate(some_facts(practice=practising(algorithm="grpo"), growth=2.0))
    assert [stage.stage for stage in found.stages] == ["rollouts"]
    # Nor does any experience lengthen its prompts.
    guided = stage(estimate(some_facts(growth=2.0)), "rollouts")
    assert stage(found, "rollouts").prompt_tokens.likely < guided.prompt_tokens.likely


def test_a_run_whose_steps_take_turns_asks_for_lessons_in_its_library_steps() -> None:
    both = practising(algorithm="both", weight_steps=2)
    found = estimate(some_facts(practice=both, held_out=7))
    # Steps 1 and 4 of six, each of 4 groups: 2 · 15/16 of 2; repaired: 4.
    assert stage(found, "consolidation").calls == Range(2, 4)
    # Before, after each of two epochs, and the two cells that a run does not measure anyway.
    assert stage(found, "evaluation").calls == Range(35, 35)


def test_guidance_grows_with_the_library_up_to_its_limit() -> None:
    facts = some_facts(batch_size=10, epochs=4, growth=2.0, practice=practising(library_limit=3))
    prompt = stage(estimate(facts), "rollouts").prompt_tokens
    # 30 rollouts a step; half way the library would have 4 experiences of 40 tokens, and takes 3.
    assert prompt.likely == 30 * 4 * (50 + 3 * 40)
    # At most they have 120 tokens each.
    assert prompt.at_most == pytest.approx(30 * 4 * (50 + 3 * 120) * TOKENS_AT_MOST)


def test_tries_are_summarised_only_where_they_are_long() -> None:
    assert stage(estimate(some_facts()), "summaries").calls == Range(0, 60)
    single = practising(summarise_above_chars=160)
    assert stage(estimate(some_facts(practice=single)), "summaries").calls.likely == 0
    long = some_facts(practice=replace(single, read_chars=400))  # the group has 3 times 50 tokens
    assert stage(estimate(long), "summaries").calls == Range(25, 60)  # 10 groups, 2.5 tries each


@pytest.mark.parametrize(
    ("spec", "questions"),
    [
        ({"name": "math"}, Range(0, 0)),
        ({"name": "judge"}, Range(1, 1)),
        ({"name": "weighted", "of": ["math", {"name": "judge", "weight": 2}]}, Range(1, 1)),
        ({"name": "function", "file": "mine.py"}, Range(0, 1)),
        ({"name": "step", "of": "judge"}, Range(1, 1)),
        ({"name": "length_penalty"}, Range(0, 0)),
    ],
)
def test_a_judge_is_asked_where_the_verifier_asks_one(spec: object, questions: Range) -> None:
    assert judge_questions(spec) == questions


def test_judging_covers_practice_and_evaluation() -> None:
    facts = some_facts(judged=Range(1, 1), held_out=5)
    found = estimate(facts)
    assert stage(found, "evaluation").calls == Range(15, 15)
    assert stage(found, "judging").calls == Range(75, 150)  # 60 + 15; each repaired once


def test_steps_that_are_done_are_left_out() -> None:
    found = estimate(some_facts(steps_done=1))
    assert stage(found, "rollouts").calls == Range(48, 48)  # 60 - 12
    # Half of the 20 - 4 groups; at most all of them, and each reply is mended.
    assert stage(found, "extraction").calls == Range(8, 32)


def test_a_log_of_rollouts_costs_nothing_to_replay() -> None:
    found = estimate(some_facts(replayed=True))
    assert "rollouts" not in [stage.stage for stage in found.stages]
    assert stage(found, "extraction").calls.likely == 10


def test_a_single_try_a_group_teaches_nothing() -> None:
    assert [s.stage for s in estimate(some_facts(group_size=1)).stages] == ["rollouts"]


def test_a_price_that_is_unknown_makes_the_whole_cost_unknown() -> None:
    found = estimate(some_facts(terms=priced(reflector=CallPricing(100))))
    assert stage(found, "rollouts").cost_usd is not None
    assert stage(found, "extraction").cost_usd is None and found.cost_usd is None
    assert "unknown" in estimate_table(found, costs_money=True)
    assert "$" not in estimate_line(found)


def test_a_limit_that_likely_does_not_do_is_named() -> None:
    found = estimate(some_facts())
    calls = found.calls.likely
    assert exceeded_limits_text(found, {"calls": calls, "tokens": 10**9, "cost_usd": 10.0}) == ""
    assert exceeded_limits_text(found, {"calls": calls - 1}) == f"calls ({calls - 1:,.6g} left)"
    unpriced = estimate(some_facts(terms=priced(policy=CallPricing(100))))
    assert exceeded_limits_text(unpriced, {"tokens": 1}) == "tokens (1 left)"


def test_a_fork_begins_with_an_evaluation_of_what_it_adopted() -> None:
    facts = some_facts(held_out=5, steps_done=3)
    # One at once and one after step 6: step 3 was another run's.
    assert stage(estimate(facts), "evaluation").calls == Range(10, 10)
    resumed = replace(facts, evaluated_first=False)
    assert stage(estimate(resumed), "evaluation").calls == Range(5, 5)


@pytest.mark.parametrize("truth_given", [True, False])
def test_a_single_try_is_never_read_beside_another(truth_given: bool) -> None:
    practice = practising(given_ground_truth=truth_given)
    found = estimate(some_facts(group_size=1, practice=practice))
    assert {stage.stage for stage in found.stages} <= {"rollouts", "summaries"}


def test_at_most_prompts_have_more_tokens_for_the_same_bytes() -> None:
    found = stage(estimate(some_facts()), "rollouts")
    # A budget reserves a token for 3 bytes, not 4; 24 experiences of 120 tokens come.
    assert found.prompt_tokens.likely == 3000
    assert found.prompt_tokens.at_most == round((3000 + 60 * 4 * 6 * 120) * TOKENS_AT_MOST)


def test_replies_are_as_long_as_the_longest_limit_of_the_request() -> None:
    terms = CallPricing(100, 1.0, 10.0, further_max_tokens=500, replies=2)
    assert (
        stage(estimate(some_facts(terms=priced(policy=terms))), "rollouts").reply_tokens.at_most
        == 60 * 1000
    )


def test_many_proposals_are_consolidated_by_several_calls() -> None:
    few, many = (
        stage(estimate(some_facts(n, n, 1, contrast=1.0)), "consolidation") for n in (8, 100)
    )
    assert few.calls.at_most == 2  # one, and one more that mends its reply
    assert many.calls == Range(13, 26)


def test_a_try_of_several_turns_repeats_what_came_before_in_its_later_prompts() -> None:
    found = stage(estimate(some_facts(turns=Range(2.0, 4.0))), "rollouts")
    # Twice and four times the 60 calls above; a second prompt holds 50 of the first reply and
    # 50 of a result, so on average half of that.
    assert (found.calls, found.reply_tokens) == (Range(120, 240), Range(6000, 24000))
    assert found.prompt_tokens.likely == 120 * (50 + 50)


def test_several_lessons_take_so_many_times_the_calls_and_the_tries_of_the_choice() -> None:
    one = estimate(some_facts(tried=8, choice=6))
    three = estimate(some_facts(tried=8, choice=6, practice=practising(proposals=3)))
    for name in ("extraction", "consolidation"):
        assert stage(three, name).calls.at_most == 3 * stage(one, name).calls.at_most
    # Six steps; three lessons and none are tried 6 times each.
    assert stage(three, "gate").calls.at_most - stage(one, "gate").calls.at_most == 6 * 4 * 6
    assert stage(three, "rollouts") == stage(one, "rollouts")
