"""The `choice` verifier: which option of its problem does a response choose, by letter or text?

A response that names two options chooses none.
"""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from fractions import Fraction

from engines.core.types import Problem, Rollout, Verdict
from engines.verifiers.math.notation import ascii_notation, strip_tex
from engines.verifiers.stated_answer import (
    TAIL_CHARS,
    find_stated_answer,
    unjudgeable_verdict,
    wrong_verdict,
)

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
    """Return the verdict on one rollout, also where its problem has no options."""
    if verdicts := judge_choices(problem, [rollout]):
        return verdicts[0]
    return Verdict(None, error="failed: the problem has no options; give its row a list of choices")


def judge_choices(problem: Problem, rollouts: Sequence[Rollout]) -> tuple[Verdict, ...]:
    """The verdicts on a problem with options; none where it has none."""
    options = problem.options
    if not options:
        return ()
    right = {choose_option(answer, options) for answer in problem.accepted_answers} - {None}
    expected = [f"{letter}. {options[letter]}" for letter in sorted(filter(None, right))]

    def judge(rollout: Rollout) -> Verdict:
        response = rollout.attempt.answer or ""
        chosen = choose_option(response, options)
        if chosen in right:
            return Verdict(1.0, f"chose {chosen}")
        return wrong_verdict(chosen or find_stated_answer(response).text, expected)

    return tuple(unjudgeable_verdict(one, expected) or judge(one) for one in rollouts)


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
