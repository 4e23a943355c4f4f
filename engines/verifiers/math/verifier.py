"""The `math` verifier: is the stated answer mathematically the expected one?

Owns what is asked of math-verify and what its word means as a verdict. Runs no algebra
here: `worker_pool` does, in processes that can be killed. An answer that hangs or
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
from engines.verifiers.math.notation import plain, without_denied
from engines.verifiers.process_pool.pool import WorkerPool
from engines.verifiers.process_pool.process import Trouble
from engines.verifiers.stated_answer import (
    TAIL_CHARS,
    Stated,
    rollout_trouble,
    shown,
    stated_answer,
    wanted,
)
from engines.verifiers.text import chosen_letter

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
        self._pool = WorkerPool(
            "math",
            workers=self._settings.workers,
            deadline_s=self._settings.deadline_s,
            memory_mb=self._settings.memory_mb,
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
        expected = tuple(_expected(text) for text in problem.accepted)
        verdicts = await asyncio.gather(*(self._judge(rollout, expected) for rollout in rollouts))
        return tuple(verdicts)

    async def aclose(self) -> None:
        await self._pool.aclose()

    async def _judge(self, rollout: Rollout, expected: Sequence[Stated]) -> Verdict:
        if trouble := rollout_trouble(rollout, expected):
            return trouble
        stated = _undenied(_stated(rollout.attempt.answer or ""), expected)
        if stated.marker == "none" and (letter := _named_letter(stated.text, expected)):
            stated = Stated(letter, "marked")
        elif stated.marker == "none":
            stated = Stated(stated.text[-MAX_CHARS:], "none")
        if not stated.text:
            return _different("", expected)
        if len(stated.text) > MAX_CHARS:
            error = f"too long: the stated answer has {len(stated.text)} characters"
            return Verdict(None, error=error)
        marked = stated.marker != "none"
        if _all_integers(stated, expected):
            same = (gold for gold in expected if int(gold.text) == int(stated.text))
            match = next(same, None)
            return _equal(stated.text, match) if match else _different(stated.text, expected)
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
            return self._troubled(answer, stated)
        got = stated.text if marked else str(answer["got"])
        at = answer["match"]
        return _different(got, expected) if at is None else _equal(got, expected[at])

    def _troubled(self, trouble: Trouble, stated: Stated) -> Verdict:
        text = f"{trouble.kind}: {shown(trouble.text, 120)}"
        if trouble.kind == "timeout" and self._settings.timeout_score is not None:
            critique = f"{text}, checking {shown(stated.text)}"
            return Verdict(self._settings.timeout_score, critique, {"timeout": 1.0})
        return Verdict(None, error=text)


def _stated(response: str) -> Stated:
    stated = stated_answer(response, join_boxes=True)
    marked = stated.marker != "none"
    text = stated.text if marked else stated.text[-TAIL_CHARS:]
    return Stated(plain(text, marked=marked), stated.marker)


def _expected(text: str) -> Stated:
    stated = stated_answer(text, join_boxes=True)
    return Stated(plain(stated.text, marked=True), stated.marker)


def _undenied(stated: Stated, expected: Sequence[Stated]) -> Stated:
    if any(_NOT.search(gold.text) for gold in expected):
        return stated
    return Stated(without_denied(stated.text), stated.marker)


def _named_letter(response: str, expected: Sequence[Stated]) -> str | None:
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
    if not named and (label := chosen_letter(tail, string.ascii_letters, stated=False)):
        return label
    return named.pop() if len(named) == 1 else None


def _all_integers(stated: Stated, expected: Sequence[Stated]) -> bool:
    """True for plain integers only, whose equality needs no algebra.

    Most word problems end here, and a run of nothing else starts no process.
    """
    texts = (stated.text, *(gold.text for gold in expected))
    return all(_PLAIN_INTEGER.fullmatch(text) for text in texts)


def _equal(got: str, match: Stated) -> Verdict:
    return Verdict(1.0, f"{shown(got) or 'answer'} == {shown(match.text)}")


def _different(got: str, expected: Sequence[Stated]) -> Verdict:
    found = f"got {shown(got)}" if shown(got) else "found no answer"
    return Verdict(0.0, f"expected {wanted(gold.text for gold in expected)}, {found}")
