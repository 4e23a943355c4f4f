"""The `text` verifier, the place where an answer is stated, and `open_verifier`."""

from __future__ import annotations

from typing import Any

import pytest

from engines.core.errors import VerifierError
from engines.core.types import Attempt, Problem, Rollout, Verdict
from engines.verifiers.answers import TextSettings, TextVerifier, choose_option, normalise_text
from engines.verifiers.open import open_verifier
from engines.verifiers.stated_answer import StatedAnswer, find_stated_answer, short_text


def a_rollout(answer: str) -> Rollout:
    return Rollout(
        attempt=Attempt((), answer),
        epoch=1,
        step=1,
        position=0,
        index=0,
        seed=0,
        policy_version=0,
        library_version=0,
    )


async def judge(gold: str, answer: str, **settings: Any) -> Verdict:
    verifier = TextVerifier(TextSettings(**settings))
    (verdict,) = await verifier.verify(Problem("p", "q", gold), [a_rollout(answer)])
    await verifier.aclose()
    return verdict


@pytest.mark.parametrize(
    ("gold", "answer", "reward"),
    [
        ("Paris", "Answer: Paris.", 1.0),
        ("Paris", "The answer is **paris**.", 1.0),
        ("Paris", "\\boxed{\\text{Paris}}", 1.0),
        ("Paris", "I thought of Lyon.\n#### Paris", 1.0),
        ("Paris", "Paris or Lyon", 0.0),
        ("Café", "answer: cafe\u0301", 1.0),
        ("abc", "ＡＢＣ", 1.0),
        ("two  words", "A: Two words", 1.0),
        ("St. Louis", "The answer is St. Louis. It lies on a river.", 1.0),
        ("The Hague", "Hague", 0.0),
    ],
)
async def test_exact_ignores_case_blanks_and_unicode_forms(
    gold: str, answer: str, reward: float
) -> None:
    assert (await judge(gold, answer)).reward == reward


async def test_contains_wants_whole_words() -> None:
    assert (await judge("Paris", "It is paris, of course", mode="contains")).reward == 1.0
    assert (await judge("art", "Paris part", mode="contains")).reward == 0.0
    assert (await judge("C++", "I like C++ most", mode="contains")).reward == 1.0


@pytest.mark.parametrize(
    ("answer", "letter"),
    [
        ("The answer is (B).", "B"),
        ("answer: b", "B"),
        ("B.", "B"),
        ("**B**", "B"),
        ("(B) because A is wrong", "B"),
        ("Answer: B because A is wrong", "B"),
        ("Answer: B) Paris", "B"),
        ("Answer: option B", "B"),
        ("\\boxed{\\text{(B) Paris}}", "B"),
        ("We rule out (A) and (C), so (B)", None),
        ("Thinking about it\nB. Paris\n", "B"),
        ("A dog is here", None),
        ("Answer: A dog", None),
        ("answer: F", None),
    ],
)
def test_the_one_letter_chosen_counts(answer: str, letter: str | None) -> None:
    assert choose_option(answer, dict.fromkeys("ABCDE", "")) == letter


async def test_a_choice_is_compared_with_the_expected_letter() -> None:
    assert await judge("(B)", "answer: b", mode="choice") == Verdict(1.0, "matches B")
    wrong = await judge("B. Paris", "answer: C", mode="choice")
    assert wrong == Verdict(0.0, "expected B. Paris, got C")
    none = await judge("B", "no letter at all", mode="choice")
    assert none == Verdict(0.0, "expected B, found no answer")
    unjudged = await judge("Paris", "answer: C", mode="choice")
    assert unjudged == Verdict(None, error="failed: the expected answer Paris is not a choice")


async def test_a_pattern_reads_its_last_match() -> None:
    settings = {"mode": "regex", "pattern": r"^total: (\d+)$"}
    assert (await judge("5", "total: 4\ntotal: 5", **settings)).reward == 1.0
    assert (await judge("4", "total: 4\ntotal: 5", **settings)).reward == 0.0
    assert (await judge("5", "none", **settings)).critique == "expected 5, found no answer"


