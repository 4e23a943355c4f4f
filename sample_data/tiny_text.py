"""What the tiny policy practises: problems of four skills, each solved right and lazily.

Owns the questions, both solutions as text and the split of all number tuples into those
of the warm-up, of practice and of the held-out set. Knows no model and no tips.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

Skill = Literal["addition", "subtraction", "story", "precedence"]
Share = Literal["warm-up", "practice", "heldout"]

SKILLS: tuple[Skill, ...] = ("addition", "subtraction", "story", "precedence")
SOURCES: dict[Skill, str] = {
    "addition": "addition with carry",
    "subtraction": "subtraction with borrow",
    "story": "two-step story",
    "precedence": "precedence",
}
CARRY = "when a column makes ten or more, carry one"
BORROW = "when the upper digit is smaller, borrow ten"
LAST_CHANGE = "when a story has two changes, answer only after the last one"
MULTIPLY_FIRST = "when signs are mixed, multiply before anything else"
LESSONS: dict[Skill, str] = {
    "addition": f"Carry: {CARRY}.",
    "subtraction": f"Borrow: {BORROW}.",
    "story": f"Last change: {LAST_CHANGE}.",
    "precedence": f"Multiply first: {MULTIPLY_FIRST}.",
}
"""The lesson that rehearsal as reflector draws from a right and a lazy attempt."""


@dataclass(frozen=True, slots=True)
class Exercise:
    """One problem with both solutions; they part at their second line."""

    skill: Skill
    question: str
    answer: int
    right: str
    lazy: str


@dataclass(frozen=True, slots=True)
class _Work:
    """The numbers' own part of an exercise: what is asked, and the lines of both solutions."""

    asked: dict[str, object]
    answer: int
    shared: str
    right: str
    lazy: str
    slip: int  # the lazy solution's answer, never the right one


_NAMES = ("Mia", "Ben", "Lena", "Omar", "Ida", "Theo", "Nora", "Sami", "Ruth", "Jonas")
_QUESTIONS: dict[Skill, tuple[str, ...]] = {
    "addition": (
        "What is {a} + {b}?",
        "Add {a} and {b}.",
        "Compute {a} + {b}.",
        "What is the sum of {a} and {b}?",
        "How much is {a} plus {b}?",
    ),
    "subtraction": (
        "What is {a} - {b}?",
        "Subtract {b} from {a}.",
        "Compute {a} - {b}.",
        "What is the difference between {a} and {b}?",
        "How much is {a} minus {b}?",
    ),
    "precedence": (
        "What is {e}?",
        "Work out {e}.",
        "Compute {e}.",
        "Find the value of {e}.",
        "Calculate {e}.",
    ),
}
# Text, sign of the first change, sign of the second; the amounts stand in reading order.
_STORIES: tuple[tuple[str, str, str], ...] = (
    ("{n} has {x} apples. {n} buys {y} more and then gives {z} away. "
     "How many apples does {n} have now?", "+", "-"),
    ("A shop gets {x} boxes with {y} pens each. It sells {z} pens. "
     "How many pens are left?", "*", "-"),
    ("{n} reads {x} pages each day for {y} days and then {z} more pages. "
     "How many pages is that in all?", "*", "+"),
    ("There are {x} people on a bus. {y} leave and {z} others come in. "
     "How many people are on the bus?", "-", "+"),
    ("{n} collects {x} shells, loses {y} of them and finds {z} the next day. "
     "How many shells does {n} have?", "-", "+"),
    ("A baker makes {x} trays of {y} rolls per tray. The family eats {z} rolls. "
     "How many rolls remain?", "*", "-"),
)  # fmt: skip


def share_of(numbers: tuple[int, ...]) -> Share:
    """Where a tuple of numbers belongs, whatever their order and whatever is asked of them."""
    key = ",".join(map(str, sorted(numbers)))
    bucket = hashlib.sha256(key.encode()).digest()[0] % 10
    return "heldout" if bucket < 2 else "practice" if bucket < 4 else "warm-up"


