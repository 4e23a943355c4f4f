"""The `math`, `text` and `choice` verifiers: is the stated answer the expected one, or its option?

Algebra runs in processes that can be killed (`math_task`): an answer that hangs or crashes the
check costs its own verdict and nothing else. So do patterns: Python's `re` cannot be interrupted,
and one that backtracks without end would stop the whole run. A problem with options is judged as a
choice; a response that names two options chooses none.
"""

import importlib.util
import re
import string
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from fractions import Fraction
from typing import Literal

from engines.core.codec import JsonObject
from engines.core.errors import VerifierError
from engines.core.frozen import frozen
from engines.core.settings import derived, setting
from engines.core.types import Problem, Rollout, Verdict
from engines.process.pool import ForkLauncher, ProcessPool, Trouble
from engines.verifiers.independent import IndependentVerifier
from engines.verifiers.stated_answer import (
    TAIL_CHARS,
    WRAPPED,
    StatedAnswer,
    ascii_notation,
    find_stated_answer,
    short_text,
    strip_denial,
    strip_tex,
    strip_thoughts,
    trouble_verdict,
    wrong_verdict,
)

PATTERN_DEADLINE_S = 1.0
"""For one answer: a pattern may backtrack without end."""
_PLACE = 'verifier "text"'
_EDGES = " \t\r\n\"'`*_“”‘’$"


@frozen
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
        if self.mode == "regex" and not check_pattern(_PLACE, self.pattern):
            raise VerifierError(
                _PLACE,
                f"pattern {self.pattern!r} has no group.",
                "Put round brackets around the part that is the answer.",
            )


class TextVerifier(IndependentVerifier):
    """Judges by words. A process starts with the first answer that needs one."""

    def __init__(self, settings: TextSettings | None = None) -> None:
        self._settings = settings or TextSettings()
        regex = self._settings.mode == "regex"
        self._pool = pattern_pool() if regex else None

    async def aclose(self) -> None:
        if self._pool:
            await self._pool.aclose()

    async def judge(self, problem: Problem, rollout: Rollout) -> Verdict:
        if problem.options and self._settings.mode in ("exact", "choice"):
            return judge_choice(problem, rollout)
        expected = [find_stated_answer(text).text for text in problem.accepted_answers]
        if not expected:
            return Verdict(None)
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
    launcher = ForkLauncher("pattern", "engines.verifiers.answers", memory_mb=512)
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


def check_pattern(place: str, pattern: str | None) -> int:
    """Count the groups of a regular expression. Raises VerifierError: it is missing, or none."""
    if not pattern:
        raise VerifierError(place, "pattern is missing.", r"Give one, such as 'total: (\d+)'.")
    try:
        return re.compile(pattern).groups
    except (re.error, OverflowError, RecursionError) as error:
        raise VerifierError(
            place,
            f"pattern {short_text(repr(pattern), 80)} is not a regular expression ({error}).",
            "Mend it.",
        ) from error


# "A" before most words is an article, and "I" speaks of itself.
_LETTER = re.compile(
    r"(?<![^\s*(,;/&+\u4e00-\u9fff])([B-HJ-Z]|A(?!\s+(?!(?:and|or|is|was|nor|but|because|has|must)\b)[a-z]))"
    r"(?=[\s*).,;:/&+]|$)"
)
_BRACKETED = re.compile(r"[(\[{]([A-Z])[)\]}]")
_LEAD = r"\W*(?:(?:the\s+)?(?:correct\s+)?(?:option|choice|answer|letter)\W+(?:is\W+)?)?"
_ALONE = re.compile(rf"{_LEAD}([A-Z])\W*", re.IGNORECASE)
_REASON = r"(?:because|since|as)\s"
_LABELLED = re.compile(
    rf"{_LEAD}(?:\(?([A-Z])[)\]][).:,]*|([A-Z])(?:[.:,]+(?=\s)|\s+[-–—](?=\s)|(?=\s+{_REASON})))"
    rf"\s*(?:{_REASON}.*|(.*))",
    re.DOTALL | re.IGNORECASE,
)
_DENIAL = (
    r"(?:\b(?:can)?[Nn]ot|n't|\brather\s+than|\binstead\s+of|\bnicht|\bpas|不是)"
    r"\s*(?:be\s+)?(?:option\s+)?"
)
_NEGATION = re.compile(
    r"\b(?:(?:can)?not|never|neither|nicht|wrong|incorrect|false|except|hardly|unlikely|any(?:thing)?\s+but|everything\s+but)\b|n't|不",
    re.I,
)

_FRACTION = re.compile(r"\\[dt]?frac\{(\d+)\}\{(\d+)\}")
_NUMBER = re.compile(r"(?:[A-Za-z]\s*=\s*)?([-+]?\d{1,15}(?:\.\d{1,15}|/0*[1-9]\d{0,15})?)")


def judge_choice(problem: Problem, rollout: Rollout) -> Verdict:
    """Return the verdict on one rollout by the option that it names."""
    options = problem.options
    if not options:
        error = "failed: the problem has no options; give its row a list of choices"
        return Verdict(None, error=error)
    right = {choose_option(answer, options) for answer in problem.accepted_answers} - {None}
    if not right:
        return Verdict(None)
    response = rollout.attempt.answer or ""
    chosen = choose_option(response, options)
    if chosen in right:
        return Verdict(1.0, f"chose {chosen}")
    expected = [f"{letter}. {options[letter]}" for letter in sorted(filter(None, right))]
    return wrong_verdict(chosen or find_stated_answer(response).text, expected)


