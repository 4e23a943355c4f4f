"""Write what shows practice in two turns: problems for a calculator, and demonstrations of it.

Run `python -m sample_data.make_calculator [FOLDER]`; without a folder the files beside this
program are replaced. The same program always writes the same bytes.

The demonstrations are no good example on purpose: they show three ways in even parts, and only
one is right. Whoever learns from them has them all, and practice has something to choose from.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Literal

from engines.agents.arithmetic import value_of
from sample_data.tiny_text import Share, numbers_in, share_of

Kind = Literal["sum, then product", "difference, then product", "product, then sum"]
Way = Literal["whole", "first step", "by head"]

WAYS: tuple[Way, ...] = ("whole", "first step", "by head")
"""Asks for the whole expression, which is right; for its first step only; or not at all."""
EACH: dict[Share, int] = {"warm-up": 132, "practice": 128, "heldout": 128}
"""Problems of one kind in the demonstrations, the practice set and the held-out set."""
FILES: dict[str, Share] = {
    "calculator-demonstrations.jsonl": "warm-up",
    "calculator.jsonl": "practice",
    "calculator-heldout.jsonl": "heldout",
}
_SEED = 83


@dataclass(frozen=True, slots=True)
class Task:
    """One problem and how the calculator would be asked."""

    question: str
    whole: str
    first: str
    about: str  # `whole` with numbers rounded to tens

    @property
    def answer(self) -> int:
        return value_of(self.whole)


# Questions, first step, whole expression: the numbers stand in reading order.
_KINDS: dict[Kind, tuple[tuple[str, ...], str, str]] = {
    "sum, then product": (
        ("Add {a} and {b}, then multiply by {c}.", "What is {a} plus {b}, all of it times {c}?"),
        "{a}+{b}",
        "({a}+{b})*{c}",
    ),
    "difference, then product": (
        ("From {a} take {b}, then multiply by {c}.", "What is {a} minus {b}, all of it times {c}?"),
        "{a}-{b}",
        "({a}-{b})*{c}",
    ),
    "product, then sum": (
        ("Multiply {a} by {b}, then add {c}.", "What is {a} times {b}, and {c} more?"),
        "{a}*{b}",
        "{a}*{b}+{c}",
    ),
}
KINDS: tuple[Kind, ...] = tuple(_KINDS)


def tasks(kind: Kind, chance: random.Random, share: Share) -> Iterator[Task]:
    """Endless problems of one kind whose numbers belong to the share."""
    texts, first, whole = _KINDS[kind]
    while True:
        a, b, c = (chance.randint(12, 98) for _ in range(3))
        numbers = {"a": max(a, b), "b": min(a, b), "c": c}
        rounded = {name: round(number, -1) for name, number in numbers.items()}
        question = chance.choice(texts).format(**numbers)
        if a != b and share_of(numbers_in(question)) == share:
            yield Task(
                question, whole.format(**numbers), first.format(**numbers), whole.format(**rounded)
            )


def distinct(kind: Kind, share: Share) -> list[Task]:
    """Problems of one kind; no two have the same numbers."""
    chance = random.Random(f"{_SEED}/{kind}/{share}")
    found: dict[tuple[int, ...], Task] = {}
    for task in tasks(kind, chance, share):
        found.setdefault(tuple(sorted(numbers_in(task.question))), task)
        if len(found) == EACH[share]:
            break
    return list(found.values())


def shown(task: Task, way: Way) -> list[dict[str, str]]:
    """A conversation with the calculator, or one reply without it."""
    asked = {"role": "user", "content": task.question}
    if way == "by head":
        value = value_of(task.about)
        return [asked, _reply(f"about {task.about}\n#### {value}")]
    expression = task.whole if way == "whole" else task.first
    value = value_of(expression)
    told = {"role": "user", "content": f"result: {value}"}
    return [asked, _reply(f"calc: {expression}"), told, _reply(f"#### {value}")]


def rows(share: Share) -> list[dict[str, object]]:
    """The kinds take turns; so do the ways in the demonstrations."""
    each = [[(kind, n, task) for n, task in enumerate(distinct(kind, share))] for kind in KINDS]
    together = chain.from_iterable(zip(*each, strict=True))
    if share == "warm-up":
        return [{"messages": shown(task, WAYS[n % len(WAYS)])} for _, n, task in together]
    return [
        {"question": task.question, "answer": str(task.answer), "source": kind}
        for kind, _, task in together
    ]


def write(folder: Path) -> None:
    for name, share in FILES.items():
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows(share))
        (folder / name).write_text(text, encoding="utf-8")


def _reply(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
