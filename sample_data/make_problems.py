"""Write the sample problems and the sample log of this folder.

Run `python -m sample_data.make_problems [FOLDER]`; without a folder the files beside
this program are replaced. The same program always writes the same bytes.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

from sample_data.log_entries import ENTRIES

PRACTICE_EACH = 8
HELDOUT_EACH = 64
LARGER_EACH = 25
_SEED = 20251

_NAMES = ("Mia", "Ben", "Lena", "Omar", "Ida", "Theo", "Nora", "Sami", "Ruth", "Jonas")
_ADD = (
    "What is {a} + {b}?",
    "Add {a} and {b}.",
    "Compute {a} + {b}.",
    "What is the sum of {a} and {b}?",
    "How much is {a} plus {b}?",
)
_SUBTRACT = (
    "What is {a} - {b}?",
    "Subtract {b} from {a}.",
    "Compute {a} - {b}.",
    "What is the difference between {a} and {b}?",
    "How much is {a} minus {b}?",
)
_MIXED = (
    "What is {e}?",
    "Work out {e}.",
    "Compute {e}.",
    "Find the value of {e}.",
    "Calculate {e}.",
)
_STORIES: tuple[tuple[str, Callable[[int, int, int], int]], ...] = (
    (
        "{n} has {a} apples. {n} buys {b} more and then gives {c} to a friend. "
        "How many apples does {n} have now?",
        lambda a, b, c: a + b - c,
    ),
    (
        "A shop gets {b} boxes with {c} pens each. It sells {d} pens. How many pens are left?",
        lambda b, c, d: b * c - d,
    ),
    (
        "{n} reads {b} pages each day for {c} days. On Sunday {n} reads {d} more pages. "
        "How many pages is that in all?",
        lambda b, c, d: b * c + d,
    ),
    (
        "There are {a} people on a bus. At the market {c} leave and {b} others come in, "
        "and the bus drives on. How many people are on the bus?",
        lambda a, c, b: a - c + b,
    ),
    (
        "{n} collects {a} shells on the beach, loses {c} of them and finds {b} the next day. "
        "How many shells does {n} have at the end?",
        lambda a, c, b: a - c + b,
    ),
    (
        "A baker makes {b} trays of {c} rolls per tray. The family eats {d} rolls. "
        "How many rolls remain?",
        lambda b, c, d: b * c - d,
    ),
)


def additions(chance: random.Random, *, larger: bool = False) -> Iterator[tuple[str, int]]:
    """Two numbers of two or three digits whose ones column carries; larger: up to four."""
    while True:
        top = chance.choice((889, 889, 4889) if larger else (89, 89, 489))
        a, b = chance.randint(14, top), chance.randint(14, top)
        if a % 10 + b % 10 >= 10:
            yield chance.choice(_ADD).format(a=a, b=b), a + b


def subtractions(chance: random.Random, *, larger: bool = False) -> Iterator[tuple[str, int]]:
    """The larger number first; its ones digit is the smaller one."""
    while True:
        top = chance.choice((998, 998, 6998) if larger else (98, 98, 698))
        a, b = chance.randint(21, top), chance.randint(12, top)
        if a > b + 5 and a % 10 < b % 10:
            yield chance.choice(_SUBTRACT).format(a=a, b=b), a - b


def stories(chance: random.Random, *, larger: bool = False) -> Iterator[tuple[str, int]]:
    """Two changes of one amount, told in a few sentences."""
    times = 5 if larger else 1
    while True:
        text, work = chance.choice(_STORIES)
        if "{a}" in text:
            values = {"a": chance.randint(15, 60) * times, "b": chance.randint(3, 14) * times}
            values["c"] = chance.randint(2, 12) * times
        else:
            values = {"b": chance.randint(3, 9), "c": chance.randint(4, 12) * times}
            values["d"] = chance.randint(2, 11)
        order = sorted(values, key=lambda letter: text.index(f"{{{letter}}}"))
        name = chance.choice(_NAMES)
        yield text.format(n=name, **values), work(*(values[letter] for letter in order))


def mixed_operations(chance: random.Random, *, larger: bool = False) -> Iterator[tuple[str, int]]:
    """Plus or minus with times, so that working from left to right goes wrong."""
    most = 40 if larger else 12
    while True:
        a, b, c, d = (chance.randint(2, most) for _ in range(4))
        large = b * c + chance.randint(2, 30)
        expression, answer = chance.choice(
            (
                (f"{a} + {b} * {c}", a + b * c),
                (f"{large} - {b} * {c}", large - b * c),
                (f"{a} * {b} + {c} * {d}", a * b + c * d),
                (f"{large} - {b} * {c} + {d}", large - b * c + d),
            )
        )
        yield chance.choice(_MIXED).format(e=expression), answer


_FAMILIES = {
    "addition with carry": additions,
    "subtraction with borrow": subtractions,
    "two-step story": stories,
    "precedence": mixed_operations,
}


def problems() -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """Practice and held-out problems; families take turns, no question occurs twice."""
    practice: list[list[dict[str, str]]] = []
    heldout: list[list[dict[str, str]]] = []
    for number, (source, family) in enumerate(_FAMILIES.items()):
        rows: dict[str, dict[str, str]] = {}
        for question, answer in family(random.Random(_SEED + number)):
            rows.setdefault(
                question, {"question": question, "answer": str(answer), "source": source}
            )
            if len(rows) == PRACTICE_EACH + HELDOUT_EACH:
                break
        listed = list(rows.values())
        practice.append(listed[:PRACTICE_EACH])
        heldout.append(listed[PRACTICE_EACH:])
    return _interleave(practice), _interleave(heldout)


def larger_problems() -> list[dict[str, str]]:
    """A second held-out set: the same families with larger numbers than are practised on."""
    families = []
    for number, (source, family) in enumerate(_FAMILIES.items(), start=10):
        found = dict(islice(family(random.Random(_SEED + number), larger=True), LARGER_EACH + 5))
        rows = [
            {"question": question, "answer": str(answer), "source": source}
            for question, answer in found.items()
        ]
        families.append(rows[:LARGER_EACH])
    return _interleave(families)


def _interleave(families: list[list[dict[str, str]]]) -> list[dict[str, str]]:
    return [row for rows in zip(*families, strict=True) for row in rows]


def replay_log() -> list[dict[str, object]]:
    """The written log, with each reward worked out from the attempt's last line."""
    rows: list[dict[str, object]] = []
    for question, answer, attempts in ENTRIES:
        rollouts: list[dict[str, object]] = [
            {
                "model": f"sample-{number}",
                "response": text,
                "reward": float(text.rsplit("A: ", 1)[1] == answer),
            }
            for number, text in enumerate(attempts, 1)
        ]
        rows.append({"question": question, "answer": answer, "rollouts": rollouts})
    return rows


def write(folder: Path) -> None:
    practice, heldout = problems()
    files: dict[str, Sequence[Mapping[str, object]]] = {
        "arithmetic.jsonl": practice,
        "arithmetic-heldout.jsonl": heldout,
        "arithmetic-larger.jsonl": larger_problems(),
        "replay.jsonl": replay_log(),
    }
    for name, rows in files.items():
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
