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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from engines.core.text.maths import value_of
from sample_data.tiny_text import Share, share_of

Way = Literal["product", "sum", "guess"]

WAYS: tuple[Way, ...] = ("product", "sum", "guess")
"""Asks for the product, which is right; for the sum; or for nothing, and answers at once."""
EACH: dict[Share, int] = {"warm-up": 420, "practice": 256, "heldout": 256}
"""Rows of the demonstrations, the practice set and the held-out set."""
FILES: dict[str, Share] = {
    "calculator-demonstrations.jsonl": "warm-up",
    "calculator.jsonl": "practice",
    "calculator-heldout.jsonl": "heldout",
}
_SEED = 83
_QUESTIONS = ("What is {a} * {b}?", "Work out {a} * {b}.", "Compute {a} * {b}.")


@dataclass(frozen=True, slots=True)
class Task:
    """One product."""

    question: str
    a: int
    b: int

    @property
    def answer(self) -> int:
        return self.a * self.b

    @property
    def guess(self) -> int:
        """What rounding gives: near, and right only where the numbers are round."""
        return round(self.a, -1) * self.b


def tasks(share: Share) -> list[Task]:
    """Problems whose numbers belong to the share; no two have the same numbers."""
    chance = random.Random(f"{_SEED}/{share}")
    pairs = [
        (a, b)
        for a in range(12, 99)
        for b in range(3, 20)
        if share_of((a, b)) == share and (b < 12 or a >= b)  # no pair both ways round
    ]
    return [
        Task(chance.choice(_QUESTIONS).format(a=a, b=b), a, b)
        for a, b in chance.sample(pairs, EACH[share])
    ]


def build_conversation(task: Task, way: Way) -> list[dict[str, str]]:
    """A conversation with the calculator, or one reply without it."""
    asked = {"role": "user", "content": task.question}
    if way == "guess":
        return [asked, _reply(f"#### {task.guess}")]
    expression = f"{task.a}*{task.b}" if way == "product" else f"{task.a}+{task.b}"
    value = value_of(expression)
    told = {"role": "user", "content": f"result: {value}"}
    return [asked, _reply(f"calc: {expression}"), told, _reply(f"#### {value}")]


def rows(share: Share) -> list[dict[str, Any]]:
    """Of one file; in the demonstrations the ways take turns."""
    if share == "warm-up":
        return [
            {"messages": build_conversation(task, WAYS[n % len(WAYS)])}
            for n, task in enumerate(tasks(share))
        ]
    return [
        {"question": task.question, "answer": str(task.answer), "source": "product"}
        for task in tasks(share)
    ]


def write(folder: Path) -> None:
    for name, share in FILES.items():
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows(share))
        (folder / name).write_text(text, encoding="utf-8")


def _reply(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
