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
from sample_data.tiny_text import Share, share_of

Kind = Literal["sum", "difference"]
Way = Literal["whole", "left to right", "by head"]

KINDS: tuple[Kind, ...] = ("sum", "difference")
WAYS: tuple[Way, ...] = ("whole", "left to right", "by head")
"""Asks for the expression as it is, which is right; for another one; or for nothing."""
EACH: dict[Share, int] = {"warm-up": 192, "practice": 192, "heldout": 192}
"""Problems of one kind in the demonstrations, the practice set and the held-out set."""
FILES: dict[str, Share] = {
    "calculator-demonstrations.jsonl": "warm-up",
    "calculator.jsonl": "practice",
    "calculator-heldout.jsonl": "heldout",
}
_SEED = 83
_QUESTIONS = ("What is {e}?", "Work out {e}.", "Compute {e}.", "Calculate {e}.")


@dataclass(frozen=True, slots=True)
class Task:
    """One problem: the value of `a + b * c` or `a - b * c`."""

    question: str
    a: int
    sign: Literal["+", "-"]
    b: int
    c: int

    @property
    def answer(self) -> int:
        return value_of(self.expression("whole"))

    def expression(self, way: Way) -> str:
        """What the calculator is asked for; by head, what is guessed at: numbers in tens."""
        a, sign, b, c = self.a, self.sign, self.b, self.c
        match way:
            case "whole":
                return f"{a}{sign}{b}*{c}"
            case "left to right":
                return f"({a}{sign}{b})*{c}"
            case "by head":
                return f"{round(a, -1)}{sign}{round(b, -1)}*{c}"


def tasks(kind: Kind, chance: random.Random, share: Share) -> Iterator[Task]:
    """Endless problems of one kind whose numbers belong to the share; no value is negative."""
    while True:
        b, c = chance.randint(12, 98), chance.randint(3, 9)
        sign: Literal["+", "-"] = "+" if kind == "sum" else "-"
        a = chance.randint(12, 98) if kind == "sum" else b * c + chance.randint(2, 98)
        question = chance.choice(_QUESTIONS).format(e=f"{a} {sign} {b} * {c}")
        if share_of((a, b, c)) == share:
            yield Task(question, a, sign, b, c)


def distinct(kind: Kind, share: Share) -> list[Task]:
    """Problems of one kind; no two have the same numbers."""
    chance = random.Random(f"{_SEED}/{kind}/{share}")
    found: dict[tuple[int, ...], Task] = {}
    for task in tasks(kind, chance, share):
        found.setdefault(tuple(sorted((task.a, task.b, task.c))), task)
        if len(found) == EACH[share]:
            break
    return list(found.values())


def shown(task: Task, way: Way) -> list[dict[str, str]]:
    """A conversation with the calculator, or one reply without it."""
    asked = {"role": "user", "content": task.question}
    expression = task.expression(way)
    value = value_of(expression)
    if way == "by head":
        return [asked, _reply(f"#### {value}")]
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
