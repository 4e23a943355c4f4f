"""The `math` verifier: is the stated answer mathematically the expected one?

Algebra runs in processes that can be killed (`task`): an answer that hangs or crashes the check
costs its own verdict and nothing else. A problem with options is judged as a choice.
"""

import asyncio
import importlib.util
import re
import string
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from engines.core.errors import VerifierError
from engines.core.settings import derived, setting
from engines.core.types import Problem, Rollout, Verdict
from engines.process.pool import ForkLauncher, ProcessPool, Trouble
from engines.verifiers.stated_answer import (
    TAIL_CHARS,
    StatedAnswer,
    ascii_notation,
    find_stated_answer,
    short_text,
    strip_denial,
    trouble_verdict,
    unjudgeable_verdict,
    wrong_verdict,
)
from engines.verifiers.text import choose_option, judge_choices

MAX_CHARS = 2_000
"""Longest expression handed to math-verify; of a response that states none, its tail."""

_LETTER = re.compile(r"[A-Z]")
_NOT = re.compile(r"\bnot\b")
_PLAIN_INTEGER = re.compile(r"[-+]?[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class MathSettings:
    """How answers are checked.

    Source of the last three: math-verify's `verify`, names, meaning and defaults, but for the last.
    """

    deadline_s: float = setting(2.0, "seconds for one answer", gt=0)
    timeout_score: float | None = setting(
        None, "reward after the deadline; null leaves the answer unjudged", ge=0, le=1, examples=[0]
    )
    workers: int = setting(1, "checking processes", ge=1)
    memory_mb: int = derived(1024)  # for the checks of one process
    float_rounding: int = derived(6)
    strict: bool = derived(True)
    allow_set_relation_comp: bool = derived(True)  # -2 < x < 7 answers a set, too


class MathVerifier:
    """Judges by math-verify. Nothing starts before `start` or the first answer that needs it.

    Raises VerifierError: math-verify is not installed.
    """

    def __init__(self, settings: MathSettings = MathSettings()) -> None:
        self._settings = settings
        if importlib.util.find_spec("math_verify") is None:
            raise VerifierError(
                'verifier "math"', "math-verify is not installed.", "Run: pip install math-verify"
            )
        self._rules = {
            "float_rounding": settings.float_rounding,
            "strict": settings.strict,
            "allow_set_relation_comp": settings.allow_set_relation_comp,
        }
        task, memory_mb = "engines.verifiers.math.task", settings.memory_mb
        launcher = ForkLauncher("math", task, memory_mb=memory_mb)
        workers, deadline_s = settings.workers, settings.deadline_s
        self._pool = ProcessPool(launcher, workers=workers, deadline_s=deadline_s)

    async def start(self) -> None:
        """Return when the checking processes are up; VerifierError where they cannot be."""
        await self._pool.start()

    async def check(self) -> None:
        """Nothing to load: processes start with the first answer that needs them."""

    async def verify(self, problem: Problem, rollouts: Sequence[Rollout]) -> tuple[Verdict, ...]:
        if verdicts := judge_choices(problem, rollouts):
            return verdicts
        expected = tuple(_parse_expected(text) for text in problem.accepted_answers)
        judged = (self._judge(rollout, expected) for rollout in rollouts)
        return tuple(await asyncio.gather(*judged))

    async def aclose(self) -> None:
        await self._pool.aclose()

    async def _judge(self, rollout: Rollout, expected: Sequence[StatedAnswer]) -> Verdict:
        if trouble := unjudgeable_verdict(rollout, expected):
            return trouble
        stated = _find_answer(rollout.attempt.answer or "")
        if not any(_NOT.search(gold.text) for gold in expected):
            stated = StatedAnswer(strip_denial(stated.text), stated.marker)
        if stated.marker == "none" and (letter := _find_named_letter(stated.text, expected)):
            stated = StatedAnswer(letter, "marked")
        elif stated.marker == "none":
            stated = StatedAnswer(stated.text[-MAX_CHARS:], "none")
        if not stated.text:
            return _verdict("", None, expected)
        if len(stated.text) > MAX_CHARS:
            error = f"too long: the stated answer has {len(stated.text)} characters"
            return Verdict(None, error=error)
        # Most word problems end here, and a run of nothing else starts no process.
        if all(_PLAIN_INTEGER.fullmatch(one.text) for one in (stated, *expected)):
            same = (gold for gold in expected if int(gold.text) == int(stated.text))
            return _verdict(stated.text, next(same, None), expected)
        # `\boxed{5}$ cm` has its unit behind the box.
        after = (rollout.attempt.answer or "").rpartition(f"{stated.text}}}")[2]
        answer = await self._pool.ask(
            {
                "answer": stated.text,
                "after": after[:40] if stated.marker == "boxed" else "",
                "marker": stated.marker,
                "rules": self._rules,
                "expected": [asdict(gold) for gold in expected],
            }
        )
        if isinstance(answer, Trouble):
            what, score = f", checking {short_text(stated.text)}", self._settings.timeout_score
            return trouble_verdict(answer, timeout_score=score, what=what)
        got = stated.text if stated.marker != "none" else str(answer["got"])
        at = answer["match"]
        return _verdict(got, None if at is None else expected[at], expected)


def _find_answer(response: str) -> StatedAnswer:
    stated = find_stated_answer(response, join_boxes=True)
    marked = stated.marker != "none"
    if marked and len(stated.text) > TAIL_CHARS:
        return stated  # too long in any notation, and a megabyte takes half a second to rewrite
    text = stated.text if marked else stated.text[-TAIL_CHARS:]
    return StatedAnswer(ascii_notation(text, marked=marked), stated.marker)


def _parse_expected(text: str) -> StatedAnswer:
    stated = find_stated_answer(text, join_boxes=True)
    marker = "marked" if stated.marker == "none" else stated.marker
    return StatedAnswer(ascii_notation(stated.text, marked=True), marker)


def _find_named_letter(response: str, expected: Sequence[StatedAnswer]) -> str | None:
    """The choice that a response names in passing, where one capital letter is expected."""
    if not all(_LETTER.fullmatch(gold.text) for gold in expected):
        return None
    return choose_option(response[-MAX_CHARS:], dict.fromkeys(string.ascii_uppercase, ""))


def _verdict(got: str, match: StatedAnswer | None, expected: Sequence[StatedAnswer]) -> Verdict:
    if match is None:
        return wrong_verdict(got, (gold.text for gold in expected))
    return Verdict(1.0, f"{short_text(got) or 'answer'} == {short_text(match.text)}")
