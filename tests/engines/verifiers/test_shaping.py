"""Rewards by name: accuracy, length penalty, step, format, and the judge's fallback."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from engines.core.errors import CallFailed, VerifierError
from engines.core.types import Message, Problem, Rollout, Sampling, Usage, Verdict
from engines.record.ledger import RecordLedger
from engines.verifiers import compose as shaping
from engines.verifiers.compose import LengthPenalty, ShapedVerifier, count_steps
from engines.verifiers.judge import JudgeContext
from engines.verifiers.open import SpecError, asks_judge, needs_answer, open_verifier, parse_spec
from tests.support.builders import a_problem, a_rollout, a_timeout, answering

RIGHT, WRONG = "A: 5", "A: 6"
TEXT = {"of": "text"}


def of_tokens(text: str, tokens: int) -> Rollout:
    """A rollout that said `text` in as many tokens."""
    rollout = a_rollout(text)
    return replace(rollout, attempt=replace(rollout.attempt, usage=Usage(3, tokens, 1)))


async def verdict_of(
    spec: Mapping[str, Any],
    said: Rollout | str,
    *,
    problem: Problem | None = None,
    judging: JudgeContext | None = None,
    folder: Path = Path(),
) -> Verdict:
    verifier = open_verifier(spec, judging, [folder])
    try:
        await verifier.check()
        rollout = a_rollout(said) if isinstance(said, str) else said
        (verdict,) = await verifier.verify(problem or a_problem(), [rollout])
        return verdict
    finally:
        await verifier.aclose()


# Accuracy


@pytest.mark.parametrize("by", ["math", "text"])
async def test_accuracy_is_one_for_a_right_answer_and_zero_for_a_wrong_one(by: str) -> None:
    spec = {"name": "accuracy", "by": by}
    assert (await verdict_of(spec, RIGHT)).reward == 1.0
    assert (await verdict_of(spec, WRONG)).reward == 0.0


async def test_what_tells_right_from_wrong_can_be_chosen() -> None:
    half = a_problem(answer="1/2")
    assert (await verdict_of({"name": "accuracy"}, "A: 0.5", problem=half)).reward == 1.0
    by_text = {"name": "accuracy", "by": "text"}
    assert (await verdict_of(by_text, "A: 0.5", problem=half)).reward == 0.0


# Length


@pytest.mark.parametrize(
    ("text", "tokens", "reward", "penalty"),
    [
        (RIGHT, 900, 1.0, 0.0),  # and nothing is gained by less
        (RIGHT, 1024, 1.0, 0.0),  # the last that is free
        (RIGHT, 1025, 0.999, 0.001),
        (RIGHT, 1524, 0.5, 0.5),  # 500 beyond, at 0.001 each
        (RIGHT, 2024, 0.0, 1.0),
        (RIGHT, 9024, 0.0, 8.0),  # clipped: a reward is never below 0
        (WRONG, 1024, 0.0, 0.0),
        (WRONG, 1124, 0.0, 0.1),
    ],
)
async def test_length_costs_what_the_formula_says(
    text: str, tokens: int, reward: float, penalty: float
) -> None:
    spec = {"name": "length_penalty", **TEXT}
    verdict = await verdict_of(spec, of_tokens(text, tokens))
    assert verdict.reward == pytest.approx(reward, abs=1e-12)
    accuracy = float(text == RIGHT)
    assert verdict.metrics == {
        "text": accuracy,
        "length": tokens,
        "penalty": pytest.approx(penalty),
    }


async def test_length_may_be_told_in_characters_with_a_weight_of_ones_own() -> None:
    spec = {"name": "length_penalty", "unit": "chars", "max_length": 4, "penalty_weight": 0.125}
    verdict = await verdict_of({**spec, **TEXT}, "A: 5  ")
    assert verdict.reward == 0.75  # 1 - 0.125 · (6 - 4)
    assert verdict.critique == "matches 5\n2 chars beyond 4 cost 0.25"
    free = await verdict_of({**spec, **TEXT}, RIGHT)
    assert (free.reward, free.critique) == (1.0, "matches 5")


async def test_the_length_is_that_of_every_reply_of_the_try_with_its_thoughts() -> None:
    said = (
        Message("user", "a question of any length"),
        Message("assistant", "calc: 1", reasoning="Hm."),  # 7 + 3
        Message("user", "result: 1"),
        Message("assistant", RIGHT),  # 4
    )
    rollout = a_rollout(RIGHT)
    rollout = replace(rollout, attempt=replace(rollout.attempt, messages=said))
    spec = {"name": "length_penalty", "unit": "chars", **TEXT}
    assert (await verdict_of(spec, rollout)).metrics["length"] == 14


async def test_without_a_token_count_the_length_is_unknown_and_not_zero() -> None:
    verdict = await verdict_of({"name": "length_penalty", **TEXT}, of_tokens(RIGHT, 0))
    assert verdict.reward is None
    error = "failed: length_penalty has no token count of this try; set unit: chars"
    assert (verdict.error, verdict.metrics) == (error, {"text": 1.0})


# Steps


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("", 0),
        ("The answer is 5.", 0),
        ("2 + 3 = 5", 1),
        ("1. Add.\n2) Done.\n- Step 3: so\nA: 5", 3),
        ("Step 1: 2 + 3 = 5", 1),  # a line counts once
        ("In 2. and 3. we steps 4", 0),
        ("2.5 is a number", 0),
        ("**Step 1**\n\n> step 2", 2),
    ],
)
def test_steps_are_lines_with_an_equation_or_a_number_in_front(text: str, steps: int) -> None:
    assert count_steps(text) == steps


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ("Step 1\nStep 2\nA: 6", 0.2),  # wrong: 0 + 0.1 · 2
        ("Step 1\nA: 5", 1.0),  # right: nothing to gain
        ("1=1\n" * 50 + "A: 6", 1.0),  # what it may pay for: padding
        (WRONG, 0.0),
    ],
)
async def test_steps_add_a_bonus_up_to_a_reward_of_one(text: str, reward: float) -> None:
    verdict = await verdict_of({"name": "step", **TEXT}, text)
    assert verdict.reward == pytest.approx(reward)
    assert set(verdict.metrics) == {"text", "steps", "bonus"}
    more = await verdict_of({"name": "step", "step_bonus": 0.3, **TEXT}, "Step 1\nA: 6")
    assert more.reward == pytest.approx(0.3)


async def test_counting_steps_and_matching_is_cheap_on_hostile_text() -> None:
    for text in ("\n" * 500_000, " " * 500_000, "#" * 500_000, "1." * 250_000):
        assert count_steps(text) == 0


# What a shape shapes


async def test_a_shape_shapes_accuracy_by_math_unless_told_otherwise() -> None:
    half = a_problem(answer="1/2")
    verdict = await verdict_of({"name": "step"}, "A: 0.5", problem=half)
    assert verdict.metrics == {"accuracy": 1.0, "steps": 0.0, "bonus": 0.0}


async def test_a_shape_of_a_shape_and_in_a_list_keeps_every_component() -> None:
    inner = {"name": "step", "of": {"name": "text"}}
    shaped = {"name": "length_penalty", "of": inner, "unit": "chars", "max_length": 12}
    spec = {
        "name": "weighted",
        "of": [{**shaped, "as": "short", "penalty_weight": 0.01}, {"name": "text", "weight": 3}],
    }
    verdict = await verdict_of(spec, "Step 1: Hm.\nA: 6")  # 16 characters
    # step: 0 + 0.1; 4 characters beyond cost 0.04; the mean is (0.06 + 3 · 0) / 4.
    assert verdict.reward == pytest.approx(0.015)
    assert verdict.metrics == {
        "short": pytest.approx(0.06),
        "short/step": pytest.approx(0.1),
        "short/step/text": 0.0,
        "short/step/steps": 1.0,
        "short/step/bonus": pytest.approx(0.1),
        "short/length": 16.0,
        "short/penalty": pytest.approx(0.04),
        "text": 0.0,
    }


async def test_a_function_and_a_weighted_list_can_be_shaped(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def reward(completions): return [0.5] * len(completions)")
    listed = {"name": "weighted", "of": [{"name": "function", "file": "mine"}, "text"]}
    for inner, name, reward in (({"file": "mine"}, "mine", 0.5), (listed, "weighted", 0.75)):
        spec = {"name": "step", "of": inner}
        verdict = await verdict_of(spec, RIGHT, folder=tmp_path)
        assert (verdict.reward, verdict.metrics[name]) == (reward, reward)
    assert parse_spec({"name": "step", "of": {"file": "mine"}}, [tmp_path]).files == (
        tmp_path / "mine.py",
    )


async def test_what_the_shaped_verifier_leaves_unjudged_stays_so_and_is_paid_for(
    tmp_path: Path,
) -> None:
    paid = CallFailed("timeout", "no answer", Usage(9, 1, 1))
    for name in ("length_penalty", "step"):
        judging = a_judge(tmp_path, paid)
        spec = {"name": name, "of": "judge"}
        verdict = await verdict_of(spec, "1=1\nA: 5", judging=judging)
        assert (verdict.reward, verdict.metrics, verdict.usage) == (None, {}, Usage(9, 1, 1))
        assert (verdict.error or "").startswith("timeout: ")
        no_truth = await verdict_of({"name": name, **TEXT}, RIGHT, problem=a_problem(answer=None))
        assert no_truth == Verdict(None)


async def test_a_broken_verifier_below_a_shape_is_told_before_anything_is_spent(
    tmp_path: Path,
) -> None:
    (tmp_path / "mine.py").write_text("def reward(completions, level): return [1.0]")
    spec = {"name": "step", "of": {"file": "mine"}}
    verifier = open_verifier(spec, None, [tmp_path], columns=frozenset())
    with pytest.raises(VerifierError, match='it needs "level"'):
        await verifier.check()
    await verifier.aclose()


# Format

THINKS = {"name": "format", "pattern": r"^<think>.*</think>.*\\boxed\{"}


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ("<think>2\n3</think>\n\\boxed{7}", 1.0),  # the form counts, not the answer
        ("Hm. <think>x</think> \\boxed{5}", 0.0),  # ^ is where the answer begins
        ("x\n<think>x</think> \\boxed{5}", 0.0),
        ("A: 5", 0.0),
        ("", 0.0),
    ],
)
async def test_format_is_one_where_the_answer_matches(text: str, reward: float) -> None:
    verdict = await verdict_of(THINKS, text, problem=a_problem(answer=None))
    assert (verdict.reward, verdict.error) == (reward, None)
    by_lines = {"name": "format", "pattern": r"(?m)^A: \d$"}
    assert (await verdict_of(by_lines, "2 + 3\nA: 5\nDone.")).reward == 1.0


async def test_a_pattern_without_end_and_an_answer_beyond_the_cap_are_unjudged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("engines.verifiers.answers.PATTERN_DEADLINE_S", 0.05)
    endless = {"name": "format", "pattern": "^(a+)+$"}
    verdict = await verdict_of(endless, "a" * 40 + "b")
    assert verdict.reward is None and (verdict.error or "").startswith("timeout: ")
    verdict = await verdict_of(THINKS, "a" * (shaping.FORMAT_CHARS + 1))
    assert verdict == Verdict(
        None, error="too long: 64,001 characters; a pattern is tried on 64,000 at most"
    )
    lost = await verdict_of(THINKS, a_rollout(None))
    assert lost.reward is None and "rollout failed" in (lost.error or "")


# What may be written

REFUSED: dict[str, tuple[dict[str, Any], tuple[str, ...], str, str]] = {
    "a near miss": ({"name": "length_penality"}, ("name",), "no such", 'mean "length_penalty"?'),
    "accuracy by a judge": (
        {"name": "accuracy", "by": "judge"},
        ("by",),
        "judge",
        "'math' or 'text'",
    ),
    "a length below 0": (
        {"name": "length_penalty", "max_length": -1},
        ("max_length",),
        "is -1",
        "greater than or equal to 0",
    ),
    "no weight": (
        {"name": "length_penalty", "penalty_weight": 0},
        ("penalty_weight",),
        "is 0",
        "greater than 0",
    ),
    "an unknown unit": (
        {"name": "length_penalty", "unit": "words"},
        ("unit",),
        "words",
        "'tokens' or 'chars'",
    ),
    "no bonus": (
        {"name": "step", "step_bonus": -0.1},
        ("step_bonus",),
        "is -0.1",
        "greater than 0",
    ),
    "a shape's wrong setting": ({"name": "step", "bonus": 1}, ("bonus",), '"bonus"', "step_bonus"),
    "no pattern": ({"name": "format"}, (), "pattern is missing", "Give one"),
    "a broken pattern": (
        {"name": "format", "pattern": "(a"},
        ("pattern",),
        "not a regular expression (missing )",
        "Mend it.",
    ),
    "a pattern too large": (
        {"name": "format", "pattern": "a{99999999999999999999}"},
        ("pattern",),
        "not a regular expression",
        "Mend it.",
    ),
    "a bare list below of": (
        {"name": "step", "of": ["math", "text"]},
        ("of",),
        "no verifier",
        "{name: weighted, of: […]}",
    ),
    "a number below of": ({"name": "step", "of": 5}, ("of",), "no verifier", "Write a name"),
    "an unknown name below of": ({"name": "step", "of": "txt"}, ("of", "name"), "no such", "text"),
    "a wrong setting below of": (
        {"name": "step", "of": {"name": "text", "mode": "x"}},
        ("of", "mode"),
        "x",
        "exact",
    ),
    "a file beside a shape": ({"name": "step", "file": "f.py"}, ("file",), "beside", "Leave one"),
    "a judge without a model": ({"name": "step", "of": "judge"}, ("of",), "none that", "Set judge"),
    "an unknown fallback": (
        {"name": "judge", "fallback": "words"},
        ("fallback",),
        "words",
        "should be 'text'",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused_with_its_key_cause_and_move(case: str) -> None:
    spec, at, cause, move = REFUSED[case]
    with pytest.raises(SpecError) as caught:
        open_verifier(spec)
    assert caught.value.at == at
    assert cause in caught.value.cause
    assert move in caught.value.move


def test_which_need_an_answer_and_which_ask_a_judge() -> None:
    table: list[tuple[Any, bool, bool]] = [
        ("accuracy", True, False),
        ("length_penalty", True, False),
        ({"name": "step"}, True, False),
        ({"name": "step", "of": "judge"}, False, True),
        ({"name": "step", "of": {"file": "f.py"}}, False, True),
        ({"name": "length_penalty", "of": {"name": "step"}}, True, False),
        ({"name": "weighted", "of": ["format", {"name": "step", "of": "judge"}]}, False, True),
        (THINKS, False, False),
        ({"name": "step", "of": 5}, False, False),  # refused when it is read
    ]
    assert [(needs_answer(spec), asks_judge(spec)) for spec, _, _ in table] == [
        (needs, asks) for _, needs, asks in table
    ]


@dataclass
class Closing:
    closed: int = 0

    async def check(self) -> None: ...

    async def verify(self, problem: Problem, rollouts: object) -> tuple[Verdict, ...]:
        return ()

    async def aclose(self) -> None:
        self.closed += 1


async def test_closing_a_shape_closes_what_it_shapes() -> None:
    inner = Closing()
    await ShapedVerifier(LengthPenalty(), "x", inner).aclose()
    assert inner.closed == 1


# The judge's fallback


def a_judge(folder: Path, *replies: Any) -> JudgeContext:
    return JudgeContext(answering(*replies), Sampling(0.0), RecordLedger(folder, 1))


@pytest.mark.parametrize(
    ("text", "reward", "found"),
    [("I think it is 5, but who knows", 1.0, "matches 5"), ("It is 15.", 0.0, "expected 5")],
)
async def test_where_the_judge_fails_a_text_match_steps_in_only_where_asked_and_says_so(
    tmp_path: Path, text: str, reward: float, found: str
) -> None:
    plain = await verdict_of({"name": "judge"}, text, judging=a_judge(tmp_path, a_timeout()))
    assert (plain.reward, plain.metrics) == (None, {})
    spec = {"name": "judge", "fallback": "text"}
    verdict = await verdict_of(spec, text, judging=a_judge(tmp_path, a_timeout()))
    assert (verdict.reward, verdict.error) == (reward, None)
    assert verdict.metrics == {"fallback": 1.0}
    said = verdict.critique or ""
    assert said.startswith(f"fallback, a text match: {found}") and "The judge: timeout:" in said


async def test_a_fallback_keeps_out_where_the_judge_spoke_or_nothing_can_be_matched(
    tmp_path: Path,
) -> None:
    spec = {"name": "judge", "fallback": "text"}
    judging = a_judge(tmp_path, '{"reasoning": "No.", "correct": false}')
    verdict = await verdict_of(spec, RIGHT, judging=judging)
    assert (verdict.reward, verdict.critique, verdict.metrics) == (0.0, "No.", {"fallback": 0.0})
    unread = a_judge(tmp_path / "b", "Hm.", "Hm.")
    verdict = await verdict_of(spec, RIGHT, judging=unread, problem=a_problem(answer=None))
    assert verdict.reward is None and (verdict.error or "").startswith("unparsable: ")
    lost = await verdict_of(spec, a_rollout(None), judging=a_judge(tmp_path))
    assert lost.reward is None and "rollout failed" in (lost.error or "")
