"""The four kinds of problem that rehearsal can work on by head.

Owns the right and the typical wrong solution of each; `solve` decides which is given.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

ToolFamily = Literal["remainder", "inclusive", "whole", "printed"]  # tools.problems has them
LookupFamily = Literal["order", "premature", "empty", "ungrounded", "unchecked"]  # lookup has them
Family = Literal["addition", "subtraction", "story", "precedence"] | ToolFamily | LookupFamily


@dataclass(frozen=True, slots=True)
class Step:
    """One line of a solution: a short label, what one does in general, and here."""

    label: str
    clause: str
    instance: str


@dataclass(frozen=True, slots=True)
class Task:
    """A recognised problem with both solutions.

    They share their first steps and part where the family's trap is. `traps` counts
    the places where the typical mistake can happen; 0 means both are the same.
    """

    family: Family
    right: tuple[Step, ...]
    wrong: tuple[Step, ...]
    answer: int
    wrong_answer: int
    traps: int


_SIGNS = str.maketrans("×·−–", "**--")
_SPOKEN = ((r"\bplus\b", "+"), (r"\bminus\b", "-"), (r"\btimes\b", "*"))
_EXPRESSION = re.compile(r"\d+(?:\s*[-+*]\s*\d+)+")
_ADD = re.compile(
    r"\b(?:add|sum of|total of|together)\b\D*(\d+)\s+(?:and|to|with)\s+(\d+)"
    r"|(\d+)\s+and\s+(\d+)\s+(?:added|together)",
    re.I,
)
_FROM = re.compile(
    r"\b(?:subtract|take|taken?)\s+(?:away\s+)?(\d+)\s+(?:away\s+)?from\s+(\d+)", re.I
)
_BETWEEN = re.compile(r"\bdifference (?:between|of)\s+(\d+)\s+and\s+(\d+)", re.I)
_ASKS = re.compile(r"\bhow (?:many|much)\b", re.I)
_EACH = re.compile(r"\b(?:each|every|per|apiece|a (?:day|week|month|piece))\b", re.I)
_GAINS = re.compile(
    r"\b(?:buys?|gets?|finds?|adds?|more|wins?|picks?|bakes?|arrives?|receives?|joins?|"
    r"collects?|earns?|brings?|come|comes|another|makes?)\b",
    re.I,
)
_LOSSES = re.compile(
    r"\b(?:gives?|eats?|loses?|sells?|uses?|leaves?|breaks?|spends?|away|drops?|lends?|"
    r"throws?|get off|gets off|fewer|less|pours?)\b",
    re.I,
)
_CLAUSES = re.compile(r"[.,;:!?]|\bthen\b|\band\b")


def recognise(question: str) -> Task | None:
    """Read a question; None when it belongs to no family."""
    text = question.translate(_SIGNS)
    for word, sign in _SPOKEN:
        text = re.sub(word, sign, text, flags=re.I)
    if found := _EXPRESSION.search(text):
        return _task_from_expression(found.group().replace(" ", ""))
    if found := _FROM.search(text):
        return _subtraction_task(int(found[2]), int(found[1]))
    if found := _BETWEEN.search(text):
        pair = (int(found[1]), int(found[2]))
        return _subtraction_task(max(pair), min(pair))
    if _ASKS.search(text) and (task := _story_task(text)):
        return task
    if found := _ADD.search(text):
        left, right = (g for g in found.groups() if g)
        return _addition_task(int(left), int(right))
    return None


def _task_from_expression(expression: str) -> Task | None:
    signs = re.findall(r"[-+*]", expression)
    numbers = [int(n) for n in re.findall(r"\d+", expression)]
    if signs == ["+"]:
        return _addition_task(*numbers)
    if signs == ["-"]:
        return _subtraction_task(*numbers)
    if "*" in signs and set(signs) != {"*"}:
        return _precedence_task(numbers, signs)
    return None


def _digit_columns(upper: int, lower: int) -> list[tuple[int, int]]:
    """The digits under each other, ones first, padded with zeros."""
    width = max(len(str(upper)), len(str(lower)))
    above, below = (reversed(str(number).zfill(width)) for number in (upper, lower))
    return [(int(a), int(b)) for a, b in zip(above, below, strict=True)]


_COLUMN_NAMES = ("ones", "tens", "hundreds", "thousands")
_ADD_DIGITS = "add the digits of the column"
_TAKE_DIGIT = "take the lower digit of the column from the upper one"


def _column_step(place: int, clause: str, shown: str, value: int) -> Step:
    label = _COLUMN_NAMES[place] if place < len(_COLUMN_NAMES) else f"column {place + 1}"
    return Step(label, clause, f"{shown} = {value}, write {value}")


def _addition_task(upper: int, lower: int) -> Task:
    start = Step(
        "columns",
        "when numbers are added, write them under each other and begin with the ones",
        f"{upper} + {lower}",
    )
    columns = _digit_columns(upper, lower)
    right, wrong, traps = [start], [start], 0
    carried, lost = 0, 0
    for place, (a, b) in enumerate(columns):
        last = place == len(columns) - 1
        total, plain = a + b + carried, a + b
        shown = f"{a} + {b} + 1" if carried else f"{a} + {b}"
        carried = 0
        if last:
            clause = "write the whole sum of the last column"
            right.append(Step("last column", clause, f"{shown} = {total}, write {total}"))
            wrong.append(Step("last column", clause, f"{a} + {b} = {plain}, write {plain}"))
            lost += plain * 10**place
            break
        if total >= 10:
            traps, carried = traps + 1, 1
            clause = "when a column adds up to ten or more, carry one into the next column"
            right.append(Step("carry", clause, f"{shown} = {total}, write {total % 10}, carry 1"))
        else:
            right.append(_column_step(place, _ADD_DIGITS, shown, total))
        if plain >= 10:
            clause = "write the last digit of the column and go on"
            wrong.append(Step("write", clause, f"{a} + {b} = {plain}, write {plain % 10}"))
        else:
            wrong.append(_column_step(place, _ADD_DIGITS, f"{a} + {b}", plain))
        lost += plain % 10 * 10**place
    return Task("addition", tuple(right), tuple(wrong), upper + lower, lost, traps)


def _subtraction_task(upper: int, lower: int) -> Task | None:
    if upper < lower:
        return None
    start = Step(
        "columns",
        "when one number is subtracted from another, write it below and begin with the ones",
        f"{upper} - {lower}",
    )
    right, wrong, traps = [start], [start], 0
    borrowed, flipped = 0, 0
    for place, (a, b) in enumerate(_digit_columns(upper, lower)):
        left = a - borrowed
        shown = f"{a} - 1" if borrowed else f"{a}"
        if left < b:
            traps, borrowed = traps + 1, 1
            clause = (
                "when the upper digit of a column is smaller than the lower one, "
                "borrow ten from the next column"
            )
            rest = left + 10 - b
            right.append(Step("borrow", clause, f"10 + {shown} - {b} = {rest}, write {rest}"))
        else:
            borrowed = 0
            right.append(_column_step(place, _TAKE_DIGIT, f"{shown} - {b}", left - b))
        if a < b:
            clause = "take the smaller digit of the column from the larger one"
            wrong.append(Step("turn", clause, f"{b} - {a} = {b - a}, write {b - a}"))
        else:
            wrong.append(_column_step(place, _TAKE_DIGIT, f"{a} - {b}", a - b))
        flipped += abs(a - b) * 10**place
    return Task("subtraction", tuple(right), tuple(wrong), upper - lower, flipped, traps)


def _story_task(text: str) -> Task | None:
    """Three numbers, each after the first in a clause that says what happens to the amount."""
    amounts = [
        (int(found), clause)
        for clause in _CLAUSES.split(text)
        for found in re.findall(r"\d+", clause)
    ]
    if len(amounts) != 3:
        return None
    (first, _), *changes = amounts
    signs = [_sign_of_clause(clause) for _, clause in changes]
    if None in signs:
        return None
    (sign1, sign2), (second, third) = signs, (n for n, _ in changes)
    half = _apply_sign(first, str(sign1), second)
    whole = _apply_sign(half, str(sign2), third)
    asked = re.split(r"[.;]\s*", text.strip())[-1].strip(" ?!") or text.strip()
    shared = (
        Step("question", "when a story tells of more than one change, see what it asks for", asked),
        Step(
            "first change",
            "work out the changes in the order in which they happen",
            f"{first} {sign1} {second} = {half}",
        ),
    )
    last = Step(
        "last change",
        "when a story tells of more than one change, answer only after the last one",
        f"{half} {sign2} {third} = {whole}",
    )
    early = Step("answer", "give the number that has been reached", f"it is {half}")
    return Task("story", (*shared, last), (*shared, early), whole, half, 1)


def _sign_of_clause(clause: str) -> str | None:
    if _EACH.search(clause):
        return "*"
    if _LOSSES.search(clause):
        return "-"
    return "+" if _GAINS.search(clause) else None


def _apply_sign(left: int, sign: str, right: int) -> int:
    return {"+": left + right, "-": left - right, "*": left * right}[sign]


def _precedence_task(numbers: list[int], signs: list[str]) -> Task:
    rest = (f"{sign} {number}" for sign, number in zip(signs, numbers[1:], strict=True))
    shown = " ".join([str(numbers[0]), *rest])
    start = Step("signs", "when an expression mixes several signs, look at all of them", shown)
    products: list[str] = []
    terms, rest_signs = [numbers[0]], []
    for sign, number in zip(signs, numbers[1:], strict=True):
        if sign == "*":
            products.append(f"{terms[-1]} * {number} = {terms[-1] * number}")
            terms[-1] *= number
        else:
            terms.append(number)
            rest_signs.append(sign)
    answer, chain = _work_left_to_right(terms, rest_signs)
    wrong_answer, wrong_chain = _work_left_to_right(numbers, signs)
    clause = "when an expression mixes multiplication with other operations, multiply before"
    right = (
        start,
        Step("multiply first", f"{clause} anything else", ", ".join(products)),
        Step("rest", "work out what is left in its order", chain),
    )
    order = Step("left to right", "work through the signs in the order they stand", wrong_chain)
    traps = 0 if answer == wrong_answer else 1
    return Task("precedence", right, (start, order), answer, wrong_answer, traps)


def _work_left_to_right(numbers: list[int], signs: list[str]) -> tuple[int, str]:
    """Work from left to right; returns the result and each calculation on the way."""
    value, shown = numbers[0], []
    for sign, number in zip(signs, numbers[1:], strict=True):
        after = _apply_sign(value, sign, number)
        shown.append(f"{value} {sign} {number} = {after}")
        value = after
    return value, ", ".join(shown)
