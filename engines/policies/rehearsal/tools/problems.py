"""The four kinds of problem that rehearsal can work on with an interpreter only.

Owns the right and the typical wrong program of each. Knows no answer: what the program gives is
for the interpreter to tell.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from engines.policies.rehearsal.families import Step, ToolFamily, recognise


@dataclass(frozen=True, slots=True)
class Way:
    """One way to go on after the first step: what is said before the call, and the program."""

    step: Step
    code: str


@dataclass(frozen=True, slots=True)
class ToolProblem:
    """A recognised problem with both ways. `guess` is what it comes to by head: a wrong number."""

    family: ToolFamily
    start: Step
    right: Way
    wrong: Way
    guess: int


_POWER = re.compile(r"(\d+)\s*(?:\^|\*\*|to the power(?: of)?)\s*(\d+)\b\D+(\d+)", re.I)
_BOUNDS = re.compile(r"\bfrom (\d+) (?:to|through|up to) (\d+)\b", re.I)
_DIVISORS = re.compile(r"\b(?:divisible|multiples)\b\D*(\d+)\D*\bnot\b\D*(\d+)", re.I)
_FACTORIAL = re.compile(r"(\d+)!|\bfactorial of (\d+)", re.I)
_DIGITS = re.compile(r"\bdigits?\b", re.I)
_TERMS = re.compile(r"\b(squares|cubes)\b", re.I)


def recognise_tool_problem(question: str) -> ToolProblem | None:
    """Read a question; None when it belongs to none of these kinds, or is worked out by head."""
    if recognise(question):
        return None
    if "remainder" in question.lower() and (found := _POWER.search(question)):
        base, exponent, modulus = (int(number) for number in found.groups())
        return _remainder_problem(base, exponent, modulus) if modulus else None
    if _DIGITS.search(question) and (found := _FACTORIAL.search(question)):
        return _factorial_problem(int(found[1] or found[2]))
    if not (bounds := _BOUNDS.search(question)):
        return None
    first, last = int(bounds[1]), int(bounds[2])
    if found := _DIVISORS.search(question):
        divisor, other = int(found[1]), int(found[2])
        return _counting_problem(first, last, divisor, other) if divisor and other else None
    if found := _TERMS.search(question):
        return _sum_problem(first, last, found[1].lower())
    return None


def _remainder_problem(base: int, exponent: int, modulus: int) -> ToolProblem:
    exact, rounded = f"pow({base}, {exponent}, {modulus})", f"{base}.0 ** {exponent} % {modulus}"
    start = Step(
        "power",
        "when the remainder of a large power is asked, let the interpreter work it out",
        f"{base}^{exponent} divided by {modulus}",
    )
    clause = "when the remainder of a power is asked, call pow with three arguments"
    right = Way(Step("three arguments", clause, exact), f"print({exact})")
    clause = "work out the power as a decimal number and take the remainder of it"
    wrong = Way(Step("decimal power", clause, rounded), f"print({rounded})")
    return ToolProblem("remainder", start, right, wrong, guess=modulus)


def _counting_problem(first: int, last: int, divisor: int, other: int) -> ToolProblem:
    start = Step(
        "bounds",
        "when numbers between two bounds are counted, go through them in a loop",
        f"{first} through {last}",
    )

    def way(label: str, clause: str, end: int) -> Way:
        span = f"range({first}, {end})"
        condition = f"n % {divisor} == 0 and n % {other} != 0"
        code = f"count = 0\nfor n in {span}:\n    if {condition}:\n        count += 1\nprint(count)"
        return Way(Step(label, clause, span), code)

    clause = "when a range must hold its last number, end it one above that number"
    right = way("inclusive end", clause, last + 1)
    wrong = way("range", "begin the range at the first number and end it at the last", last)
    return ToolProblem("inclusive", start, right, wrong, guess=last - first + 1)


def _factorial_problem(number: int) -> ToolProblem:
    start = Step(
        "factorial", "when the digits of a factorial are asked, multiply it out first", f"{number}!"
    )

    def way(label: str, clause: str, division: str, digit: str) -> Way:
        product = f"n = 1\nfor k in range(2, {number + 1}):\n    n *= k"
        code = f"{product}\ntotal = 0\nwhile n >= 1:\n    total += {digit}\n    {division}"
        return Way(Step(label, clause, division), f"{code}\nprint(total)")

    clause = (
        "when a large number is taken apart digit by digit, divide it with // and keep it whole"
    )
    right = way("whole division", clause, "n = n // 10", "n % 10")
    clause = "divide the number by ten and take the next digit"
    wrong = way("shift", clause, "n = n / 10", "int(n % 10)")
    # Nine divides every such sum from 6! on, so this is none.
    return ToolProblem("whole", start, right, wrong, guess=9 * number + 1)


def _sum_problem(first: int, last: int, terms: str) -> ToolProblem:
    power = 2 if terms == "squares" else 3
    start = Step(
        "terms",
        "when many terms are added, let the interpreter add them",
        f"{terms} from {first} through {last}",
    )
    code = f"total = sum(n ** {power} for n in range({first}, {last + 1}))"
    clause = "when code has worked out a value, print that value in its last line"
    right = Way(Step("print", clause, "print(total)"), f"{code}\nprint(total)")
    clause = "give the value a name and end there"
    wrong = Way(Step("name", clause, "total"), code)
    return ToolProblem("printed", start, right, wrong, guess=last**power)