def choose_option(response: str, options: Mapping[str, str]) -> str | None:
    """The letter of the one option that a response states, by letter or text.

    Where nothing is stated, the last line names it, or else the response as a whole.
    """
    stated = find_stated_answer(response, join_boxes=True)
    text = stated.text[-TAIL_CHARS:]
    texts = {letter: _plain(option) for letter, option in options.items()}
    if stated.marker == "none" and (last := text.rpartition("\n")[2]) != text:
        chosen, silent = _read_choice(_plain(last), texts)
        if not silent:
            return chosen
    return _read_choice(_plain(text), texts)[0]


def _read_choice(text: str, texts: Mapping[str, str]) -> tuple[str | None, bool]:
    """The option that is chosen, and whether the text names none at all."""
    if (alone := _ALONE.fullmatch(text)) and alone[1].upper() in texts:
        return alone[1].upper(), False
    equal = [at for at, option in texts.items() if option.casefold() == text.casefold()]
    equal = equal or [at for at, option in texts.items() if _same_number(option, text)]
    if text and len(equal) == 1:
        return equal[0], False
    denied = "|".join(re.escape(option) for option in texts.values() if option)
    text = re.sub(
        rf"[\s,;(]{{0,3}}{_DENIAL}[(\"']*(?:(?i:{denied or '-'})|[A-Z])(?!\w)[)\"']*", "", text
    )
    found = _LABELLED.fullmatch(text)
    letter = (found[1] or found[2]).upper() if found else ""
    if found and letter in texts and (found[1] or found[2] == letter):
        named, _ = _find_named(rest := (found[3] or "").strip(), texts)
        differs = not named and _same_number(texts[letter], rest) is False
        return None if named - {letter} or differs else letter, False
    named, rest = _find_named(text, texts)
    sure = len(named) == 1 and not _NEGATION.search(rest)
    return named.pop() if sure else None, not named


def _same_number(one: str, other: str) -> bool | None:
    """Whether two texts are one number; None where either is no plain number."""
    numbers = [_NUMBER.fullmatch(_FRACTION.sub(r"\1/\2", text)) for text in (one, other)]
    if not all(numbers):
        return None
    values = [Fraction(number[1]) for number in numbers if number]
    return values[0] == values[1]


def _find_named(text: str, texts: Mapping[str, str]) -> tuple[set[str], str]:
    """The options named in a text, and the words that name none."""
    named = set()
    # The longest first: "New York" is not "York", nor is 120 a 12.
    for letter, option in sorted(texts.items(), key=lambda item: -len(item[1])):
        if len(option) < 2 and not option.isdecimal():
            continue  # perhaps the letter of another option
        before, after = r"(?<!\w)", r"(?!\w)"
        if option[-1].isdigit():
            before, after = r"(?<![\w.,/^+*-])", r"(?!\w|[.,:]\d|\s*[%/^*+\\×·°-]|\s+\d)"
        rest = re.sub(f"{before}{re.escape(option)}{after}", " ", text, flags=re.IGNORECASE)
        named |= {letter} if rest != text else set()
        text = rest
    return named | (set(_BRACKETED.findall(text) or _LETTER.findall(text)) & set(texts)), text


def _plain(text: str) -> str:
    text = unicodedata.normalize("NFKC", ascii_notation(strip_tex(text), marked=True))
    return " ".join(text.split()).strip(" .\"'`*_“”‘’$")


def build_task() -> Callable[[JsonObject], JsonObject]:
    return find_pattern


def find_pattern(question: JsonObject) -> JsonObject:
    """The first group of a pattern's last match, or None.

    A question with flags of its own asks only whether there is a match.
    """
    pattern, text = question["pattern"], question["text"]
    if "flags" in question:
        return {"found": re.search(pattern, text, question["flags"]) is not None}
    found = None
    for match in re.finditer(pattern, text, re.MULTILINE):
        found = match[1]
    return {"found": found}


MAX_CHARS = 2_000
"""Longest expression handed to math-verify; of a response that states none, its tail."""

_CAPITAL = re.compile(r"[A-Z]")
_NOT = re.compile(r"\bnot\b")
_PLAIN_INTEGER = re.compile(r"[-+]?[0-9]{1,18}")


@frozen
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


class MathVerifier(IndependentVerifier):
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
        task, memory_mb = "engines.verifiers.math_task", settings.memory_mb
        launcher = ForkLauncher("math", task, memory_mb=memory_mb)
        workers, deadline_s = settings.workers, settings.deadline_s
        self._pool = ProcessPool(launcher, workers=workers, deadline_s=deadline_s)

    async def start(self) -> None:
        """Return when the checking processes are up; VerifierError where they cannot be."""
        await self._pool.start()

    async def aclose(self) -> None:
        await self._pool.aclose()

    async def judge(self, problem: Problem, rollout: Rollout) -> Verdict:
        if problem.options:
            return judge_choice(problem, rollout)
        expected = [_parse_expected(text) for text in problem.accepted_answers]
        if not expected:
            return Verdict(None)
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
    if not all(_CAPITAL.fullmatch(gold.text) for gold in expected):
        return None
    return choose_option(response[-MAX_CHARS:], dict.fromkeys(string.ascii_uppercase, ""))


def _verdict(got: str, match: StatedAnswer | None, expected: Sequence[StatedAnswer]) -> Verdict:
    if match is None:
        return wrong_verdict(got, (gold.text for gold in expected))
    return Verdict(1.0, f"{short_text(got) or 'answer'} == {short_text(match.text)}")
