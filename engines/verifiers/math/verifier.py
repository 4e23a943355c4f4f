"""The `math` verifier: is the stated answer mathematically the expected one?

Owns what is asked of math-verify and what its answer means as a verdict. Runs no algebra
here: `task` does, in processes that can be killed. An answer that hangs or
crashes the check costs its own verdict and nothing else. Units and dates are not compared:
math-verify sees numbers.
"""

from __future__ import annotations

import asyncio
import importlib.util
import re
import string
from collections.abc import Sequence
from dataclasses import dataclass

from engines.core.errors import VerifierError
from engines.core.types import Problem, Rollout, Verdict
from engines.verifiers.math.notation import ascii_notation, strip_denial
from engines.verifiers.process_pool.call import Trouble
from engines.verifiers.process_pool.pool import ProcessPool
from engines.verifiers.process_pool.template import ForkLauncher
from engines.verifiers.stated_answer import (
    TAIL_CHARS,
    StatedAnswer,
    expected_text,
    find_stated_answer,
    short_text,
    unjudgeable_verdict,
)
from engines.verifiers.text import find_chosen_letter

MAX_CHARS = 2_000
"""Longest expression handed to math-verify; of a response that states none, its tail."""

_LETTER = re.compile(r"[A-Z]")
# "A" before most words is an article, and "I" speaks of itself.
_NAMED_LETTER = re.compile(
    r"(?<![^\s*(])([B-HJ-Z]|A(?!\s+(?!(?:and|or|is|was|nor|but|because|has|must)\b)[a-z]))"
    r"(?=[\s*).,;:]|$)"
)
_BRACKETED_LETTER = re.compile(r"[(\[{]([A-Z])[)\]}]")
_LABELLED = re.compile(r"\W*([A-Z])[.):]\s(?:(?!\b[A-Z][.):])[^\n])*")
_LAST_LETTER = re.compile(r"\W*(?:(?:option|choice|answer)\W+)?([A-Z])\W*", re.IGNORECASE)
_NOT = re.compile(r"\bnot\b")
_PLAIN_INTEGER = re.compile(r"[-+]?[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class MathSettings:
    """How answers are checked.

    Args:
        deadline_s: for one answer.
        timeout_score: reward of an answer whose check ran out of time; None leaves it unjudged.
        workers: checking processes.
        memory_mb: address space of one of them.
        float_rounding: decimal places that numbers are compared at.
        strict: False lets f(x) equal f(y), and a set a tuple.
        allow_set_relation_comp: a relation (-2 < x < 7) also answers an expected set.

    Source of the last three: math-verify's `verify`, names, meaning and defaults.
    """

    deadline_s: float = 2.0
    timeout_score: float | None = None
    workers: int = 1
    memory_mb: int = 1024
    float_rounding: int = 6
    strict: bool = True
    allow_set_relation_comp: bool = False

    def __post_init__(self) -> None:
        place = 'verifier "math"'
        if not self.deadline_s > 0:
            raise VerifierError(place, "deadline_s is not above 0.", "Set it to 2, for instance.")
        if self.timeout_score is not None and not 0 <= self.timeout_score <= 1:
            raise VerifierError(
                place,
                "timeout_score is outside 0 to 1.",
                "Set it to 0, or to null to leave such answers unjudged.",
            )
        if self.workers < 1:
            raise VerifierError(place, "workers is below 1.", "Set it to 1 or 2.")
        if self.memory_mb < 512:
            raise VerifierError(
                place, "memory_mb is below 512, too little for sympy.", "Set it to 1024."
            )
        if not 0 <= self.float_rounding <= 15:
            raise VerifierError(
                place, "float_rounding is outside 0 to 15.", "Set it to 6, the usual one."
            )


class MathVerifier:
    """Judges by math-verify. Nothing starts before `start` or the first answer that needs it.

    Raises:
        VerifierError: math-verify is not installed.
    """

    def __init__(self, settings: MathSettings | None = None) -> None:
        self._settings = settings or MathSettings()
        if importlib.util.find_spec("math_verify") is None:
            raise VerifierError(
                'verifier "math"', "math-verify is not installed.", "Run: pip install math-verify"
            )
        self._rules = {
            "float_rounding": self._settings.float_rounding,
            "strict": self._settings.strict,
            "allow_set_relation_comp": self._settings.allow_set_relation_comp,
        }
        launcher = ForkLauncher(
            "math", "engines.verifiers.math.task", memory_mb=self._settings.memory_mb
        )
        self._pool = ProcessPool(
            launcher, workers=self._settings.workers, deadline_s=self._settings.deadline_s
        )

    async def start(self) -> None:
        """Return when the checking processes are up; `verify` starts them when it must.

        Raises:
            VerifierError: they cannot be started.
        """
        await self._pool.start()

    async def check(self) -> None:
        """Nothing to load: processes start with the first answer that needs them."""

    async def verify(self, problem: Problem, rollouts: Sequence[Rollout]) -> tuple[Verdict, ...]:
        expected = tuple(_parse_expected(text) for text in problem.accepted_answers)
        verdicts = await asyncio.gather(*(self._judge(rollout, expected) for rollout in rollouts))
        return tuple(verdicts)

    async def aclose(self) -> None:
        await self._pool.aclose()

    async def _judge(self, rollout: Rollout, expected: Sequence[StatedAnswer]) -> Verdict:
        if trouble := unjudgeable_verdict(rollout, expected):
            return trouble
        stated = _strip_denial(_find_answer(rollout.attempt.answer or ""), expected)
        if stated.marker == "none" and (letter := _find_named_letter(stated.text, expected)):
            stated = StatedAnswer(letter, "marked")
        elif stated.marker == "none":
            stated = StatedAnswer(stated.text[-MAX_CHARS:], "none")
        if not stated.text:
            return _different_verdict("", expected)
        if len(stated.text) > MAX_CHARS:
            error = f"too long: the stated answer has {len(stated.text)} characters"
            return Verdict(None, error=error)
        marked = stated.marker != "none"
        if _are_all_integers(stated, expected):
            same = (gold for gold in expected if int(gold.text) == int(stated.text))
            match = next(same, None)
            return (
                _equal_verdict(stated.text, match)
                if match
                else _different_verdict(stated.text, expected)
            )
        answer = await self._pool.ask(
            {
                "answer": stated.text,
                "marker": stated.marker,
                "rules": self._rules,
                "expected": [
                    {
                        "text": gold.text,
                        "marker": "marked" if gold.marker == "none" else gold.marker,
                    }
                    for gold in expected
                ],
            }
        )
        if isinstance(answer, Trouble):
            return self._trouble_verdict(answer, stated)
        got = stated.text if marked else str(answer["got"])
        at = answer["match"]
        return (
            _different_verdict(got, expected) if at is None else _equal_verdict(got, expected[at])
        )

    def _trouble_verdict(self, trouble: Trouble, stated: StatedAnswer) -> Verdict:
        text = f"{trouble.kind}: {short_text(trouble.text, 120)}"
        if trouble.kind == "timeout" and self._settings.timeout_score is not None:
            critique = f"{text}, checking {short_text(stated.text)}"
            return Verdict(self._settings.timeout_score, critique, {"timeout": 1.0})
        return Verdict(None, error=text)


def _find_answer(response: str) -> StatedAnswer:
    stated = find_stated_answer(response, join_boxes=True)
    marked = stated.marker != "none"
    text = stated.text if marked else stated.text[-TAIL_CHARS:]
    return StatedAnswer(ascii_notation(text, marked=marked), stated.marker)


def _parse_expected(text: str) -> StatedAnswer:
    stated = find_stated_answer(text, join_boxes=True)
    return StatedAnswer(ascii_notation(stated.text, marked=True), stated.marker)


def _strip_denial(stated: StatedAnswer, expected: Sequence[StatedAnswer]) -> StatedAnswer:
    if any(_NOT.search(gold.text) for gold in expected):
        return stated
    return StatedAnswer(strip_denial(stated.text), stated.marker)


def _find_named_letter(response: str, expected: Sequence[StatedAnswer]) -> str | None:
    """The choice that a response names in passing, where one capital letter is expected.

    One that stands alone on the last line is chosen, or that labels the only line; of
    several in prose none is.
    """
    if not all(_LETTER.fullmatch(gold.text) for gold in expected):
        return None
    tail = response[-MAX_CHARS:]
    if alone := _LAST_LETTER.fullmatch(tail.rstrip().rpartition("\n")[2]):
        return alone[1].upper()
    if labelled := _LABELLED.fullmatch(tail.strip()):
        return labelled[1]
    named = set(_BRACKETED_LETTER.findall(tail) or _NAMED_LETTER.findall(tail))
    if not named and (label := find_chosen_letter(tail, string.ascii_letters, stated=False)):
        return label
    return named.pop() if len(named) == 1 else None


def _are_all_integers(stated: StatedAnswer, expected: Sequence[StatedAnswer]) -> bool:
    """True for plain integers only, whose equality needs no algebra.

    Most word problems end here, and a run of nothing else starts no process.
    """
    texts = (stated.text, *(gold.text for gold in expected))
    return all(_PLAIN_INTEGER.fullmatch(text) for text in texts)


def _equal_verdict(got: str, match: StatedAnswer) -> Verdict:
    return Verdict(1.0, f"{short_text(got) or 'answer'} == {short_text(match.text)}")


def _different_verdict(got: str, expected: Sequence[StatedAnswer]) -> Verdict:
    found = f"got {short_text(got)}" if short_text(got) else "found no answer"
    return Verdict(0.0, f"expected {expected_text(gold.text for gold in expected)}, {found}")
