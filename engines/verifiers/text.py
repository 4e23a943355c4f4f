"""The `text` verifier: does the stated answer match the expected text?

Patterns run in a process that can be killed: Python's `re` cannot be interrupted, and one that
backtracks without end would stop the whole run.
"""

import asyncio
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from engines.core.errors import VerifierError
from engines.core.settings import setting
from engines.core.types import Problem, Rollout, Verdict
from engines.process.pool import ForkLauncher, ProcessPool, Trouble
from engines.verifiers.choice import choose_option, judge_choices
from engines.verifiers.math.notation import WRAPPED
from engines.verifiers.stated_answer import (
    TAIL_CHARS,
    find_stated_answer,
    short_text,
    strip_thoughts,
    trouble_verdict,
    unjudgeable_verdict,
    wrong_verdict,
)

PATTERN_DEADLINE_S = 1.0
"""For one answer: a pattern may backtrack without end."""
_PLACE = 'verifier "text"'
_EDGES = " \t\r\n\"'`*_“”‘’$"


@dataclass(frozen=True, slots=True)
class TextSettings:
    """How texts are compared.

    exact: equal after normalising; contains: the expected words stand in the answer; choice:
    the letter chosen; regex: group 1 of the pattern's last match, in the last 16,000
    characters, with `^` and `$` at lines.
    """

    mode: Literal["exact", "contains", "choice", "regex"] = setting(
        "exact", "how answer and expected text are compared", examples=["contains"]
    )
    pattern: str | None = setting(
        None, "regular expression of mode regex, with one group", examples=[r'''"'is (\d+)'"''']
    )

    def __post_init__(self) -> None:
        if self.mode == "regex":
            _check_pattern(self.pattern)


class TextVerifier:
    def __init__(self, settings: TextSettings | None = None) -> None:
        self._settings = settings or TextSettings()
        regex = self._settings.mode == "regex"
        self._pool = pattern_pool() if regex else None

    async def check(self) -> None:
        """Nothing to load: processes start with the first answer that needs them."""

    async def verify(self, problem: Problem, rollouts: Sequence[Rollout]) -> tuple[Verdict, ...]:
        as_choice = self._settings.mode in ("exact", "choice")
        if as_choice and (verdicts := judge_choices(problem, rollouts)):
            return verdicts
        expected = tuple(find_stated_answer(text).text for text in problem.accepted_answers)
        judged = (self._judge(rollout, expected) for rollout in rollouts)
        return tuple(await asyncio.gather(*judged))

    async def aclose(self) -> None:
        if self._pool:
            await self._pool.aclose()

    async def _judge(self, rollout: Rollout, expected: Sequence[str]) -> Verdict:
        if trouble := unjudgeable_verdict(rollout, expected):
            return trouble
        response = strip_thoughts(rollout.attempt.answer or "")
        stated = find_stated_answer(response)
        text = stated.text[-TAIL_CHARS:]
        matched: str | None
        match self._settings.mode:
            case "exact":
                matched = self._first_match(text, expected)
            case "contains":
                words = normalise_text(text)
                held = (gold for gold in expected if _contains_words(words, normalise_text(gold)))
                matched = next(held, None)
            case "choice":
                options = dict.fromkeys("ABCDE", "")
                chosen = choose_option(response, options)
                right = {choose_option(gold, options) for gold in expected}
                if right == {None}:
                    error = f"failed: the expected answer {short_text(expected[0])} is not a choice"
                    return Verdict(None, error=error)
                text, matched = chosen or "", chosen if chosen in right else None
            case "regex":
                assert self._pool and self._settings.pattern is not None
                question = {"pattern": self._settings.pattern, "text": response[-TAIL_CHARS:]}
                found = await self._pool.ask(question)
                if isinstance(found, Trouble):
                    return trouble_verdict(found)
                text = str(found["found"] or "")
                matched = self._first_match(text, expected)
        if matched is None:
            return wrong_verdict(text, expected)
        return Verdict(1.0, f"matches {short_text(matched)}")

    def _first_match(self, text: str, expected: Sequence[str]) -> str | None:
        normal = normalise_text(text)
        return next((gold for gold in expected if normalise_text(gold) == normal), None)


def pattern_pool() -> ProcessPool:
    """One process that searches for patterns, with a deadline for each."""
    launcher = ForkLauncher("pattern", "engines.verifiers.pattern_task", memory_mb=512)
    return ProcessPool(launcher, workers=1, deadline_s=PATTERN_DEADLINE_S)


def normalise_text(text: str) -> str:
    """The form in which texts are compared: NFKC, no case, single blanks, no outer quotes."""
    text = unicodedata.normalize("NFKC", WRAPPED.sub(r"\1", text)).casefold().strip(_EDGES)
    if text.endswith("."):
        text = text[:-1].rstrip(_EDGES)
    return " ".join(text.split())


def _contains_words(words: str, gold: str) -> bool:
    """True when gold stands in words, not as a part of a longer word."""
    return bool(gold) and bool(re.search(rf"(?<!\w){re.escape(gold)}(?!\w)", words))


def _check_pattern(pattern: str | None) -> None:
    if not pattern:
        move = r"Give one with a group, such as 'total: (\d+)'."
        raise VerifierError(_PLACE, "mode is regex but pattern is missing.", move)
    try:
        groups = re.compile(pattern, re.MULTILINE).groups
    except re.error as error:
        cause = f"pattern {pattern!r} is not a regular expression ({error})."
        raise VerifierError(_PLACE, cause, "Mend it.") from error
    if not groups:
        move = "Put round brackets around the part that is the answer."
        raise VerifierError(_PLACE, f"pattern {pattern!r} has no group.", move)