async def test_a_pattern_that_never_ends_costs_one_verdict() -> None:
    verifier = TextVerifier(TextSettings(mode="regex", pattern=r"((?:a+)+)$"))
    rollouts = [a_rollout("a" * 5000 + "b"), a_rollout("aaa")]
    stuck, right = await verifier.verify(Problem("p", "q", "aaa"), rollouts)
    assert stuck == Verdict(None, error="timeout: no verdict within 1 s")
    assert right.reward == 1.0
    await verifier.aclose()


@pytest.mark.parametrize("pattern", [None, "", "(", "no group"])
def test_a_bad_pattern_is_refused_at_once(pattern: str | None) -> None:
    with pytest.raises(VerifierError, match="pattern"):
        TextSettings(mode="regex", pattern=pattern)


async def test_any_alternative_counts() -> None:
    verifier = TextVerifier()
    problem = Problem("p", "q", "Paris", meta={"alternatives": ["City of Light"]})
    verdicts = await verifier.verify(problem, [a_rollout("city of light"), a_rollout("Rome")])
    assert [v.reward for v in verdicts] == [1.0, 0.0]
    assert verdicts[0].critique == "matches City of Light"
    assert verdicts[1].critique == "expected Paris or City of Light, got Rome"
    listed = Problem("p", "q", "Paris", meta={"alternatives": ["Paris", "City of Light"]})
    (wrong,) = await verifier.verify(listed, [a_rollout("Rome")])
    assert wrong == verdicts[1]


@pytest.mark.parametrize(
    ("response", "stated"),
    [
        ("\\boxed{1} and \\boxed{\\frac{1}{2}}", StatedAnswer("\\frac{1}{2}", "boxed")),
        ("\\boxed{1", StatedAnswer("\\boxed{1", "none")),
        ("A: 1\nB: 2\nnothing", StatedAnswer("A: 1\nB: 2\nnothing", "none")),
        ("Answer:\n\n$$5$$\n", StatedAnswer("$$5$$", "marked")),
        ("The answer is 3.5. I hope so.", StatedAnswer("3.5", "marked")),
        ("Answer: 1\nSo the answer is 2", StatedAnswer("2", "marked")),
        ("  plain  ", StatedAnswer("plain", "none")),
        ("", StatedAnswer("", "none")),
    ],
)
def test_the_last_statement_of_an_answer_is_found(response: str, stated: StatedAnswer) -> None:
    assert find_stated_answer(response) == stated


def test_what_is_shown_is_one_short_printable_line() -> None:
    assert short_text("a\x1b[31m\n\ud800 b") == "a [31m ? b"
    assert short_text("x" * 50) == "x" * 39 + "…"


def test_normalised_text_is_stable() -> None:
    once = normalise_text(' "The  ＡNSWER." ')
    assert once == "the answer"
    assert normalise_text(once) == once


def test_open_verifier_takes_a_name_or_a_name_with_settings() -> None:
    assert isinstance(open_verifier("text"), TextVerifier)
    assert isinstance(open_verifier({"name": "text", "mode": "choice"}), TextVerifier)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("mth", 'verifier "mth": there is no such verifier. Did you mean "math"? Known: '),
        ({"name": "text", "mod": "exact"}, 'there is no setting "mod". Did you mean "mode"?'),
        ({"name": "text", "mode": "fuzzy"}, 'mode is "fuzzy". Input should be'),
        ({"name": "math", "deadline_s": "two"}, 'deadline_s is "two". Input should be'),
        ({"mode": "exact"}, '"name" is missing'),
    ],
)
def test_a_verifier_that_cannot_be_opened_says_what_to_do(
    spec: dict[str, Any] | str, message: str
) -> None:
    with pytest.raises(VerifierError) as caught:
        open_verifier(spec)
    assert message in str(caught.value)