def numbers_in(question: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", question))


def exercises(skill: Skill, chance: random.Random, share: Share) -> Iterator[Exercise]:
    """Endless exercises of one skill whose number tuples belong to the share."""
    make = _MAKERS[skill]
    while True:
        work = make(chance)
        if work is None:
            continue
        exercise = _build_exercise(skill, work, chance)
        if share_of(numbers_in(exercise.question)) == share:
            yield exercise


def _build_exercise(skill: Skill, work: _Work, chance: random.Random) -> Exercise:
    text = str(work.asked.get("text")) if skill == "story" else chance.choice(_QUESTIONS[skill])
    question = text.format(n=chance.choice(_NAMES), **work.asked)
    right = f"{work.shared}\n{work.right}\n#### {work.answer}"
    lazy = f"{work.shared}\n{work.lazy}\n#### {work.slip}"
    return Exercise(skill, question, work.answer, right, lazy)


def _digits(number: int) -> list[int]:
    """Ones first."""
    return [int(digit) for digit in reversed(str(number))]


def _addition(chance: random.Random) -> _Work | None:
    """Two numbers of two, or of three, digits; the ones column carries."""
    low, high = (12, 97) if chance.random() < 0.75 else (112, 489)
    a, b = chance.randint(low, high), chance.randint(low, high)
    (ones, *upper), (other, *lower) = _digits(a), _digits(b)
    if ones + other < 10:
        return None
    carried, right, lazy = 1, [], []
    for x, y in zip(upper, lower, strict=True):
        total = x + y + carried
        right.append(f"{x}+{y}+1={total}" if carried else f"{x}+{y}={total}")
        lazy.append(f"{x}+{y}={x + y}")
        carried = int(total >= 10)
    sums = [x + y for x, y in zip((ones, *upper), (other, *lower), strict=True)]
    slip = sum(total % 10 * 10**place for place, total in enumerate(sums))
    slip += sums[-1] // 10 * 10 ** len(sums)  # the last column is written whole
    return _Work(
        {"a": a, "b": b},
        a + b,
        f"(ones) {ones}+{other}={ones + other}",
        f"(carry) {CARRY}: {', '.join(right)}",
        f"(next column) write the last digit and go on: {', '.join(lazy)}",
        slip,
    )


def _subtraction(chance: random.Random) -> _Work | None:
    """The larger number first; its ones digit is the smaller one, and no other digit is."""
    low, high = (21, 98) if chance.random() < 0.75 else (121, 698)
    a, b = chance.randint(low, high), chance.randint(12 if low < 100 else 112, high)
    (ones, *upper), (other, *lower) = _digits(a), _digits(b)
    tens_short = len(upper) != len(lower) or upper[0] - 1 < lower[0] or upper[-1] < lower[-1]
    if ones >= other or tens_short or len(str(a - b)) < len(upper) + 1:
        return None
    right, lazy = [f"{ones + 10}-{other}={ones + 10 - other}"], [f"{other}-{ones}={other - ones}"]
    for place, (x, y) in enumerate(zip(upper, lower, strict=True)):
        right.append(f"{x}-1-{y}={x - 1 - y}" if place == 0 else f"{x}-{y}={x - y}")
        lazy.append(f"{x}-{y}={x - y}")
    return _Work(
        {"a": a, "b": b},
        a - b,
        f"(ones) {ones}-{other}",
        f"(borrow) {BORROW}: {', '.join(right)}",
        f"(turn) take the smaller digit from the larger: {', '.join(lazy)}",
        a - ones - (b - other) + other - ones,
    )


def _story(chance: random.Random) -> _Work | None:
    """Two changes of one amount; the lazy solution stops after the first."""
    text, sign, then = chance.choice(_STORIES)
    if sign == "*":
        x, y, z = chance.randint(2, 9), chance.randint(2, 9), chance.randint(2, 9)
    else:
        x, y, z = chance.randint(12, 40), chance.randint(2, 9), chance.randint(2, 9)
    half = _apply(x, sign, y)
    whole = _apply(half, then, z)
    if whole < 1:
        return None
    return _Work(
        {"text": text, "x": x, "y": y, "z": z},
        whole,
        f"(first change) {x}{sign}{y}={half}",
        f"(last change) {LAST_CHANGE}: {half}{then}{z}={whole}",
        f"(answer) give the number that is there: {half}",
        half,
    )


def _precedence(chance: random.Random) -> _Work | None:
    """Plus or minus in front of times; the lazy solution works from left to right."""
    b, c = chance.randint(2, 9), chance.randint(2, 9)
    product = b * c
    if chance.random() < 0.5:
        sign, a = "+", chance.randint(2, 19)
    else:
        sign, a = "-", product + chance.randint(2, 25)
    answer, early = _apply(a, sign, product), _apply(a, sign, b)
    if answer == early * c:
        return None
    return _Work(
        {"e": f"{a} {sign} {b} * {c}"},
        answer,
        f"(signs) {a}{sign}{b}*{c}",
        f"(multiply first) {MULTIPLY_FIRST}: {b}*{c}={product}, {a}{sign}{product}={answer}",
        f"(left to right) take the signs in their order: "
        f"{a}{sign}{b}={early}, {early}*{c}={early * c}",
        early * c,
    )


def _apply(left: int, sign: str, right: int) -> int:
    return {"+": left + right, "-": left - right, "*": left * right}[sign]


_MAKERS: dict[Skill, Callable[[random.Random], _Work | None]] = {
    "addition": _addition,
    "subtraction": _subtraction,
    "story": _story,
    "precedence": _precedence,
}
