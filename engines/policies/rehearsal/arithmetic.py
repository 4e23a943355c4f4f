"""General lessons from attempts that are plain sentences with calculations in them.

For the logs of other models. The lessons hold no number and no name: what an attempt calculated
is abstracted to the kind of calculation.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_MARKED = re.compile(r"<<([^=<>]+)=([^<>]+)>>")
_WRITTEN = re.compile(
    r"(\$?\d[\d,.]*%?(?:\s*[-+*/x×÷]\s*\$?\d[\d,.]*%?)+)\s*=\s*\$?\s*(-?\d[\d,]*(?:\.\d+)?)"
)
_NUMBER = re.compile(r"\d+(?:\.\d+)?|\.\d+")
_NOUN = {"+": "addition", "-": "subtraction", "*": "multiplication", "/": "division"}
_USE = {
    "+": "add what belongs to one whole",
    "-": "subtract what is used up, given away or compared",
    "*": "multiply where the same amount comes again and again",
    "/": "divide where something is shared out in equal parts",
}


@dataclass(frozen=True, slots=True)
class Calculation:
    """One calculation of an attempt. Order counts only where it changes the result."""

    sign: str
    numbers: tuple[str, ...]
    result: str


@dataclass(frozen=True, slots=True)
class ArithmeticLesson:
    """A lesson: its name, its sentence, and in words where the attempts part."""

    name: str
    sentence: str
    seen: str


def parse_calculations(bodies: Sequence[str]) -> tuple[Calculation, ...]:
    found: list[Calculation] = []
    for body in bodies:
        for left, result in _MARKED.findall(body) or _WRITTEN.findall(body):
            plain = left.replace(",", "").replace("×", "*").replace("x", "*").replace("÷", "/")
            signs = re.findall(r"(?<=[\d.%)\s])[-+*/]", plain)
            numbers = _NUMBER.findall(plain)
            if not signs or not numbers:
                continue
            order = sorted(numbers) if set(signs) <= {"+"} or set(signs) <= {"*"} else numbers
            found.append(Calculation(signs[0], tuple(order), _strip_number(result)))
    return tuple(found)


def _strip_number(number: str) -> str:
    return re.sub(r"\.0+$", "", number.replace(",", "").replace("$", "").strip())


def shared_prefix_length(one: Sequence[object], other: Sequence[object]) -> int:
    """How many steps two chains have in common from their start."""
    for n, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return n
    return min(len(one), len(other))


def compare_chains(
    better: Sequence[Calculation], worse: Sequence[Calculation]
) -> ArithmeticLesson | None:
    """The lesson from the first calculation at which two chains part; None for equal ones."""
    n = shared_prefix_length(better, worse)
    if n == len(better) == len(worse):
        return None
    if n == len(worse):
        return ArithmeticLesson(
            "Go on to what is asked",
            "when a number has been found, compare it with what the problem asks for and go on "
            "while something is left to do",
            f"the better one goes on with {_with_article(better[n].sign)} where the other ends",
        )
    if n == len(better):
        return ArithmeticLesson(
            "Stop at what is asked",
            "when a number already is what the problem asks for, stop there and give it",
            f"the worse one goes on with {_with_article(worse[n].sign)} after the answer is found",
        )
    good, bad = better[n], worse[n]
    if (good.sign, good.numbers) == (bad.sign, bad.numbers):
        return ArithmeticLesson(
            "Check each result",
            "when a calculation is done, work it out a second time before you go on",
            f"both do the same {_NOUN[good.sign]} with different results",
        )
    if good.sign == bad.sign:
        return ArithmeticLesson(
            "Right amounts",
            "when a problem gives several amounts, say what each of them counts before you "
            "calculate with them",
            f"both do {_with_article(good.sign)} there, with different amounts",
        )
    # The same lesson whichever of the two was right: it tells how to choose.
    one, two = sorted((good.sign, bad.sign), key="+-*/".index)
    return ArithmeticLesson(
        f"{_NOUN[one].capitalize()} or {_NOUN[two]}",
        f"when a step could be {_with_article(one)} or {_with_article(two)}, look at what "
        f"happens to the amounts: {_USE[one]}, and {_USE[two]}",
        f"the better one does {_with_article(good.sign)} there, the other "
        f"{_with_article(bad.sign)}",
    )


def _with_article(sign: str) -> str:
    return f"{'an' if sign == '+' else 'a'} {_NOUN[sign]}"
