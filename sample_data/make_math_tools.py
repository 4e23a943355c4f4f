"""Write the sample problems that need an interpreter: `math-tools.jsonl` and its held-out set.

Run `python -m sample_data.make_math_tools [FOLDER]`; without a folder the files beside this
program are replaced. The same program always writes the same bytes.
"""

from __future__ import annotations

import json
import math
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

PRACTICE_EACH = 12
HELDOUT_EACH = 15
_SEED = 4711
_SMALLEST = 30  # an answer that a lesson could name by chance, as in "three", shows nothing

_POWERS = (
    "What is the remainder when {a}^{b} is divided by {c}?",
    "Find the remainder of {a}^{b} divided by {c}.",
    "Which remainder does {a}^{b} leave when it is divided by {c}?",
)
_COUNTS = (
    "How many whole numbers from {a} through {b} are divisible by {c} and not by {d}?",
    "Count the whole numbers from {a} through {b} that are divisible by {c} but not by {d}.",
    "From {a} through {b}, how many whole numbers are multiples of {c} and not of {d}?",
)
_FACTORIALS = (
    "What is the sum of the digits of {a}!?",
    "Find the digit sum of the factorial of {a}.",
    "Which number is the sum of all digits of {a}!?",
)
_SUMS = (
    "Find the sum of the {k} of the whole numbers from {a} through {b}.",
    "What do the {k} of all whole numbers from {a} through {b} add up to?",
    "How large is the sum of the {k} of the numbers from {a} through {b}?",
)

Numbers = tuple[int, ...]
Row = tuple[Numbers, str, int]


def remainders(chance: random.Random) -> Iterator[Row]:
    """Powers that decimal numbers cannot hold exactly."""
    while True:
        a, b, c = chance.randint(3, 29), chance.randint(60, 200), chance.randint(211, 1999)
        answer = pow(a, b, c)
        if answer != float(a) ** b % c:
            yield (a, b, c), chance.choice(_POWERS).format(a=a, b=b, c=c), answer


def counts(chance: random.Random) -> Iterator[Row]:
    """The last number counts, so that leaving it out goes wrong."""
    while True:
        a, c, d = chance.randint(10, 99), chance.randint(3, 12), chance.randint(4, 13)
        b = chance.randint(40, 160) * c
        found = [n for n in range(a, b + 1) if n % c == 0 and n % d != 0]
        if d % c and b > 4 * a and b in found:
            yield (a, b, c, d), chance.choice(_COUNTS).format(a=a, b=b, c=c, d=d), len(found)


def factorials(chance: random.Random) -> Iterator[Row]:
    """Factorials that decimal numbers cannot hold exactly, and that they do not overflow at."""
    while True:
        a = chance.randint(24, 170)
        answer = sum(int(digit) for digit in str(math.factorial(a)))
        yield (a,), chance.choice(_FACTORIALS).format(a=a), answer


def sums(chance: random.Random) -> Iterator[Row]:
    """Sums that only code works out in good time."""
    while True:
        a, b = chance.randint(5, 60), chance.randint(90, 400)
        kind, power = chance.choice((("squares", 2), ("cubes", 3)))
        answer = sum(n**power for n in range(a, b + 1))
        yield (a, b, power), chance.choice(_SUMS).format(k=kind, a=a, b=b), answer


_FAMILIES: dict[str, Callable[[random.Random], Iterator[Row]]] = {
    "remainder of a power": remainders,
    "count with both bounds": counts,
    "digits of a factorial": factorials,
    "sum of many terms": sums,
}


def problems() -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """Practice and held-out problems; families take turns, no numbers occur twice."""
    families = []
    for place, (source, family) in enumerate(_FAMILIES.items()):
        rows: dict[Numbers, dict[str, str]] = {}
        for numbers, question, answer in family(random.Random(_SEED + place)):
            if answer >= _SMALLEST:
                row = {"question": question, "answer": str(answer), "source": source}
                rows.setdefault(numbers, row)
            if len(rows) == PRACTICE_EACH + HELDOUT_EACH:
                break
        families.append(list(rows.values()))
    turns = [row for rows in zip(*families, strict=True) for row in rows]
    practised = PRACTICE_EACH * len(families)
    return turns[:practised], turns[practised:]


def write(folder: Path) -> None:
    practice, heldout = problems()
    for name, rows in (("math-tools.jsonl", practice), ("math-tools-heldout.jsonl", heldout)):
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
